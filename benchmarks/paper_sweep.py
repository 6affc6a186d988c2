"""THN as printed, over λ, µ and the learning rate: does it learn anywhere?

    python benchmarks/paper_sweep.py FOLDER --splits 0 1 2 --jobs 2

For each setting MAP on held-out auxiliary items, MAP of the target image -> text / text -> image,
and the distinct codes of the database. The paper chooses λ and the learning rate by cross-
validation; its own rule here is the best mean on held-out items. Chance beside it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np

from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.tuning import held_out_map
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import SplitData, build_split, load_benchmark_features

RATES = (1e-4, 1e-3, 1e-2, 1e-1)
QUANTIZATIONS = (0.0, 1e-4, 1e-2, 1.0)  # λ
ALIGNMENTS = (0.0, 1.0)  # µ
WAYS = ("image_to_text", "text_to_image")


_tasks: dict[int, SplitData] = {}


def _start(tasks: dict[int, SplitData]) -> None:
    _tasks.update(tasks)


def scored(setting: tuple[float, float, float], seed: int, bits: int) -> list[float]:
    """Held-out MAP, MAP both ways, distinct codes of images and texts, chance both ways."""
    rate, lam, mu = setting
    task = _tasks[seed]
    hasher = make_hasher(
        "THN-paper",
        bits=bits,
        seed=seed,
        learning_rate=rate,
        quantization_weight=lam,
        alignment_weight=mu,
    )
    hasher.fit(task.training)
    directions = build_directions(hasher, task.test)
    scores = score_directions(directions, 1)
    codes = [directions[way].database.distinct() for way in reversed(WAYS)]
    held_out = float(np.mean(held_out_map(hasher, task.held_out)))
    chance = [scores[way].chance for way in WAYS]
    return [held_out, *(scores[way].map for way in WAYS), *codes, *chance]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="that computes image features")
    parser.add_argument("--json", type=Path, help="where every split's scores go")
    arguments = parser.parse_args()
    backbone = EfficientNetLite0(arguments.device)
    ready, _ = load_benchmark_features(arguments.folder, backbone, track=progress_bar)
    tasks = {seed: build_split(ready, seed) for seed in arguments.splits}
    found: dict[tuple[float, ...], list[list[float]]] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, spawn, _start, (tasks,)) as pool:
        waiting = [
            (setting, pool.submit(scored, setting, seed, arguments.bits))
            for setting in product(RATES, QUANTIZATIONS, ALIGNMENTS)
            for seed in tasks
        ]
        for setting, one in progress_bar(waiting, "fits"):
            found.setdefault(setting, []).append(one.result())
            if arguments.json:
                written = [[*key, rows] for key, rows in found.items()]
                arguments.json.write_text(json.dumps(written))
    print("| learning rate | λ | µ | held-out | I → T / T → I | distinct image, text codes |")
    print("|---|---|---|---|---|---|")
    for (rate, lam, mu), rows in sorted(found.items(), key=lambda one: -np.mean(one[1], axis=0)[0]):
        mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
        print(
            f"| {rate:g} | {lam:g} | {mu:g} | {mean[0]:.3f} ± {spread[0]:.3f} "
            f"| {mean[1]:.3f} ± {spread[1]:.3f} / {mean[2]:.3f} ± {spread[2]:.3f} "
            f"| {mean[3]:.0f}, {mean[4]:.0f} |"
        )
    chance = np.mean([row[5:] for rows in found.values() for row in rows], axis=0)
    print(f"chance {chance[0]:.3f} / {chance[1]:.3f}")


if __name__ == "__main__":
    main()
