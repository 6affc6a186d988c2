"""Kill `transhash index` and `transhash encode`; finished work must not be lost.

    python tests/fault_injection/command_kills.py --rounds 30 --command index

Each round changes the sources and starts the command in a forked process, so that the kill does not
hit the imports; --spawn starts a new interpreter instead. Even rounds kill it after a random time,
odd ones at a call that writes. Every fifth round finishes: from then on readers must find every
item after every kill, before and after the next writer.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from dying import Calls
from run_history import IMAGES, findable, is_consistent, new_run, write_sources

from transhash import storage
from transhash.cli import main as transhash
from transhash.codes import Codes
from transhash.data.manifest import read_texts
from transhash.index.grouped.grouped import GroupedIndex
from transhash.model.encoder import Encoder
from transhash.model.shards import read_job, read_shards, shard_path
from transhash.search.catalog import Catalog
from transhash.search.verify import verify_run


class Tally(NamedTuple):
    rounds: int
    killed: int
    finished: int


def writing_calls() -> Calls:
    return Calls(
        [
            (Catalog, "add"),
            (Catalog, "mark_done"),
            (GroupedIndex, "update"),
            (storage.os, "replace"),
        ]
    )


def run_command(
    arguments: list[str], seconds: float | None, die_at: int, spawn: bool, calls: Calls
) -> int | None:
    """Return the exit code, or None if the command was killed, after `seconds` or at a call."""
    if spawn:
        child = subprocess.Popen(
            [sys.executable, "-m", "transhash", *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        pid = child.pid
    else:
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            calls.watch(die_at)
            sys.argv = ["transhash", *arguments]
            code = 1
            try:
                transhash()
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def kill_index(folder: Path, rounds: int, seed: int = 5, spawn: bool = False) -> Tally:
    run = new_run(folder)
    chance = random.Random(seed)
    arguments = ["index", str(run), "--texts", str(folder / "notes.csv")]
    arguments += ["--images", str(folder / "images")]
    acknowledged: set[str] = set()
    killed = finished = 0
    duration, calls = 1.0, writing_calls()
    steps = 0  # calls of the last round that finished
    for number in range(rounds):
        texts = write_sources(folder, number)
        finish = number % 5 == 0
        die_at = chance.randrange(1, steps) if number % 2 and not (spawn or finish) else 0
        seconds = None if finish or die_at else chance.uniform(0, duration * 1.2)
        start = time.perf_counter()
        code = run_command(arguments, seconds, die_at, spawn, calls)
        if code is None:
            killed += 1
        else:
            assert code == 0, f"round {number}: the command failed"
            duration = time.perf_counter() - start
            finished += 1
            steps = calls.count
            acknowledged = set(texts)
            assert findable(run) == texts, f"round {number}: not the items of the sources"
        if acknowledged:
            missing = acknowledged - findable(run).keys()
            assert not missing, f"round {number}: readers miss {len(missing)} texts"
        if (run / "catalog.sqlite").exists():
            assert is_consistent(run), f"round {number}: catalog and index differ after a writer"
            assert verify_run(run) == [], f"round {number}: {verify_run(run)}"
            assert not acknowledged - findable(run).keys()
    assert run_command(arguments, None, 0, spawn, calls) == 0
    assert findable(run) == texts
    assert len(list((folder / "images").iterdir())) == IMAGES
    return Tally(rounds, killed, finished)


def kill_encode(folder: Path, rounds: int, seed: int = 5, spawn: bool = False) -> Tally:
    run = new_run(folder)
    chance = random.Random(seed)
    write_sources(folder, 0)
    texts = read_texts(folder / "notes.csv")
    expected = Encoder.load(run).encode_texts(texts)
    killed = finished = 0
    duration, calls = 1.0, writing_calls()
    steps = 0
    for number in range(rounds):
        out = folder / f"codes-{finished}"
        arguments = ["encode", str(run), "--texts", str(folder / "notes.csv"), "--out", str(out)]
        arguments += ["--shard-size", "100"]
        before = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
        finish = number % 5 == 0
        die_at = chance.randrange(1, steps // 2) if number % 2 and not (spawn or finish) else 0
        seconds = None if finish or die_at else chance.uniform(0, duration)
        start = time.perf_counter()
        code = run_command(arguments, seconds, die_at, spawn, calls)
        after = {path: path.stat().st_mtime_ns for path in before}
        assert after == before, f"round {number}: a finished shard was written again"
        if code is None:
            killed += 1
            continue
        assert code == 0, f"round {number}: the command failed"
        duration = time.perf_counter() - start
        finished += 1
        steps = max(steps, calls.count)  # a resumed command makes fewer
        job = read_job(out, run)
        assert all(shard_path(out, shard).exists() for shard in range(job.shards))
        parts = list(read_shards(out))
        assert [name for part in parts for name in part.ids] == list(texts.ids)
        assert Codes.concatenate(part.codes for part in parts) == expected
    return Tally(rounds, killed, finished)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--command", choices=["index", "encode"], default="index")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--spawn", action="store_true")
    options = parser.parse_args()
    kill = {"index": kill_index, "encode": kill_encode}[options.command]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRANSHASH_CACHE"] = f"{folder}/cache"
        print(kill(Path(folder), options.rounds, options.seed, options.spawn))


if __name__ == "__main__":
    main()
