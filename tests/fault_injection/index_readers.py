"""Readers in separate processes next to a writer: each sees complete changes, and none is stale.

python tests/fault_injection/index_readers.py --rounds 20000 --readers 3
"""

from __future__ import annotations

import argparse
import mmap
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from index_history import BITS, SmallIndex

from transhash.codes import Codes
from transhash.index import open_index

ITEMS_PER_CHANGE = 7


def codes_of(ids: np.ndarray) -> Codes:  # type: ignore[type-arg]
    return Codes((ids[:, None] * [3, 5, 7, 11] % 251).astype(np.uint8), BITS)


def read(folder: Path, rounds: int) -> int:
    """Read and check `rounds` times; raise an AssertionError if something is wrong."""
    with (folder / "acknowledged").open("rb") as file:
        shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    reader = open_index(folder / "index", read_only=True)
    last_count = 0
    for number in range(rounds):
        before = int.from_bytes(shared[:8], "little")
        if number % 2:
            ids, codes = reader.export()
            assert len(ids) % ITEMS_PER_CHANGE == 0, "part of a change"
            assert np.array_equal(ids, np.arange(len(ids)))
            assert codes == codes_of(ids)
            count = len(ids)
        else:
            count = len(reader)
            newest = codes_of(np.array([max(0, count - 1)]))
            assert count == 0 or reader.search(newest, 1).distances[0, 0] == 0
        assert count >= before, f"stale: {count} items, {before} were acknowledged"
        assert count >= last_count, "fewer items than before"
        last_count = count
    reader.verify()
    reader.close()
    return rounds


def read_during_writes(folder: Path, rounds: int, readers: int) -> tuple[int, int]:
    """Return (changes written, reads checked)."""
    (folder / "acknowledged").write_bytes(bytes(8))
    with (folder / "acknowledged").open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)
    index = SmallIndex.open(folder / "index", BITS)
    command = [sys.executable, __file__, "--rounds", str(rounds), "--folder", str(folder)]
    processes = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(readers)
    ]
    changes = 0
    while any(process.poll() is None for process in processes):
        ids = np.arange(changes * ITEMS_PER_CHANGE, (changes + 1) * ITEMS_PER_CHANGE)
        index.add(ids, codes_of(ids))
        changes += 1
        shared[:8] = (changes * ITEMS_PER_CHANGE).to_bytes(8, "little")
        if changes % 400 == 0:
            index.compact()
    index.close()
    for process in processes:
        error = process.communicate()[1]
        assert process.returncode == 0, error
    return changes, rounds * readers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5_000, help="reads per reader")
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        read(options.folder, options.rounds)
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        changes, reads = read_during_writes(Path(folder), options.rounds, options.readers)
    print(f"{reads:,} reads during {changes:,} changes, 0 stale, 0 torn")
