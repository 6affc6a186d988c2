"""Flips one bit of one file of an index; it must be reported, or change nothing.

    python tests/fault_injection/index_flips.py --rounds 2000 --files log

Reported means an EngineError when the index is opened, or by verify(). A corrupt index is also
written to: compacting must not copy corrupt data, and a refused opening must not change the files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from index_history import BITS, Items, SmallIndex, change, items_of

from transhash.codes import Codes
from transhash.errors import EngineError
from transhash.index.exact import ExactIndex

FILES = ("log", "segment", "dead", "manifest", "items")


def make(folder: Path) -> Items:
    """Create an index with two segments, deleted ids and a log of adds, updates and removals."""
    index = SmallIndex.open(folder, BITS)
    generator = np.random.default_rng(0)

    def codes(count: int) -> Codes:
        return Codes(generator.integers(0, 4, (count, BITS // 8), dtype=np.uint8), BITS)

    index.add(np.arange(2000) * 3, codes(2000))
    index.remove(np.arange(0, 400, 5))  # more than flush_at: on disk with the next generation
    index.add(np.arange(10_000, 10_100), codes(100))
    for step in range(12):
        index.add(20_000 + step * 10 + np.arange(3), codes(3))
        if step % 3 == 0:
            index.update([3 * step, 20_000 + step * 10], codes(2))
            index.remove([10_000 + step])
    items = items_of(index)
    index.close()
    names = [path.name.partition("-")[0] for path in folder.glob("*-*.bin")]
    assert Counter(names) == {"segment": 2, "dead": 1, "log": 1}
    return items


def make_items(folder: Path) -> Items:
    _, ids, codes = change(9)
    with ExactIndex.open(folder, BITS) as index:
        index.add(ids, codes)
        return items_of(index)


def outcome(folder: Path, expected: Items, open_index: Callable[..., object], write: bool) -> str:
    """Return how the corruption was detected; raise an AssertionError if it was not."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    try:
        index = open_index(folder, None, read_only=not write)
    except EngineError:
        after = {path.name: path.read_bytes() for path in folder.iterdir()}
        after.pop("writer.lock", None)
        before.pop("writer.lock", None)
        assert after == before, "an index that was refused was changed"
        return "reported when opened"
    assert isinstance(index, SmallIndex | ExactIndex)
    with index:
        try:
            with contextlib.suppress(EngineError):  # results may be wrong until verify() is called
                index.search(index.export()[1][:5], 10)
            index.verify()
            assert items_of(index) == expected, "other items without an error"
            return "changed nothing"
        except EngineError:
            if write and isinstance(index, SmallIndex):
                _expect_error(index.compact, "corrupt data was compacted")
                _expect_error(index.verify, "corruption is no longer reported")
            return "reported by verify"


def _expect_error(action: Callable[[], None], message: str) -> None:
    try:
        action()
    except EngineError:
        return
    raise AssertionError(message)


def used_bytes(data: bytes) -> Sequence[int]:
    """Return the offsets of all bytes except the padding of pages."""
    if not data.startswith(b"THARRAY"):
        return range(len(data))
    length = 16 + int.from_bytes(data[8:12], "little")
    start, offsets = -(-length // 4096) * 4096, list(range(length))
    for entry in json.loads(data[16:length])["arrays"].values():
        size = int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize
        offsets += range(start + entry["offset"], start + entry["offset"] + size)
    return offsets


def flip_bits(folder: Path, files: str, rounds: int, seed: int = 5) -> Counter[str]:
    """Count how `rounds` flips in files of that kind were detected."""
    original = folder / "original"
    expected = make_items(original) if files == "items" else make(original)
    backend = ExactIndex if files == "items" else SmallIndex
    patterns = {"manifest": "index.json", "items": "items.npy"}
    paths = sorted(original.glob(patterns.get(files, f"{files}-*.bin")))
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(rounds):
        copy = folder / "copy"
        shutil.copytree(original, copy)
        path = copy / chance.choice(paths).name
        data = bytearray(path.read_bytes())
        offset, bit = chance.choice(used_bytes(data)), chance.randrange(8)
        data[offset] ^= 1 << bit
        path.write_bytes(data)
        try:
            outcomes[outcome(copy, expected, backend.open, write=number % 2 == 0)] += 1
        except Exception as error:
            raise AssertionError(f"{path.name}, byte {offset}, bit {bit}: {error!r}") from error
        shutil.rmtree(copy)
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500, help="flips per kind of file")
    parser.add_argument("--files", choices=FILES, action="append")
    options = parser.parse_args()
    for files in options.files or FILES:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = flip_bits(Path(folder), files, options.rounds)
        summary = ", ".join(f"{count} {how}" for how, count in sorted(outcomes.items()))
        print(f"{files}: {options.rounds} flips: {summary}, 0 undetected", flush=True)
