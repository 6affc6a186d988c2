"""MAP of THN against the number of unlabelled target items, and against that of the bridge's pairs.

    python benchmarks/curves.py FOLDER --splits 100 101 102 --figure docs/images/curves.svg

32 bits, frozen features, mean and deviation over splits, image -> text / text -> image. Target
items: so many images and as many texts out of the database, related by labels or by 2,000 pairs.
Pairs: so many captions are all that relates images and texts, beside 500 + 500 target items.
Splits overlap.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from transhash.data.benchmark import Benchmark, TaughtBy
from transhash.features.image import image_features
from transhash.hashers import make_hasher
from transhash.progress import bar
from transhash.runs.score.directions import directions_of, score_directions
from transhash.runs.task import build_task, ready_benchmark

TARGETS = (0, 100, 500, 2000, None)  # None: all there are
PAIRS = (100, 200, 500, 1000, 2000)
Curve = dict[int, list[list[float]]]  # by the number of items


def maps(ready: Benchmark, seed: int) -> list[float]:
    task = build_task(ready, seed)
    hasher = make_hasher("THN", bits=32, seed=seed).fit(task.training)
    scores = score_directions(directions_of(hasher, task.target))
    return [scores[way].map for way in ("image_to_text", "text_to_image")]


def by_targets(ready: Benchmark, taught_by: TaughtBy, seeds: list[int]) -> Curve:
    """Queries and database are the same for every number: only how many are shown changes."""
    split = ready.split(seeds[0])
    most = min(len(split.database_images), len(split.database_texts))
    found: Curve = {}
    for count in bar(TARGETS, f"target items, {taught_by}"):
        shown = most if count is None else count
        sized = replace(ready, taught_by=taught_by, sizes=replace(ready.sizes, target=shown))
        found[shown] = [maps(sized, seed) for seed in seeds]
    return found


def by_pairs(ready: Benchmark, seeds: list[int]) -> Curve:
    return {
        count: [
            maps(
                replace(ready, taught_by="pairs", sizes=replace(ready.sizes, auxiliary=count)),
                seed,
            )
            for seed in seeds
        ]
        for count in bar(PAIRS, "pairs")
    }


def shown(rows: list[list[float]]) -> str:
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
    return " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread))


def draw(curves: dict[str, Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "curves", "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    lines = (
        (0, "target items, labels", "taught by labels", "#d1214f", "o"),
        (0, "target items, pairs", "by 2,000 pairs", "#0f766e", "s"),
        (1, "pairs", "500 + 500 target items", "#0f766e", "s"),
    )
    for at, table, name, colour, marker in lines:
        places = list(curves[table])
        values = np.array([np.mean(curves[table][place], axis=1) for place in places])
        axes[at].errorbar(
            range(len(places)), values.mean(axis=1), values.std(axis=1, ddof=1),
            color=colour, marker=marker, capsize=3, label=name,
        )  # fmt: skip
        axes[at].set_xticks(range(len(places)), [f"{place:,}" for place in places])
    axes[0].set(
        xlabel="unlabelled target images, and as many texts", ylabel="MAP, mean of both ways"
    )
    axes[1].set(xlabel="pairs in the bridge")
    for axis in axes:
        axis.grid(axis="y", color="#e4e4e0")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--image-features", default="efficientnet-lite0", help="as --features")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    features = image_features(arguments.image_features)
    ready, _ = ready_benchmark(arguments.folder, features, track=bar)
    curves = {
        "target items, labels": by_targets(ready, "labels", arguments.splits),
        "target items, pairs": by_targets(ready, "pairs", arguments.splits),
        "pairs": by_pairs(ready, arguments.splits),
    }
    for name, curve in curves.items():
        print(f"\n| {name} | I → T / T → I |\n|---|---|")
        for count, rows in curve.items():
            print(f"| {count:,} | {shown(rows)} |", flush=True)
    if arguments.figure:
        draw(curves, arguments.figure)


if __name__ == "__main__":
    main()
