"""Writes an index on a disk that is sometimes full; nothing acknowledged may be lost.

    python tests/fault_injection/index_disk.py --rounds 300

The disk is a 512 KB tmpfs if the system allows mounting one, and a limit on the size of files
(RLIMIT_FSIZE) everywhere. Every failure must be an EngineError.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from index_history import BITS, Items, SmallIndex, apply, items_of

from transhash.errors import EngineError

OWN_MOUNT = ["unshare", "--user", "--map-root-user", "--mount"]


class Tally(NamedTuple):
    acknowledged: int
    refused: int


def can_mount() -> bool:
    try:
        return subprocess.run([*OWN_MOUNT, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def write_when_possible(folder: Path, rounds: int, fill: bool, seed: int = 3) -> Tally:
    """Write until `rounds` changes were refused, on a full disk or with limited file sizes."""
    chance = random.Random(seed)
    ballast = folder.parent / "ballast"
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    model: Items = {}
    index = SmallIndex.open(folder, BITS)
    step = acknowledged = refused = 0
    while refused < rounds:
        if fill:
            free = shutil.disk_usage(folder).free
            ballast.write_bytes(bytes(max(0, free - chance.randrange(30_000))))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (chance.randrange(100, 40_000), most))
        for _ in range(chance.randrange(1, 12)):
            try:
                apply(index, step)
                apply(model, step)
                acknowledged += 1
            except EngineError as error:
                _check_message(error)
                refused += 1
            step += 1
        if chance.random() < 0.3:  # the process ends while the disk is full
            index.close()
            try:
                index = SmallIndex.open(folder, BITS)
            except EngineError as error:
                _check_message(error)
                _free_space(ballast, most)
                index = SmallIndex.open(folder, BITS)
        _free_space(ballast, most)
        if len(model) > 3_000:
            index.remove(list(model))
            model.clear()
            index.compact()
        index.verify()
        assert items_of(index) == model, f"other items after step {step}"
    index.close()
    return Tally(acknowledged, refused)


def _check_message(error: EngineError) -> None:
    assert str(error).startswith("Cannot write "), error


def _free_space(ballast: Path, most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    ballast.unlink(missing_ok=True)


def on_small_disk(rounds: int) -> Tally:
    """Run `write_when_possible` in a new process on a tmpfs."""
    with tempfile.TemporaryDirectory() as folder:
        mount = 'mount -t tmpfs -o size=512k none "$0" && exec "$@"'
        command = [sys.executable, __file__, "--rounds", str(rounds), "--folder", folder]
        result = subprocess.run(
            [*OWN_MOUNT, "sh", "-c", mount, folder, *command], capture_output=True, text=True
        )
    assert result.returncode == 0, result.stderr
    return Tally(*map(int, result.stdout.split()))


def with_small_files(rounds: int) -> Tally:
    """Run `write_when_possible` in a new process with limited file sizes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rounds", str(rounds), "--folder", folder, "--limit"]
        result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return Tally(*map(int, result.stdout.split()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="refusals of each kind")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        print(
            *write_when_possible(options.folder / "index", options.rounds, fill=not options.limit)
        )
        sys.exit()
    kinds = {"small files": with_small_files} | (
        {"full disk": on_small_disk} if can_mount() else {}
    )
    for name, inject in kinds.items():
        tally = inject(options.rounds)
        print(f"{name}: {tally.refused} refused, {tally.acknowledged:,} acknowledged, 0 lost")
