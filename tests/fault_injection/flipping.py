"""A file with one bit flipped, for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_bit_flipped(path: Path, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Which byte and bit it is; afterwards the file is what it was."""
    content = path.read_bytes()
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    changed = bytes([content[place] ^ 1 << bit])
    path.write_bytes(content[:place] + changed + content[place + 1 :])
    yield place, bit
    path.write_bytes(content)
