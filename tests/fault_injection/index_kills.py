"""Kills a process that writes an index, repeatedly; nothing it acknowledged may be lost.

    python tests/fault_injection/index_kills.py --rounds 200

In odd rounds the process dies at a call that changes the disk (some in the middle of a write), in
even ones at a random time. A change in progress may be there, but only completely.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from index_history import BITS, Items, SmallIndex, apply, items_of


def die_at_call(count: int) -> None:
    """Kill this process at its count-th call that changes the disk."""
    calls = 0

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count:
                if function is pwrite:
                    descriptor, data, at = arguments
                    pwrite(descriptor, data[: random.Random(count).randrange(len(data))], at)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return call

    pwrite = os.pwrite
    for name in ("pwrite", "fsync", "ftruncate"):
        setattr(os, name, dying(getattr(os, name)))
    for name in ("replace", "unlink", "open"):
        setattr(pathlib.Path, name, dying(getattr(pathlib.Path, name)))


def write_until_killed(folder: Path, first: int, die: int, acknowledged: int) -> None:
    if die:
        die_at_call(die)
    index = SmallIndex.open(folder, BITS)
    for step in range(first, first + 10_000):
        apply(index, step)
        os.write(acknowledged, step.to_bytes(4, "little"))


def kill_writers(folder: Path, rounds: int, seed: int = 7) -> int:
    """Return the number of acknowledged changes; raise an AssertionError if one was lost."""
    model: Items = {}
    chance = random.Random(seed)
    step = acknowledged = 0
    for kill in range(rounds):
        reading, writing = os.pipe()
        die = chance.randrange(1, 120) if kill % 2 else 0
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                write_until_killed(folder, step, die, writing)
            finally:
                os._exit(1)
        os.close(writing)
        if not die:
            time.sleep(chance.uniform(0, 0.06))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL, f"the writer failed by itself in round {kill}"
        with os.fdopen(reading, "rb") as pipe:
            count = len(pipe.read()) // 4
        for number in range(step, step + count):
            apply(model, number)
        step += count
        acknowledged += count
        with SmallIndex.open(folder, BITS) as index:
            items = items_of(index)
            index.verify()
        if items != model:
            apply(model, step)
            step += 1
            assert items == model, f"round {kill}: neither the state before nor after step {step}"
    return acknowledged


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        acknowledged = kill_writers(Path(folder) / "index", options.rounds)
    print(f"{options.rounds} kills, {acknowledged:,} acknowledged changes, 0 lost")
