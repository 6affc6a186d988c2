"""Readers in processes of their own beside a writer: each sees whole changes, and none is stale.

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

EACH = 7  # items of one change


def codes_of(ids: np.ndarray) -> Codes:  # type: ignore[type-arg]
    return Codes((ids[:, None] * [3, 5, 7, 11] % 251).astype(np.uint8), BITS)


def read(place: Path, rounds: int) -> int:
    """How often what was seen was checked; an AssertionError says what was wrong."""
    with (place / "acknowledged").open("rb") as file:
        shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    reader = open_index(place / "index", read_only=True)
    seen = 0
    for number in range(rounds):
        before = int.from_bytes(shared[:8], "little")
        if number % 2:
            ids, codes = reader.export()
            assert len(ids) % EACH == 0, "half a change"
            assert np.array_equal(ids, np.arange(len(ids)))
            assert codes == codes_of(ids)
            count = len(ids)
        else:
            count = len(reader)
            last = codes_of(np.array([max(0, count - 1)]))
            assert count == 0 or reader.search(last, 1).distances[0, 0] == 0
        assert count >= before, f"stale: {count} items, {before} were acknowledged"
        assert count >= seen, "fewer items than before"
        seen = count
    reader.verify()
    reader.close()
    return rounds


def read_beside_a_writer(place: Path, rounds: int, readers: int) -> tuple[int, int]:
    """(changes written, reads checked)."""
    (place / "acknowledged").write_bytes(bytes(8))
    with (place / "acknowledged").open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)
    index = SmallIndex.open(place / "index", BITS)
    command = [sys.executable, __file__, "--rounds", str(rounds), "--at", str(place)]
    processes = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(readers)
    ]
    changes = 0
    while any(process.poll() is None for process in processes):
        ids = np.arange(changes * EACH, (changes + 1) * EACH)
        index.add(ids, codes_of(ids))
        changes += 1
        shared[:8] = (changes * EACH).to_bytes(8, "little")
        if changes % 400 == 0:
            index.compact()
    index.close()
    for process in processes:
        error = process.communicate()[1]
        assert process.returncode == 0, error
    return changes, rounds * readers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5_000, help="reads of each reader")
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.at:
        read(options.at, options.rounds)
        sys.exit()
    with tempfile.TemporaryDirectory() as place:
        changes, reads = read_beside_a_writer(Path(place), options.rounds, options.readers)
    print(f"{reads:,} reads beside {changes:,} changes, 0 stale, 0 torn")
