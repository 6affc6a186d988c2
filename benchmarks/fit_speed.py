"""Time `transhash fit thn` next to busy loops, with default threads and with one forced thread.

    python benchmarks/fit_speed.py --busy 0 2 8    # also in a container of one CPU
    git worktree add ../before COMMIT && python benchmarks/fit_speed.py --checkout ../before
    OMP_NUM_THREADS=1 python benchmarks/fit_speed.py --optimizers

2,000 related pairs and 500 + 500 target items, arrays of 1,280 and 1,000 columns, 32 bits. Each
fit is a process of its own, in turn. Seconds include imports. With --checkout the same fit of
another checkout is timed as well. With --optimizers only the own optimizers are compared with
torch.optim: the CPU time and memory of imports and fit, and the codes, which must be equal.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TRANSHASH_THREADS": "1"}

# Fit the features of a folder, with torch.optim in place of the own optimizers if asked to.
PROGRAM = """
import hashlib, sys, time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
import numpy as np
import torch
from transhash.data.relation import SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.hashers.thn import thn

kind, folder = sys.argv[1], Path(sys.argv[2])
names = "auxiliary-images", "auxiliary-texts", "images", "texts"
x, y, target_x, target_y = (np.load(folder / f"{name}.npy") for name in names)
keys = [str(row) for row in range(len(x))]
training = TrainingSet(x, y, SparseRelation.from_pairs(keys, keys), target_x, target_y)
if kind == "torch.optim":
    thn.make_optimizer = lambda name, groups, momentum=0.9: (
        torch.optim.SGD(groups, momentum=momentum, foreach=True) if name == "sgd"
        else torch.optim.AdamW(groups, foreach=True)
    )
start = time.process_time()
hasher = thn.THN(bits=32).fit(training)
seconds = time.process_time() - start
digest = hashlib.sha256(hasher.encode_images(target_x).packed.tobytes()).hexdigest()
print(seconds, getrusage(RUSAGE_SELF).ru_maxrss / 1024, digest)
"""


def write_features(folder: Path, seed: int) -> None:
    """Write auxiliary and target features of 16 classes, with a shift between the domains."""
    rng = np.random.default_rng(seed)
    for modality, width in (("images", 1280), ("texts", 1000)):
        centers = rng.normal(size=(16, width))
        classes = np.random.default_rng(seed).integers(0, 16, 2500)
        rows = centers[classes] + 2 * rng.normal(size=(2500, width))
        np.save(folder / f"auxiliary-{modality}.npy", rows[:2000].astype(np.float32))
        np.save(folder / f"{modality}.npy", (rows[2000:] + 0.3).astype(np.float32))


def time_fit(folder: Path, source: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds of one fit by the package in `source`."""
    with tempfile.TemporaryDirectory() as out:
        command: list[str | Path] = [
            sys.executable, "-m", "transhash", "fit", "thn", "--bits", "32",
            "--auxiliary-images", folder / "auxiliary-images.npy",
            "--auxiliary-texts", folder / "auxiliary-texts.npy",
            "--images", folder / "images.npy", "--texts", folder / "texts.npy",
            _skip_validation(source), "--out", Path(out) / "run",
        ]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        path = {"PYTHONPATH": str(source / "src")}
        subprocess.run(
            command, env=os.environ | path | environment, check=True, capture_output=True
        )
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds, used


def compare_optimizers(repeats: int) -> None:
    """Fit with the own optimizers and with torch.optim in turn; print CPU time and memory."""
    rows: dict[str, list[tuple[float, float]]] = {"own": [], "torch.optim": []}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(repeats):
            write_features(Path(name), seed)
            digests = set()
            for kind, measured in rows.items():
                command = [sys.executable, "-c", PROGRAM, kind, name]
                output = subprocess.run(command, check=True, capture_output=True, text=True)
                seconds, megabytes, digest = output.stdout.split()
                measured.append((float(seconds), float(megabytes)))
                digests.add(digest)
            assert len(digests) == 1, "the codes differ"
    ratios = [other[0] / own[0] for own, other in zip(rows["own"], rows["torch.optim"])]
    for kind, measured in rows.items():
        seconds, megabytes = np.mean(measured, axis=0)
        print(f"{kind}: CPU {seconds:.2f} s, {megabytes:.0f} MB")
    print(
        f"torch.optim takes {mean(ratios):.2f} ± {stdev(ratios):.2f} times the CPU time; "
        f"equal codes in {repeats} of {repeats} fits"
    )


def _skip_validation(source: Path) -> str:
    text = "".join(path.read_text() for path in (source / "src/transhash/cli").glob("*.py"))
    return "--no-verdict" if "verdict" in text else "--no-validate"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--busy", type=int, nargs="*", default=[0], help="busy loops at the same time"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checkout", type=Path, help="another checkout to compare with")
    parser.add_argument("--optimizers", action="store_true", help="compare with torch.optim only")
    arguments = parser.parse_args()
    if arguments.optimizers:
        compare_optimizers(arguments.repeats)
        return
    here = Path(__file__).parents[1]
    cases = [("default threads", here, {}), ("one thread", here, ONE_THREAD)]
    if arguments.checkout:
        cases.append(("other checkout, default threads", arguments.checkout, {}))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for busy in arguments.busy:
            loops = [
                subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)
            ]
            try:
                times: dict[str, list[tuple[float, float]]] = {case[0]: [] for case in cases}
                for seed in range(arguments.repeats):
                    write_features(folder, seed)
                    for label, source, environment in cases:
                        times[label].append(time_fit(folder, source, environment))
            finally:
                for loop in loops:
                    loop.kill()
            for label, rows in times.items():
                walls, used = [wall for wall, _ in rows], median(cpu for _, cpu in rows)
                ratios = [wall / one for wall, (one, _) in zip(walls, times["one thread"])]
                spread = stdev(ratios) if len(ratios) > 1 else 0.0
                print(
                    f"{busy} busy loops, {label}: {median(walls):.1f} s ({min(walls):.1f} - "
                    f"{max(walls):.1f}), CPU {used:.1f} s, "
                    f"{mean(ratios):.2f} ± {spread:.2f} times one thread",
                    flush=True,
                )


if __name__ == "__main__":
    main()
