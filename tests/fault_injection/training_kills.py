"""Kills `transhash fit` and `transhash experiment`; the same command again ends as if undisturbed.

    python tests/fault_injection/training_kills.py --rounds 30 --command fit

Each round kills the command up to three times, by the clock or at a call that changes the disk,
and then lets it finish. A folder with a config.json must hold a whole run at any time; in the end
the model must be the same, bit by bit, and every step or cell be noted once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dying import Calls
from training.feature_files import write_features

from experiments import tiny
from search.forked import forked
from transhash.datasets.synthetic import make_synthetic
from transhash.experiments import read_results
from transhash.model.encoder import Encoder

STEPS = 120
FIT = {
    "thn": ("--set", f"steps={STEPS}", "--set", "batch_size=32", "--set", "target_batch=16"),
    "qch": (),
    "dcmh": ("--set", "epochs=3"),
}


class Tally(NamedTuple):
    rounds: int
    killed: int
    resumed: int  # rounds in which a checkpoint or a finished cell was there to go on from


def disk_calls() -> Calls:
    return Calls([(os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")])


class Whole(NamedTuple):
    """What a command took that nobody disturbed."""

    seconds: float
    calls: int


def undisturbed(*arguments: object, **command: Any) -> Whole:
    calls = disk_calls()
    began = time.perf_counter()
    code, said = forked(*arguments, prepare=calls.watch, **command)
    assert code == 0, said
    return Whole(time.perf_counter() - began, calls.count)


def one_attempt(
    arguments: tuple[object, ...], command: dict[str, Any], chance: random.Random,
    whole: Whole, first: bool,
) -> int:  # fmt: skip
    """The exit code of a command that is killed on the way; the first one always is."""
    if first or chance.random() < 0.5:
        count = chance.randrange(1, whole.calls + 1)
        return forked(*arguments, prepare=lambda: disk_calls().watch(count), **command)[0]
    return forked(*arguments, kill_after=chance.uniform(0, whole.seconds), **command)[0]


def kill_fit(folder: Path, rounds: int, seed: int = 5) -> Tally:
    options = write_features(folder / "data")
    chance = random.Random(seed)
    killed = resumed = 0
    expected, whole = {}, {}
    for method, more in FIT.items():
        out = folder / f"undisturbed-{method}"
        for _ in range(2):  # the first one warms up
            shutil.rmtree(out, ignore_errors=True)
            whole[method] = undisturbed("fit", method, *options, *more, "--out", out)
        expected[method] = (out / "hasher.safetensors").read_bytes()
    for number in range(rounds):
        method = list(FIT)[number % len(FIT)] if number % 2 else "thn"
        out = folder / f"run-{number}"
        arguments = ("fit", method, *options, *FIT[method], "--out", out)
        for attempt in range(chance.randrange(1, 4)):
            code = one_attempt(arguments, {}, chance, whole[method], attempt == 0)
            assert code in (0, -signal.SIGKILL), f"round {number}: exit code {code}"
            killed += code != 0
            if (out / "config.json").exists():
                Encoder.load(out)
                assert (out / "hasher.safetensors").read_bytes() == expected[method]
        resumed += (out / "checkpoint.safetensors").exists()
        code, said = forked(*arguments)
        assert code == 0, f"round {number}: {said}"
        Encoder.load(out)
        assert (out / "hasher.safetensors").read_bytes() == expected[method], f"round {number}"
        left = {path.name for path in out.iterdir()}
        assert left <= {
            "config.json", "diagnostics.json", "hasher.safetensors", "metrics.jsonl", "report.json",
        }, f"round {number}: {left}"  # fmt: skip
        if method == "thn":
            lines = (out / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))
        shutil.rmtree(out)
    return Tally(rounds, killed, resumed)


def results(out: Path) -> dict[tuple[str, int, int], Any]:
    """The scores of every cell; times and places differ from run to run."""
    rows = read_results(out)
    cells = {
        (row["method"], row["bits"], row["seed"]): (row["image_to_text"], row["text_to_image"])
        for row in rows
    }
    assert len(cells) == len(rows), "a cell stands there twice"
    return cells


def kill_experiment(folder: Path, rounds: int, seed: int = 5) -> Tally:
    data = make_synthetic(folder / "data", per_class=6)
    plan = folder / "plan.toml"
    plan.write_text(tiny.PLAN)
    chance = random.Random(seed)
    killed = resumed = 0
    whole = undisturbed(command=lambda: tiny.run(plan, data, folder / "undisturbed"))
    expected = results(folder / "undisturbed")
    for number in range(rounds):
        out = folder / f"out-{number}"
        command = {"command": lambda out=out: tiny.run(plan, data, out)}
        for attempt in range(chance.randrange(1, 4)):
            before = results(out) if (out / "results.jsonl").exists() else {}
            code = one_attempt((), command, chance, whole, attempt == 0)
            assert code in (0, -signal.SIGKILL), f"round {number}: exit code {code}"
            killed += code != 0
            if before:
                kept = results(out)
                assert all(kept.get(cell) == row for cell, row in before.items())
                resumed += 1
        code, said = forked(**command)
        assert code == 0, f"round {number}: {said}"
        assert results(out) == expected, f"round {number}"
        shutil.rmtree(out)
    return Tally(rounds, killed, resumed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--command", choices=["fit", "experiment"], default="fit")
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    kill = {"fit": kill_fit, "experiment": kill_experiment}[options.command]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRANSHASH_CACHE"] = f"{folder}/cache"
        print(kill(Path(folder), options.rounds, options.seed))


if __name__ == "__main__":
    main()
