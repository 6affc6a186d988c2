"""Kill `transhash fit` and `transhash experiment`; resumed, they must give the same results.

    python tests/fault_injection/training_kills.py --rounds 30 --command fit

With --command fine-tune, the image backbone is trained. Most kills come after its first checkpoint,
and every second one that is left is damaged (a flipped bit, or its end is missing): training must
say so and start again from step 0.

Each round kills the command up to three times, after a random time or at a call that changes the
disk, and then lets it finish. A folder with a config.json must be a complete run at any time. In
the end the model must be the same, bit by bit, and every step or cell must be recorded once.
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from dying import Calls

from experiments import tiny
from search.forked import forked
from training.feature_files import write_features
from transhash.datasets.synthetic import make_synthetic
from transhash.experiments import read_results
from transhash.features import BACKBONE_FILE
from transhash.hashers.training_loop import TrainingLog
from transhash.model.encoder import Encoder

STEPS = 120
FIT = {
    "thn": ("--set", f"steps={STEPS}", "--set", "batch_size=32", "--set", "target_batch_size=16"),
    "qch": (),
    "dcmh": ("--set", "epochs=3"),
}


class Tally(NamedTuple):
    rounds: int
    killed: int
    resumed: int  # rounds that resumed from a checkpoint or a finished cell
    damaged: int = 0  # rounds whose checkpoint was damaged


def disk_calls() -> Calls:
    return Calls([(os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")])


class Cost(NamedTuple):
    """Duration and number of calls of a command that was not killed."""

    seconds: float
    calls: int


def run_uninterrupted(*arguments: object, **command: Any) -> Cost:
    calls = disk_calls()
    start = time.perf_counter()
    code, message = forked(*arguments, prepare=calls.watch, **command)
    assert code == 0, message
    return Cost(time.perf_counter() - start, calls.count)


def run_killed(
    arguments: tuple[object, ...], command: dict[str, Any], chance: random.Random,
    cost: Cost, first: bool,
) -> int:  # fmt: skip
    """Return the exit code of a command that may be killed; the first one always is."""
    if first or chance.random() < 0.5:
        count = chance.randrange(1, cost.calls + 1)
        return forked(*arguments, prepare=lambda: disk_calls().watch(count), **command)[0]
    return forked(*arguments, kill_after=chance.uniform(0, cost.seconds), **command)[0]


def kill_fit(folder: Path, rounds: int, seed: int = 5) -> Tally:
    options = write_features(folder / "data")
    chance = random.Random(seed)
    killed = resumed = 0
    expected, costs = {}, {}
    for method, settings in FIT.items():
        out = folder / f"uninterrupted-{method}"
        for _ in range(2):  # the first is a warm-up
            shutil.rmtree(out, ignore_errors=True)
            costs[method] = run_uninterrupted("fit", method, *options, *settings, "--out", out)
        expected[method] = (out / "hasher.safetensors").read_bytes()
    for number in range(rounds):
        method = list(FIT)[number % len(FIT)] if number % 2 else "thn"
        out = folder / f"run-{number}"
        arguments = ("fit", method, *options, *FIT[method], "--out", out)
        for attempt in range(chance.randrange(1, 4)):
            code = run_killed(arguments, {}, chance, costs[method], attempt == 0)
            assert code in (0, -signal.SIGKILL), f"round {number}: exit code {code}"
            killed += code != 0
            if (out / "config.json").exists():
                Encoder.load(out)
                assert (out / "hasher.safetensors").read_bytes() == expected[method]
        resumed += (out / "checkpoint.safetensors").exists()
        code, message = forked(*arguments)
        assert code == 0, f"round {number}: {message}"
        Encoder.load(out)
        assert (out / "hasher.safetensors").read_bytes() == expected[method], f"round {number}"
        files = {path.name for path in out.iterdir()}
        assert files <= {
            "config.json", "diagnostics.json", "hasher.safetensors", "metrics.jsonl", "report.json",
        }, f"round {number}: {files}"  # fmt: skip
        if method == "thn":
            lines = (out / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))
        shutil.rmtree(out)
    return Tally(rounds, killed, resumed)


def damage(path: Path, chance: random.Random) -> None:
    """Flip a bit of a file, or cut off its end."""
    content = bytearray(path.read_bytes())
    if chance.random() < 0.5:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    else:
        del content[chance.randrange(len(content)) :]
    path.write_bytes(content)


def kill_fine_tuning(folder: Path, rounds: int, seed: int = 5) -> Tally:
    data = make_synthetic(folder / "data", per_class=2)
    options: tuple[object, ...] = (
        "--auxiliary", data / "auxiliary.tsv", "--images", data / "images.tsv",
        "--texts", data / "texts.tsv", "--bits", 16, "--no-validate", "--fine-tune",
        "--fine-tune-blocks", 1,
    )  # fmt: skip
    for setting in ("steps=30", "batch_size=4", "target_batch_size=4", "cached_views=1"):
        options = (*options, "--set", f"fine_tune.{setting}")
    chance, killed, resumed, damaged = random.Random(seed), 0, 0, 0
    out = folder / "uninterrupted"
    for _ in range(2):  # the first is a warm-up
        shutil.rmtree(out, ignore_errors=True)
        cost = run_uninterrupted("fit", "cvh", *options, "--out", out, seconds=3600)
    names = ("backbone.safetensors", "hasher.safetensors")
    expected = [(out / name).read_bytes() for name in names]
    for number in range(rounds):
        out = folder / f"run-{number}"
        arguments = ("fit", "cvh", *options, "--out", out)
        # The first two rounds leave a checkpoint for certain: one is resumed, one is damaged.
        for attempt in range(1 if number < 2 else chance.randrange(1, 3)):
            if attempt == 0 and number % 3 < 2:
                steps = Calls([(TrainingLog, "write")])  # once per step, counted twice
                call = chance.randrange(2 * 10, 2 * 30) + 1  # after the first checkpoint
                code = forked(*arguments, prepare=partial(steps.watch, call), seconds=3600)[0]
            else:
                code = run_killed(arguments, {"seconds": 3600}, chance, cost, attempt == 0)
            assert code in (0, -signal.SIGKILL), f"round {number}: exit code {code}"
            killed += code != 0
        checkpoint = out / "fine-tuning" / "checkpoint.safetensors"
        # After the last step the backbone is saved first, and the checkpoint is not read again.
        is_left = checkpoint.exists() and not (out / "fine-tuning" / BACKBONE_FILE).exists()
        is_damaged = is_left and number % 2 == 1
        resumed += is_left and not is_damaged
        damaged += is_damaged
        if is_damaged:
            damage(checkpoint, chance)
        code, message = forked(*arguments, seconds=3600)
        assert code == 0, f"round {number}: {message}"
        assert not is_damaged or "starts from step 0" in message, f"round {number}: {message}"
        Encoder.load(out)
        found = [(out / name).read_bytes() for name in names]
        assert found == expected, f"round {number}: another result"
        shutil.rmtree(out)
    return Tally(rounds, killed, resumed, damaged)


def results(out: Path) -> dict[tuple[str, int, int], Any]:
    """Return the scores of every cell; times and paths differ between runs."""
    rows = read_results(out)
    cells = {
        (row["method"], row["bits"], row["seed"]): (row["image_to_text"], row["text_to_image"])
        for row in rows
    }
    assert len(cells) == len(rows), "a cell is recorded twice"
    return cells


def kill_experiment(folder: Path, rounds: int, seed: int = 5) -> Tally:
    data = make_synthetic(folder / "data", per_class=6)
    plan = folder / "plan.toml"
    plan.write_text(tiny.PLAN)
    chance = random.Random(seed)
    killed = resumed = 0
    cost = run_uninterrupted(command=lambda: tiny.run(plan, data, folder / "uninterrupted"))
    expected = results(folder / "uninterrupted")
    for number in range(rounds):
        out = folder / f"out-{number}"
        command = {"command": lambda out=out: tiny.run(plan, data, out)}
        for attempt in range(chance.randrange(1, 4)):
            before = results(out) if (out / "results.jsonl").exists() else {}
            code = run_killed((), command, chance, cost, attempt == 0)
            assert code in (0, -signal.SIGKILL), f"round {number}: exit code {code}"
            killed += code != 0
            if before:
                after = results(out)
                assert all(after.get(cell) == row for cell, row in before.items())
                resumed += 1
        code, message = forked(**command)
        assert code == 0, f"round {number}: {message}"
        assert results(out) == expected, f"round {number}"
        shutil.rmtree(out)
    return Tally(rounds, killed, resumed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--command", choices=["fit", "fine-tune", "experiment"], default="fit")
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    kill = {"fit": kill_fit, "fine-tune": kill_fine_tuning, "experiment": kill_experiment}[
        options.command
    ]
    torch.set_num_threads(1)  # a forked process has none of the other threads, and waits for them
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRANSHASH_CACHE"] = f"{folder}/cache"
        print(kill(Path(folder), options.rounds, options.seed))


if __name__ == "__main__":
    main()
