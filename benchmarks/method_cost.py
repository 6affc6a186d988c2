"""Measure CPU time and memory of training each method, next to its MAP.

    OMP_NUM_THREADS=1 python benchmarks/method_cost.py FOLDER

Every fit is a process of its own with one thread. Memory is the peak of the process minus what it
has before the fit: libraries and features, which all methods share. 32 bits, labels.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from common import chances, maps, mean_cell

from transhash.data.benchmark import Benchmark
from transhash.features.images import image_features
from transhash.hashers.methods import make_method
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import build_split, load_benchmark_features

METHODS = ("kNN", "ridge", "CVH", "IMH", "QCH", "HTH", "DCMH", "QCH+target", "CCA+target",
           "THN-paper-network", "THN")  # fmt: skip


def peak_megabytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure(benchmark: Benchmark, name: str, bits: int, split: int) -> list[float]:
    """Return MAP and chance in both directions, CPU seconds and megabytes."""
    torch.set_num_threads(1)
    data = build_split(benchmark, split)
    method = make_method(name, bits=bits, seed=split)
    before, start = peak_megabytes(), time.process_time()
    method.fit(data.training)
    seconds, memory = time.process_time() - start, peak_megabytes() - before
    scores = score_directions(build_directions(method, data.test), 1)
    return [*maps(scores), *chances(scores), seconds, memory]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--splits", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--bits", type=int, default=32)
    options = parser.parse_args()
    benchmark, _ = load_benchmark_features(
        options.folder, image_features("efficientnet-lite0"), track=progress_bar
    )
    spawn = multiprocessing.get_context("spawn")
    print("| method | I → T / T → I | CPU seconds of training | MB |\n|---|---|---|---|")
    chance: list[list[float]] = []
    for name in options.methods:
        rows = []
        for split in options.splits:
            with ProcessPoolExecutor(1, spawn) as pool:  # peak memory starts anew
                rows.append(pool.submit(measure, benchmark, name, options.bits, split).result())
        table = np.array(rows)
        chance += table[:, 2:4].tolist()
        deviation = table.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(6)
        print(
            f"| {name} | {mean_cell(table[:, :2].tolist())} "
            f"| {table[:, 4].mean():.1f} ± {deviation[4]:.1f} "
            f"| {table[:, 5].mean():.0f} ± {deviation[5]:.0f} |",
            flush=True,
        )
    print(f"| chance | {mean_cell(chance)} | | |")


if __name__ == "__main__":
    main()
