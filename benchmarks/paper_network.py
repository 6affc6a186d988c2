"""Choose the settings of the paper's networks on held-out auxiliary data.

    python benchmarks/paper_network.py FOLDER --splits 0 1 2 --jobs 2

For THN (as printed), learning rate and λ on a grid, as the paper chooses them; for THN (paper's
network), logit scale and λ. Then the steps are doubled until MAP on held-out auxiliary items stops
rising, or to 16,000. µ is 1: held-out auxiliary items cannot tell what alignment with the target is
worth. Prints held-out MAP, by which settings are chosen, and next to it MAP of the target (image ->
text / text -> image), which is not used, and the number of distinct codes in the database.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import DIRECTIONS, chances, maps

from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.base import Setting
from transhash.hashers.tuning import held_out_map
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import SplitData, build_split, load_benchmark_features

RATES = tuple(10 ** (exponent / 2) for exponent in range(-8, -1))  # √10 apart, as in the paper
QUANTIZATIONS = (0.0, 1e-4, 1e-2)  # λ
GRIDS: dict[str, list[Setting]] = {
    "THN-paper": [
        {"learning_rate": rate, "quantization_weight": weight}
        for rate, weight in product(RATES, QUANTIZATIONS)
    ],
    "THN-paper-network": [
        {"logit_scale": scale, "quantization_weight": weight}
        for scale, weight in product((None, 0.3, 1.0), (1e-4, 1e-3, 1e-2))
    ],
}
FIXED: Setting = {"alignment_weight": 1.0}
FIRST_STEPS, MAX_STEPS = 1000, 16_000
MIN_GAIN = 0.005  # of held-out MAP, for which twice the steps are worth it

Measure = Callable[[list[tuple[str, Setting]]], Iterable[list[list[float]]]]
_splits: dict[int, SplitData] = {}  # of a worker process


def measure(split: SplitData, method: str, bits: int, seed: int, settings: Setting) -> list[float]:
    """Return held-out MAP, MAP of both directions, distinct image and text codes, chance."""
    hasher = make_hasher(method, bits=bits, seed=seed, **settings).fit(split.training)
    directions = build_directions(hasher, split.test)
    scores = score_directions(directions, 1)
    codes = [directions[direction].database.distinct() for direction in reversed(DIRECTIONS)]
    held_out = float(np.mean(held_out_map(hasher, split.held_out)))
    return [held_out, *maps(scores), *codes, *chances(scores)]


def choose(method: str, run: Measure) -> Iterable[tuple[Setting, list[list[float]]]]:
    """Yield settings with the values of every split, the chosen ones last."""
    grid = [{**FIXED, **setting, "steps": FIRST_STEPS} for setting in GRIDS[method]]
    tried = list(zip(grid, run([(method, setting) for setting in grid]), strict=True))
    best, best_values = max(tried, key=lambda item: _held_out(item[1]))
    yield from (item for item in tried if item[0] is not best)
    while best["steps"] < MAX_STEPS:
        longer = {**best, "steps": 2 * best["steps"]}
        (values,) = run([(method, longer)])
        if _held_out(values) < _held_out(best_values) + MIN_GAIN:
            yield longer, values
            break
        yield best, best_values
        best, best_values = longer, values
    yield best, best_values


def _held_out(values: list[list[float]]) -> float:
    return float(np.mean(values, axis=0)[0])


def _init_worker(splits: dict[int, SplitData]) -> None:
    torch.set_num_threads(1)
    _splits.update(splits)


def _measure_split(method: str, bits: int, seed: int, settings: Setting) -> list[float]:
    return measure(_splits[seed], method, bits, seed, settings)


def row(settings: Setting, values: list[list[float]]) -> str:
    """Return a row of the table."""
    text = ", ".join(f"{name} = {value:g}" for name, value in settings.items() if value is not None)
    mean, deviation = np.mean(values, axis=0), np.std(values, axis=0, ddof=min(1, len(values) - 1))
    held_out, forward, backward = (f"{m:.3f} ± {d:.3f}" for m, d in zip(mean[:3], deviation))
    return f"| {text} | {held_out} | {forward} / {backward} | {mean[3]:.0f}, {mean[4]:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", choices=GRIDS, default=list(GRIDS))
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="output file for the scores of every split")
    options = parser.parse_args()
    backbone = EfficientNetLite0(options.device)
    benchmark, _ = load_benchmark_features(options.folder, backbone, track=progress_bar)
    splits = {seed: build_split(benchmark, seed) for seed in options.splits}
    records: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, _init_worker, (splits,)) as pool:

        def run(fits: list[tuple[str, Setting]]) -> Iterable[list[list[float]]]:
            futures = [
                [
                    pool.submit(
                        _measure_split, method, options.bits, seed,
                        {**settings, "device": options.device},
                    )
                    for seed in splits
                ]
                for method, settings in fits
            ]  # fmt: skip
            return [
                [future.result() for future in group] for group in progress_bar(futures, "fits")
            ]

        for method in options.methods:
            print(f"\n| {method} | held-out | I → T / T → I | distinct image, text codes |")
            print("|---|---|---|---|")
            for settings, values in choose(method, run):
                print(row(settings, values), flush=True)
                records.append({"method": method, "settings": settings, "values": values})
                if options.json:
                    options.json.write_text(json.dumps(records))
            chance = np.mean([value[5:] for value in values], axis=0)
            print(f"chosen: the last row; chance {chance[0]:.3f} / {chance[1]:.3f}")


if __name__ == "__main__":
    main()
