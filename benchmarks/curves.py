"""MAP of THN against the number of unlabelled target items, and against that of the bridge's pairs.

    python benchmarks/curves.py FOLDER --jobs 2 --out runs/curves --figure docs/images/curves.svg
    python benchmarks/curves.py FOLDER --fine-tune --device cuda --jobs 12 --out runs/curves ...

32 bits, mean and deviation over splits, image -> text / text -> image; frozen features, and with
--fine-tune end to end as well. Target items: so many images and as many texts out of the database,
related by labels or by 2,000 pairs. Pairs: so many captions are all that relates images and texts,
beside 500 + 500 target items. Splits overlap. A point that is in the folder is not computed again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fine_tune import reading_with

from transhash.data.benchmark import Benchmark, Supervision
from transhash.features.decode import Pixels
from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune
from transhash.hashers.fine_tuning.batches import decode_all
from transhash.progress import no_progress, progress_bar
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.split_data import build_split, load_benchmark_features

TARGETS = (0, 100, 500, 2000, None)  # None: all there are
PAIRS = (100, 200, 500, 1000, 2000)
USUAL_TARGETS, USUAL_AUXILIARY = 500, 2000
WAYS = ("image_to_text", "text_to_image")
CURVES: dict[str, Supervision] = {
    "target items, labels": "labels",
    "pairs": "pairs",
    "target items, pairs": "pairs",
}


@dataclass(frozen=True)
class Point:
    """What is shown to THN on a split."""

    supervision: Supervision
    auxiliary: int
    targets: int
    tuned: bool
    split: int


class Data(NamedTuple):
    """What every process has; pixels of both kinds of pictures where backbones are trained."""

    ready: Benchmark
    pixels: list[Path]
    device: str


_data: list[Data] = []


def _start(data: Data) -> None:
    torch.set_num_threads(1)
    _data.append(data)


def maps(point: Point) -> list[float]:
    ready, files, device = _data[0]
    sizes = replace(ready.sizes, target=point.targets, auxiliary=point.auxiliary)
    sized = replace(ready, supervision=point.supervision, sizes=sizes)
    task = build_split(sized, point.split)
    hasher = make_hasher("THN", bits=32, seed=point.split).fit(task.training)
    if point.tuned:
        split = sized.split(point.split)
        pixels: list[Pixels] = [np.load(file, mmap_mode="r") for file in files]
        tuned = fine_tune(
            EfficientNetLite0(device), pixels[0][split.auxiliary_images],
            pixels[1][split.target_images], task.training, hasher,
            FineTuning(seed=point.split, use_target=point.targets > 0),
        )  # fmt: skip
        task = reading_with(tuned, task, split, pixels)
        hasher = make_hasher("THN", bits=32, seed=point.split).fit(task.training)
    scores = score_directions(directions_of(hasher, task.target), 1)
    return [scores[way].map for way in WAYS]


def points_of(curve: str, tuned: bool, most: int, splits: list[int]) -> list[Point]:
    """Queries and database are the same for every number: only how many are shown changes."""
    if curve == "pairs":
        given = [(count, USUAL_TARGETS) for count in PAIRS]
    else:
        given = [(USUAL_AUXILIARY, most if count is None else count) for count in TARGETS]
    return [Point(CURVES[curve], *counts, tuned, split) for counts in given for split in splits]


def by_count(
    curve: str, points: list[Point], found: dict[Point, list[float]]
) -> dict[int, list[list[float]]]:
    """MAP both ways on each split, by the number that the curve is drawn over."""
    by: dict[int, list[list[float]]] = {}
    for point in points:
        count = point.auxiliary if curve == "pairs" else point.targets
        by.setdefault(count, []).append(found[point])
    return by


def shown(rows: list[list[float]]) -> str:
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
    return " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread))


def draw(found: dict[Point, list[float]], kinds: list[bool], path: Path, most: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "curves", "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    splits = sorted({point.split for point in found})
    only = kinds == [False]  # then nothing has to be told apart
    lines = (
        (0, "target items, labels", "taught by labels", "#d1214f", "o"),
        (0, "target items, pairs", "by 2,000 pairs", "#0f766e", "s"),
        (1, "pairs", "500 + 500 target items", "#0f766e", "s"),
    )
    for at, curve, name, colour, marker in lines:
        for tuned in kinds:
            points = points_of(curve, tuned, most, splits)
            if not all(point in found for point in points):
                continue
            by = by_count(curve, points, found)
            places = list(by)
            values = np.array([np.mean(rows, axis=1) for rows in by.values()])
            axes[at].errorbar(
                range(len(places)), values.mean(axis=1), values.std(axis=1, ddof=1),
                color=colour, marker=marker, capsize=3, linestyle="-" if tuned or only else "--",
                label=name if only else f"{name}, {'end to end' if tuned else 'frozen'}",
            )  # fmt: skip
            axes[at].set_xticks(range(len(places)), [f"{place:,}" for place in places])
    axes[0].set(
        xlabel="unlabelled target images, and as many texts", ylabel="MAP, mean of both ways"
    )
    axes[1].set(xlabel="pairs in the bridge")
    for axis in axes:
        axis.grid(axis="y", color="#e4e4e0")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, handlelength=4)  # dashes are to be seen
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


class Kept:
    """Points as they come, in a file that a later run reads."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / "curves.json"
        self.found: dict[Point, list[float]] = {}
        if self.path.exists():
            rows: list[dict[str, Any]] = json.loads(self.path.read_text())
            self.found = {Point(**row["point"]): row["map"] for row in rows}

    def add(self, point: Point, ways: list[float]) -> None:
        self.found[point] = ways
        rows = [{"point": asdict(one), "map": value} for one, value in self.found.items()]
        self.path.write_text(json.dumps(rows, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--fine-tune", action="store_true")
    parser.add_argument("--only-tuned", action="store_true", help="no frozen points")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    backbone = EfficientNetLite0(arguments.device)
    ready, _ = load_benchmark_features(arguments.folder, backbone, track=progress_bar)
    split = ready.split(arguments.splits[0])
    most = min(len(split.database_images), len(split.database_texts))
    kinds = [*([] if arguments.only_tuned else [False]), *([True] if arguments.fine_tune else [])]
    kept = Kept(arguments.out)
    wanted = dict.fromkeys(
        point
        for curve in arguments.curves
        for tuned in kinds
        for point in points_of(curve, tuned, most, arguments.splits)
    )
    todo = [point for point in wanted if point not in kept.found]
    with tempfile.TemporaryDirectory() as scratch:
        files: list[Path] = []
        if any(point.tuned for point in todo):
            for part in (ready.auxiliary_images, ready.images):
                files.append(Path(scratch) / f"{len(files)}.npy")
                np.save(
                    files[-1], decode_all(part.items, backbone.size, arguments.device, no_progress)
                )
        spawn = multiprocessing.get_context("spawn")
        data = Data(ready, files, arguments.device)
        with ProcessPoolExecutor(arguments.jobs, spawn, _start, (data,)) as pool:
            of = {pool.submit(maps, point): point for point in todo}
            for one in progress_bar(as_completed(of), "points", total=len(of)):
                kept.add(of[one], one.result())
    for curve in arguments.curves:
        for tuned in kinds:
            read = "end to end" if tuned else "frozen"
            print(f"\n| {curve}, {read} | I → T / T → I |\n|---|---|")
            points = points_of(curve, tuned, most, arguments.splits)
            for count, rows in by_count(curve, points, kept.found).items():
                print(f"| {count:,} | {shown(rows)} |", flush=True)
    if arguments.figure:
        draw(kept.found, kinds, arguments.figure, most)


if __name__ == "__main__":
    main()
