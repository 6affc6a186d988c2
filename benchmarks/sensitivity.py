"""Measure how sensitive THN is to its settings, one at a time.

    python benchmarks/sensitivity.py FOLDER --supervision labels pairs --out runs/sensitivity

MAP of the target at 32 bits, image -> text / text -> image, mean and deviation over splits, and the
difference to the default setting in points with 95% intervals, corrected for overlapping splits.
Nothing is chosen by it. Fits in the output folder are not computed again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import chances, interval_cell, maps, mean_cell, test_ratios

from transhash.data.benchmark import Benchmark, Supervision
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import build_split, load_benchmark_features

# By setting: the symbol, the default and the other values.
GRID: dict[str, tuple[str, float, tuple[float, ...]]] = {
    "quantization_weight": ("λ", 1e-3, (0.0, 1e-4, 1e-2, 1e-1)),
    "alignment_weight": ("µ", 0.3, (0.0, 0.1, 1.0, 3.0)),
    "pseudo_label_weight": ("ν", 1.0, (0.0, 0.3, 3.0)),
    "matching_temperature": ("τ", 0.05, (0.0125, 0.025, 0.1, 0.2)),
    "target_centering": ("κ", 0.5, (0.0, 0.25, 0.75, 1.0)),
    "matching_rounds": ("rounds", 4, (1, 2, 8)),
    "ridge": ("ridge", 0.05, (0.005, 0.0125, 0.2, 0.8)),
}


class Fit(NamedTuple):
    """One fit; setting and value are empty for the defaults."""

    supervision: Supervision
    split: int
    setting: str = ""
    value: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.supervision}|{self.split}|{self.setting}|{self.value:g}"


_benchmark: list[Benchmark] = []  # of a worker


def _init_worker(benchmark: Benchmark) -> None:
    torch.set_num_threads(1)
    _benchmark.append(benchmark)


def compute(fit: Fit) -> dict[str, list[float]]:
    data = build_split(replace(_benchmark[0], supervision=fit.supervision), fit.split)
    changed: dict[str, Any] = {fit.setting: fit.value} if fit.setting else {}
    hasher = make_hasher("THN", bits=32, seed=fit.split, **changed).fit(data.training)
    scores = score_directions(build_directions(hasher, data.test), 1)
    return {"map": maps(scores), "chance": chances(scores), "ratios": test_ratios(data.test)}


def print_table(
    supervision: Supervision, splits: list[int], results: dict[str, dict[str, list[float]]]
) -> None:
    def rows(setting: str = "", value: float = 0.0, name: str = "map") -> list[list[float]]:
        return [results[Fit(supervision, split, setting, value).key][name] for split in splits]

    ratios = np.mean(rows(name="ratios"), axis=0)
    print(f"\n| {supervision} | value | I → T / T → I | minus the default, points |")
    print("|---|---|---|---|")
    print(f"| chance | | {mean_cell(rows(name='chance'))} | |")
    print(f"| defaults | | {mean_cell(rows())} | |")
    for setting, (symbol, _, values) in GRID.items():
        for value in values:
            gains = 100 * (np.array(rows(setting, value)) - np.array(rows()))
            cells = [interval_cell(g, ratio) for g, ratio in zip(gains.T, ratios, strict=True)]
            row = symbol, f"{value:g}", mean_cell(rows(setting, value)), " / ".join(cells)
            print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--supervision", nargs="+", choices=("labels", "pairs"), default=["labels"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "sensitivity.json"
    results: dict[str, dict[str, list[float]]] = (
        json.loads(path.read_text()) if path.exists() else {}
    )
    changes = [("", 0.0), *((s, v) for s, (_, _, values) in GRID.items() for v in values)]
    fits = [
        Fit(supervision, split, setting, value)
        for supervision, split, (setting, value) in product(
            options.supervision, options.splits, changes
        )
    ]
    todo = [fit for fit in fits if fit.key not in results]
    benchmark, _ = load_benchmark_features(
        options.folder, image_features("efficientnet-lite0"), track=progress_bar
    )
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, _init_worker, (benchmark,)) as pool:
        futures = {pool.submit(compute, fit): fit for fit in todo}
        for future in progress_bar(as_completed(futures), "fits", total=len(futures)):
            results[futures[future].key] = future.result()
            path.write_text(json.dumps(results, indent=1))
    for supervision in options.supervision:
        print_table(supervision, options.splits, results)


if __name__ == "__main__":
    main()
