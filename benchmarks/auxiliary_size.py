"""Measure how large and how similar an auxiliary set must be, on the synthetic data set.

    python benchmarks/auxiliary_size.py --figure docs/images/auxiliary-size.svg

MAP of the target at 128 bits with weighted ranking, trained on pairs, image -> text / text ->
image, mean and deviation over seeds, by the number of pairs, of unlabeled target items, and of
target classes that the auxiliary set contains.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import maps, mean_cell, row_pairs

from transhash.data.benchmark import Benchmark, SplitRows
from transhash.data.training_set import TrainingSet
from transhash.experiments import make_synthetic_cached
from transhash.features.images import EfficientNetLite0
from transhash.features.texts import text_features
from transhash.hashers import Hasher
from transhash.hashers.methods import make_method
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import (
    LabeledFeatures,
    TestSet,
    build_test_set,
    load_benchmark_features,
)

BITS = 128  # the default of `transhash fit`
PAIRS = (25, 50, 100, 200, 400, 800)
TARGETS = (0, 25, 100, 400)  # images, and as many texts
CLASSES = (3, 6, 9, 12)
DEFAULT_COUNT = 300  # pairs and target items, where these do not vary
Rows = npt.NDArray[Any]
Results = dict[str, dict[int, list[list[float]]]]


@dataclass
class FittedMethod:
    method: Any
    test: TestSet

    def maps(self, classes: Rows | None = None) -> list[float]:
        """Return MAP of both directions, optionally for queries of some classes only."""
        test = self.test
        if classes is not None:
            test = TestSet(
                _select(test.query_images, classes), _select(test.query_texts, classes),
                test.database_images, test.database_texts,
            )  # fmt: skip
        ranking = {"ranking": "weighted"} if isinstance(self.method, Hasher) else {}
        return maps(score_directions(build_directions(self.method, test, **ranking)))


def _select(queries: LabeledFeatures, classes: Rows) -> LabeledFeatures:
    rows = queries.labels[:, classes].any(axis=1)
    return LabeledFeatures(queries.features[rows], queries.labels[rows])


def fit(
    name: str, benchmark: Benchmark, split: SplitRows, rows: Rows, items: int, seed: int
) -> FittedMethod:
    """Fit on auxiliary rows as pairs, and on `items` target images and texts."""
    captions = benchmark.auxiliary_texts.take(rows).items
    texts = benchmark.texts.take(split.target_texts[:items]).items
    features = text_features(None).fit(captions, texts)
    images, target_images = benchmark.auxiliary_images.features, benchmark.images.features
    assert images is not None
    assert target_images is not None
    training = TrainingSet(
        images[rows], features.transform(captions), row_pairs(len(rows)),
        target_images[split.target_images[:items]] if items else None,
        features.transform(texts) if items else None,
    )  # fmt: skip
    method = make_method(name, bits=BITS, seed=seed)
    method.fit(training)
    return FittedMethod(method, build_test_set(benchmark, split, features))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path, help="output file: svg or png")
    options = parser.parse_args()
    benchmark, _ = load_benchmark_features(
        make_synthetic_cached(100), EfficientNetLite0(), track=progress_bar
    )
    labels, classes = benchmark.auxiliary_images.labels or (), benchmark.classes
    results: Results = {}

    def add(line: str, count: int, row: list[float]) -> None:
        results.setdefault(line, {}).setdefault(count, []).append(row)

    for seed in progress_bar(range(options.seeds), "seeds", options.seeds):
        split = benchmark.split(seed)
        order = np.random.default_rng(seed).permutation(len(benchmark.auxiliary_images))
        for count in PAIRS:
            thn = fit("THN", benchmark, split, order[:count], DEFAULT_COUNT, seed)
            add("THN", count, thn.maps())
            add("kNN", count, fit("kNN", benchmark, split, order[:count], 0, seed).maps())
        for count in TARGETS:
            thn = fit("THN", benchmark, split, order[:DEFAULT_COUNT], count, seed)
            add("target", count, thn.maps())
        for count in CLASSES:
            shuffled = np.random.default_rng(seed).permutation(len(classes))
            names = {classes[number] for number in shuffled[:count]}
            rows = np.array([row for row in order if labels[row] <= names])[:DEFAULT_COUNT]
            thn = fit("THN", benchmark, split, rows, DEFAULT_COUNT, seed)
            add("in auxiliary", count, thn.maps(shuffled[:count]))
            if count < len(classes):
                add("not in auxiliary", count, thn.maps(shuffled[count:]))
        chance = float(thn.test.database_texts.labels.mean(axis=0).mean())
    print(f"chance about {chance:.3f}\n\n| pairs | THN | kNN |\n|---|---|---|")
    for count in PAIRS:
        print(
            f"| {count} | {mean_cell(results['THN'][count])} | {mean_cell(results['kNN'][count])} |"
        )
    print("\n| unlabeled target images, and as many texts | THN |\n|---|---|")
    for count in TARGETS:
        print(f"| {count} | {mean_cell(results['target'][count])} |")
    print("\n| classes in the auxiliary set | queries of these | of the others |\n|---|---|---|")
    for count in CLASSES:
        others = results["not in auxiliary"].get(count)
        print(
            f"| {count} of 12 | {mean_cell(results['in auxiliary'][count])} "
            f"| {mean_cell(others) if others else '–'} |"
        )
    if options.figure:
        draw(results, chance, options.figure)


def draw(results: Results, chance: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "auxiliary", "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    lines = (
        (0, "THN", "THN", "#0f766e", "o"),
        (0, "kNN", "kNN", "#9a9a94", "s"),
        (1, "target", "THN", "#0f766e", "o"),
        (2, "in auxiliary", "queries of these classes", "#0f766e", "o"),
        (2, "not in auxiliary", "of the others", "#c2410c", "D"),
    )
    for column, line, label, color, marker in lines:
        counts = list(results[line])
        values = np.array([np.mean(results[line][count], axis=1) for count in counts])
        axes[column].errorbar(
            counts, values.mean(axis=1), values.std(axis=1, ddof=1),
            color=color, marker=marker, capsize=3, label=label,
        )  # fmt: skip
    axes[0].set_xscale("log")
    axes[0].set_xticks(PAIRS, [str(count) for count in PAIRS], minor=False)
    axes[0].minorticks_off()
    axes[0].set(ylabel="MAP, mean of both directions", ylim=(0, 1))
    axes[1].set_xticks(TARGETS, [str(count) for count in TARGETS])
    axes[2].set_xticks(CLASSES, [f"{count}" for count in CLASSES])
    titles = ("auxiliary pairs", "unlabeled target items", "classes in the auxiliary set, of 12")
    for axis, title in zip(axes, titles):
        axis.set_xlabel(title)
        axis.axhline(chance, color="#9a9a94", linestyle=":", label="chance")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
