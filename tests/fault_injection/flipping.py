"""Flip one bit of a file temporarily."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_bit_flipped(path: Path, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Flip a random bit, yield its byte and bit, and restore the file."""
    content = path.read_bytes()
    position, bit = chance.randrange(len(content)), chance.randrange(8)
    changed = bytes([content[position] ^ 1 << bit])
    path.write_bytes(content[:position] + changed + content[position + 1 :])
    yield position, bit
    path.write_bytes(content)
