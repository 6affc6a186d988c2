"""Measure THN-paper over λ, µ and the learning rate.

    python benchmarks/paper_sweep.py FOLDER --splits 0 1 2 --jobs 2

For each setting: MAP on held-out auxiliary items, MAP of the target image -> text / text -> image,
and the number of distinct codes in the database. The paper chooses λ and the learning rate by
cross-validation, which corresponds to the first row: the best held-out MAP.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from common import DIRECTIONS, chances, maps

from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.tuning import held_out_map
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import SplitData, build_split, load_benchmark_features

RATES = (1e-4, 1e-3, 1e-2, 1e-1)
QUANTIZATIONS = (0.0, 1e-4, 1e-2, 1.0)  # λ
ALIGNMENTS = (0.0, 1.0)  # µ

_splits: dict[int, SplitData] = {}  # of a worker process


def _init_worker(splits: dict[int, SplitData]) -> None:
    _splits.update(splits)


def measure(setting: tuple[float, float, float], seed: int, bits: int) -> list[float]:
    """Return held-out MAP, MAP of both directions, distinct image and text codes, chance."""
    rate, lam, mu = setting
    split = _splits[seed]
    hasher = make_hasher(
        "THN-paper", bits=bits, seed=seed, learning_rate=rate, quantization_weight=lam,
        alignment_weight=mu,
    ).fit(split.training)  # fmt: skip
    directions = build_directions(hasher, split.test)
    scores = score_directions(directions, 1)
    codes = [directions[direction].database.distinct() for direction in reversed(DIRECTIONS)]
    held_out = float(np.mean(held_out_map(hasher, split.held_out)))
    return [held_out, *maps(scores), *codes, *chances(scores)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="device of the image features")
    parser.add_argument("--json", type=Path, help="output file for the scores of every split")
    options = parser.parse_args()
    backbone = EfficientNetLite0(options.device)
    benchmark, _ = load_benchmark_features(options.folder, backbone, track=progress_bar)
    splits = {seed: build_split(benchmark, seed) for seed in options.splits}
    results: dict[tuple[float, ...], list[list[float]]] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, _init_worker, (splits,)) as pool:
        futures = [
            (setting, pool.submit(measure, setting, seed, options.bits))
            for setting in product(RATES, QUANTIZATIONS, ALIGNMENTS)
            for seed in splits
        ]
        for setting, future in progress_bar(futures, "fits"):
            results.setdefault(setting, []).append(future.result())
            if options.json:
                rows = [[*key, values] for key, values in results.items()]
                options.json.write_text(json.dumps(rows))
    print("| learning rate | λ | µ | held-out | I → T / T → I | distinct image, text codes |")
    print("|---|---|---|---|---|---|")
    best_first = sorted(results.items(), key=lambda item: -np.mean(item[1], axis=0)[0])
    for (rate, lam, mu), values in best_first:
        mean = np.mean(values, axis=0)
        deviation = np.std(values, axis=0, ddof=min(1, len(values) - 1))
        print(
            f"| {rate:g} | {lam:g} | {mu:g} | {mean[0]:.3f} ± {deviation[0]:.3f} "
            f"| {mean[1]:.3f} ± {deviation[1]:.3f} / {mean[2]:.3f} ± {deviation[2]:.3f} "
            f"| {mean[3]:.0f}, {mean[4]:.0f} |"
        )
    chance = np.mean([row[5:] for values in results.values() for row in values], axis=0)
    print(f"chance {chance[0]:.3f} / {chance[1]:.3f}")


if __name__ == "__main__":
    main()
