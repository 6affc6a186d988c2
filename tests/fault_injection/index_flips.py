"""Flips one bit of one file of an index; it must be told, or change nothing.

    python tests/fault_injection/index_flips.py --rounds 2000 --files log

Told means an EngineError when the index is opened, or by verify(). A damaged index is also written
to: compacting must not turn damage into data, and a refused opening must leave the files alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from index_history import BITS, Items, SmallIndex, change, items_of

from transhash.codes import Codes
from transhash.errors import EngineError
from transhash.index.exact import ExactIndex

FILES = ("log", "log of version 1", "segment", "dead", "manifest", "items")


def make(folder: Path) -> Items:
    """An index with two segments, removed ids and a log of adds, updates and removals."""
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
    found = items_of(index)
    index.close()
    names = [path.name.partition("-")[0] for path in folder.glob("*-*.bin")]
    assert Counter(names) == {"segment": 2, "dead": 1, "log": 1}
    return found


def make_version_1(folder: Path) -> Items:
    """The same with a log as commit 2163542 wrote it."""
    found = make(folder)
    (path,) = folder.glob("log-*.bin")
    old, data, at = [b"THLOG001"], path.read_bytes(), 8
    while at < len(data):
        mark_pending, operation, items, *_ = struct.unpack_from("<4sIIII", data, at)
        size = items * (8 + (0 if operation == 3 else BITS // 8))
        body = data[at + 20 : at + 20 + size]
        checksum = zlib.crc32(body, zlib.crc32(struct.pack("<II", operation, items)))
        old.append(struct.pack("<4sIII", mark_pending, operation, items, checksum) + body)
        at += 20 + size
    path.write_bytes(b"".join(old))
    return found


def make_items(folder: Path) -> Items:
    index = ExactIndex.open(folder, BITS)
    _, ids, codes = change(9)
    index.add(ids, codes)
    found = items_of(index)
    index.close()
    return found


def make_for(files: str, folder: Path) -> Items:
    makers: dict[str, Callable[[Path], Items]] = {
        "log of version 1": make_version_1,
        "items": make_items,
    }
    return makers.get(files, make)(folder)


def outcome(folder: Path, expected: Items, open_index: Callable[..., object], write: bool) -> str:
    """How the damage was met; an AssertionError if it was not."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    try:
        index = open_index(folder, None, read_only=not write)
    except EngineError:
        after = {path.name: path.read_bytes() for path in folder.iterdir()}
        after.pop("writer.lock", None)
        before.pop("writer.lock", None)
        assert after == before, "an index that was refused was changed"
        return "told when opened"
    assert isinstance(index, SmallIndex | ExactIndex)
    try:
        with contextlib.suppress(EngineError):  # the answer may be wrong until verify() is asked
            queries = index.export()[1][:5]
            index.search(queries, 10)
            index.search_radius(queries, 3)
        index.verify()
        assert items_of(index) == expected, "other items, and nothing was said"
        return "changed nothing"
    except EngineError:
        if write and isinstance(index, SmallIndex):
            try:
                index.compact()
            except EngineError:
                pass
            else:
                raise AssertionError("damage was compacted") from None
            try:
                index.verify()
            except EngineError:
                return "told by verify"
            raise AssertionError("damage is no longer told") from None
        return "told by verify"
    finally:
        index.close()


def written(data: bytes) -> Sequence[int]:
    """The places of all bytes but those that only fill up a page."""
    if not data.startswith(b"THARRAY"):
        return range(len(data))
    length = 16 + int.from_bytes(data[8:12], "little")
    start, places = -(-length // 4096) * 4096, list(range(length))
    for entry in json.loads(data[16:length])["arrays"].values():
        size = int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize
        places += range(start + entry["at"], start + entry["at"] + size)
    return places


def flip_bits(place: Path, files: str, rounds: int, seed: int = 5) -> Counter[str]:
    """How `rounds` flips in the files of that kind were met."""
    whole = place / "whole"
    expected = make_for(files, whole)
    engine = ExactIndex if files == "items" else SmallIndex
    patterns = {"manifest": "index.json", "items": "items.npy"}
    paths = sorted(whole.glob(patterns.get(files, f"{files.split()[0]}-*.bin")))
    chance = random.Random(seed)
    met: Counter[str] = Counter()
    for number in range(rounds):
        copy = place / "copy"
        shutil.copytree(whole, copy)
        path = copy / chance.choice(paths).name
        data = bytearray(path.read_bytes())
        at, bit = chance.choice(written(data)), chance.randrange(8)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            met[outcome(copy, expected, engine.open, write=number % 2 == 0)] += 1
        except Exception as error:
            raise AssertionError(f"{path.name}, byte {at}, bit {bit}: {error!r}") from error
        shutil.rmtree(copy)
    return met


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500, help="of each kind of file")
    parser.add_argument("--files", choices=FILES, action="append")
    options = parser.parse_args()
    for files in options.files or FILES:
        with tempfile.TemporaryDirectory() as place:
            met = flip_bits(Path(place), files, options.rounds)
        told = ", ".join(f"{count} {how}" for how, count in sorted(met.items()))
        print(f"{files}: {options.rounds} flips: {told}, 0 wrong in silence", flush=True)
