"""A writer killed at any point loses nothing it acknowledged and leaves nothing half done."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.index.grouped.grouped import GroupedIndex

BITS = 32
ROUNDS = 200


class SmallIndex(GroupedIndex):
    flush_at = 60  # a new generation every few operations


def operation(step: int) -> tuple[str, np.ndarray, Codes]:
    """The step-th change; the same in the writer and in the test."""
    generator = np.random.default_rng(step)
    verb = ["add", "add", "update", "remove"][step % 4]
    count = int(generator.integers(1, 30)) if step % 9 else 90  # some go straight to a segment
    fresh = step * 100 + np.arange(count)
    known = generator.choice((step + 1) * 100, count, replace=False)
    packed = generator.integers(0, 256, (count, BITS // 8), dtype=np.uint8)
    return verb, fresh if verb == "add" else known, Codes(packed, BITS)


def apply(target: Any, step: int) -> None:
    verb, ids, codes = operation(step)
    if isinstance(target, dict):
        if verb == "remove":
            for i in ids.tolist():
                target.pop(i, None)
        else:
            target.update(zip(ids.tolist(), map(bytes, codes.packed)))
    elif verb == "remove":
        target.remove(ids)
    else:
        getattr(target, verb)(ids, codes)


def die_at_call(count: int) -> None:
    """Kills this process at its count-th call that changes the disk, before or after the call."""
    calls = 0

    def dying(function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return call

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_writer_killed_200_times_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    model: dict[int, bytes] = {}
    step = 0
    chance = random.Random(7)
    finished = 0
    for kill in range(ROUNDS):
        reading, writing = os.pipe()
        # Odd rounds die between two calls to the disk, even ones whenever the clock says so.
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
        for done in range(step, step + count):
            apply(model, done)
        step += count
        finished += count
        index = SmallIndex.open(folder, BITS)
        ids, codes = index.export()
        index.verify()
        index.close()
        found = dict(zip(ids.tolist(), map(bytes, codes.packed)))
        if found != model:
            # The change under way when the writer died may be there, but only as a whole.
            apply(model, step)
            step += 1
            assert found == model, f"round {kill}: neither the state before nor after step {step}"
    assert finished > ROUNDS  # the writer did get somewhere between the kills
