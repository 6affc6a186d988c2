"""Measure MAP against the number of target items and of auxiliary pairs.

    python benchmarks/curves.py FOLDER --jobs 2 --out runs/curves --figure docs/images/curves.svg
    python benchmarks/curves.py FOLDER --methods THN CCA+target QCH+target --out runs/curves ...
    python benchmarks/curves.py FOLDER --fine-tune --device cuda --jobs 12 --out runs/curves ...
    python benchmarks/curves.py FOLDER --fine-tune --features efficientnet-lite2 --targets all ...

32 bits, image -> text / text -> image, mean and deviation over (overlapping) splits, with frozen
features and, with --fine-tune, fine-tuned ones. Target items: that many images and as many texts
of the database, none of them a query, supervised by labels or by 2,000 pairs. Pairs: that many
pairs, with 500 + 500 target items. Points in the output folder are not computed again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import maps, mean_cell, save_pixels, with_features_of

from transhash.cli.fit import parse_settings
from transhash.data.benchmark import Benchmark, Supervision
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.fine_tune import require_backbone
from transhash.training.split_data import build_split, load_benchmark_features

TARGETS = ("0", "100", "500", "2000", "all")  # all: the entire database
PAIRS = (100, 200, 500, 1000, 2000)
DEFAULT_TARGETS, DEFAULT_AUXILIARY = 500, 2000
CURVES: dict[str, Supervision] = {
    "target items, labels": "labels",
    "pairs": "pairs",
    "target items, pairs": "pairs",
}


@dataclass(frozen=True)
class Point:
    """Training data of one fit."""

    supervision: Supervision
    auxiliary: int
    targets: int
    fine_tuned: bool
    split: int
    method: str = "THN"


class WorkerData(NamedTuple):
    benchmark: Benchmark
    pixels: list[Path]  # of auxiliary and target images, only for fine-tuning
    features: str
    device: str
    settings: dict[str, Any]  # of fine-tuning


_worker: list[WorkerData] = []


def _init_worker(data: WorkerData) -> None:
    torch.set_num_threads(1)
    _worker.append(data)


def compute(point: Point) -> list[float]:
    benchmark, files, name, device, settings = _worker[0]
    sizes = replace(benchmark.sizes, target=point.targets, auxiliary=point.auxiliary)
    benchmark = replace(benchmark, supervision=point.supervision, sizes=sizes)
    rows = benchmark.split(point.split)
    for queries, target in (
        (rows.query_images, rows.target_images), (rows.query_texts, rows.target_texts),
    ):  # fmt: skip
        assert not np.intersect1d(queries, target).size
    data = build_split(benchmark, point.split)
    hasher = make_hasher(point.method, bits=32, seed=point.split).fit(data.training)
    if point.fine_tuned:
        auxiliary, target = (np.load(file, mmap_mode="r") for file in files)
        features = fine_tune(
            require_backbone(image_features(name, device)), auxiliary[rows.auxiliary_images],
            target[rows.target_images], data.training, hasher,
            FineTuning(seed=point.split, use_target=point.targets > 0, **settings),
        )  # fmt: skip
        data = with_features_of(data, rows, features, files)
        hasher = make_hasher(point.method, bits=32, seed=point.split).fit(data.training)
    return maps(score_directions(build_directions(hasher, data.test), 1))


def make_points(
    curve: str,
    fine_tuned: bool,
    targets: Sequence[int],
    splits: Sequence[int],
    method: str = "THN",
    pairs: Sequence[int] = PAIRS,
) -> list[Point]:
    """Return the points of a curve; all use the same queries and databases."""
    if curve == "pairs":
        counts = [(count, DEFAULT_TARGETS) for count in pairs]
    else:
        counts = [(DEFAULT_AUXILIARY, count) for count in targets]
    return [Point(CURVES[curve], *count, fine_tuned, s, method) for count in counts for s in splits]


def by_count(
    curve: str, points: list[Point], results: dict[Point, list[float]]
) -> dict[int, list[list[float]]]:
    """Return MAP of each split by the number on the horizontal axis."""
    rows: dict[int, list[list[float]]] = {}
    for point in points:
        count = point.auxiliary if curve == "pairs" else point.targets
        rows.setdefault(count, []).append(results[point])
    return rows


def draw(
    results: dict[Point, list[float]],
    features: dict[str, bool],
    path: Path,
    targets: Sequence[int],
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "curves", "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    splits = sorted({point.split for point in results if point.method == "THN"})
    only_frozen = list(features) == ["frozen"]
    lines = (
        (0, "target items, labels", "labels", "#d1214f", "o"),
        (0, "target items, pairs", "2,000 pairs", "#0f766e", "s"),
        (1, "pairs", "500 + 500 target items", "#0f766e", "s"),
    )
    for column, curve, label, color, marker in lines:
        for name, fine_tuned in features.items():
            points = make_points(curve, fine_tuned, targets, splits)
            if not all(point in results for point in points):
                continue
            rows = by_count(curve, points, results)
            values = np.array([np.mean(row, axis=1) for row in rows.values()])
            axes[column].errorbar(
                range(len(rows)), values.mean(axis=1), values.std(axis=1, ddof=1), color=color,
                marker=marker, capsize=3, linestyle="-" if fine_tuned or only_frozen else "--",
                label=label if only_frozen else f"{label}, {name}",
            )  # fmt: skip
            axes[column].set_xticks(range(len(rows)), [f"{count:,}" for count in rows])
    axes[0].set(
        xlabel="unlabeled target images, and as many texts", ylabel="MAP, mean of both directions"
    )
    axes[1].set(xlabel="auxiliary pairs")
    for axis in axes:
        axis.grid(axis="y", color="#e4e4e0")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, handlelength=4)  # long enough for dashes
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


class SavedPoints:
    """Points in a file, written as they are computed."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / "curves.json"
        self.results: dict[Point, list[float]] = {}
        if self.path.exists():
            rows: list[dict[str, Any]] = json.loads(self.path.read_text())
            self.results = {Point(**row["point"]): row["map"] for row in rows}

    def add(self, point: Point, both: list[float]) -> None:
        self.results[point] = both
        rows = [{"point": asdict(key), "map": value} for key, value in self.results.items()]
        self.path.write_text(json.dumps(rows, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--targets", nargs="+", default=TARGETS, help="numbers of items, or all")
    parser.add_argument("--pairs", type=int, nargs="+", default=PAIRS, help="numbers of pairs")
    parser.add_argument("--methods", nargs="+", default=["THN"])
    parser.add_argument("--features", default="efficientnet-lite0", help="image features")
    parser.add_argument("--fine-tune", action="store_true", help="add fine-tuned points")
    parser.add_argument("--only-fine-tuned", action="store_true", help="omit frozen points")
    parser.add_argument("--set", nargs="*", default=[], help="settings of fine-tuning")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    backbone = image_features(options.features, options.device)
    benchmark, _ = load_benchmark_features(options.folder, backbone, track=progress_bar)
    split = benchmark.split(options.splits[0])
    database = min(len(split.database_images), len(split.database_texts))
    targets = [database if count == "all" else int(count) for count in options.targets]
    features = {} if options.only_fine_tuned else {"frozen": False}
    if options.fine_tune or options.only_fine_tuned:
        features["fine-tuned"] = True
    saved = SavedPoints(options.out)
    points = dict.fromkeys(
        point
        for curve in options.curves
        for fine_tuned in features.values()
        for method in options.methods
        for point in make_points(curve, fine_tuned, targets, options.splits, method, options.pairs)
    )
    todo = [point for point in points if point not in saved.results]
    with tempfile.TemporaryDirectory() as scratch:
        files: list[Path] = []
        if any(point.fine_tuned for point in todo):
            size = require_backbone(backbone).size
            files = save_pixels(benchmark, size, options.device, Path(scratch))
        spawn = multiprocessing.get_context("spawn")
        settings = parse_settings(options.set)
        data = WorkerData(benchmark, files, options.features, options.device, settings)
        with ProcessPoolExecutor(options.jobs, spawn, _init_worker, (data,)) as pool:
            futures = {pool.submit(compute, point): point for point in todo}
            for future in progress_bar(as_completed(futures), "points", total=len(futures)):
                saved.add(futures[future], future.result())
    for curve, method in product(options.curves, options.methods):
        for name, fine_tuned in features.items():
            print(f"\n| {curve}, {method}, {name} | I → T / T → I |\n|---|---|")
            curve_points = make_points(
                curve, fine_tuned, targets, options.splits, method, options.pairs
            )
            for count, rows in by_count(curve, curve_points, saved.results).items():
                print(f"| {count:,} | {mean_cell(rows)} |", flush=True)
    if options.figure:
        draw(saved.results, features, options.figure, targets)


if __name__ == "__main__":
    main()
