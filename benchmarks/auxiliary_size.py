"""How big and how similar the bridge must be, on the data drawn by code.

    python benchmarks/auxiliary_size.py --figure docs/images/bridge.svg

MAP of the target at 128 bits, as the page ranks, taught by captions alone; mean and deviation over
seeds, image -> text / text -> image. Three questions: how many pairs, how many unlabelled target
items, and how many of the twelve kinds of things in the target the bridge has to show.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.benchmark import Benchmark, SplitRows
from transhash.data.relation import SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.experiments import make_synthetic_cached
from transhash.features.images import EfficientNetLite0
from transhash.features.texts import text_features
from transhash.hashers import Hasher
from transhash.hashers.methods import make_method
from transhash.progress import progress_bar
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.split_data import (
    LabeledFeatures,
    TestSet,
    build_test_set,
    load_benchmark_features,
)

BITS = 128  # what `fit` gives own files
PAIRS = (25, 50, 100, 200, 400, 800)
TARGETS = (0, 25, 100, 400)  # images, and as many texts
KINDS = (3, 6, 9, 12)
ENOUGH = 300  # pairs and target items, where these are not what is asked about
Rows = npt.NDArray[Any]


@dataclass
class Fitted:
    """A method fitted to some pairs, and what it is scored on."""

    method: Any
    target: TestSet

    def maps(self, kinds: Rows | None = None) -> list[float]:
        """MAP both ways, of queries of those kinds alone if given."""
        encode_queries = self.target
        if kinds is not None:
            encode_queries = TestSet(
                _of(encode_queries.query_images, kinds), _of(encode_queries.query_texts, kinds),
                encode_queries.database_images, encode_queries.database_texts,
            )  # fmt: skip
        how = {"ranking": "weighted"} if isinstance(self.method, Hasher) else {}
        scores = score_directions(directions_of(self.method, encode_queries, **how))
        return [scores[way].map for way in ("image_to_text", "text_to_image")]


def _of(encode_queries: LabeledFeatures, kinds: Rows) -> LabeledFeatures:
    chosen = encode_queries.labels[:, kinds].any(axis=1)
    return LabeledFeatures(encode_queries.features[chosen], encode_queries.labels[chosen])


def fitted(
    method: str, ready: Benchmark, split: SplitRows, rows: Rows, items: int, seed: int
) -> Fitted:
    """`method` on those auxiliary rows as pairs and the split's first `items` of either kind."""
    captions = ready.auxiliary_texts.take(rows).items
    images, texts = split.target_images[:items], split.target_texts[:items]
    words = text_features(None)
    words.fit(captions, ready.texts.take(texts).items)
    features, target_features = ready.auxiliary_images.features, ready.images.features
    assert features is not None
    assert target_features is not None
    keys = [str(row) for row in rows]
    training = TrainingSet(
        features[rows], words.transform(captions), SparseRelation.from_pairs(keys, keys),
        target_features[images] if items else None,
        words.transform(ready.texts.take(texts).items) if items else None,
    )  # fmt: skip
    learner = make_method(method, bits=BITS, seed=seed)
    learner.fit(training)
    return Fitted(learner, build_test_set(ready, split, words))


def shown(rows: Sequence[Sequence[float]]) -> str:
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
    return " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path, help="also draw it: svg or png")
    arguments = parser.parse_args()
    ready, _ = load_benchmark_features(
        make_synthetic_cached(100), EfficientNetLite0(), track=progress_bar
    )
    labels, classes = ready.auxiliary_images.labels or (), ready.classes
    found: dict[str, dict[Any, list[list[float]]]] = {}

    def note(table: str, row: Any, maps: list[float]) -> None:
        found.setdefault(table, {}).setdefault(row, []).append(maps)

    for seed in progress_bar(range(arguments.seeds), "seeds", arguments.seeds):
        split = ready.split(seed)
        order = np.random.default_rng(seed).permutation(len(ready.auxiliary_images))
        for count in PAIRS:
            some = order[:count]
            note("THN", count, fitted("THN", ready, split, some, ENOUGH, seed).maps())
            note("kNN", count, fitted("kNN", ready, split, some, 0, seed).maps())
        for count in TARGETS:
            one = fitted("THN", ready, split, order[:ENOUGH], count, seed)
            note("target", count, one.maps())
        for count in KINDS:
            kinds = np.random.default_rng(seed).permutation(len(classes))
            names = {classes[kind] for kind in kinds[:count]}
            rows = np.array([row for row in order if labels[row] <= names])[:ENOUGH]
            one = fitted("THN", ready, split, rows, ENOUGH, seed)
            note("shown", count, one.maps(kinds[:count]))
            if count < len(classes):
                note("not shown", count, one.maps(kinds[count:]))
        codes = one.target.database_texts.labels.mean(axis=0).mean()
    print(f"chance about {codes:.3f}\n\n| pairs | THN | kNN |\n|---|---|---|")
    for row in PAIRS:
        print(f"| {row} | {shown(found['THN'][row])} | {shown(found['kNN'][row])} |")
    print("\n| unlabelled target items of each kind | THN |\n|---|---|")
    for row in TARGETS:
        print(f"| {row} | {shown(found['target'][row])} |")
    print("\n| kinds in the bridge | queries of these | of the others |\n|---|---|---|")
    for row in KINDS:
        others = found["not shown"].get(row)
        print(
            f"| {row} of 12 | {shown(found['shown'][row])} | {shown(others) if others else '–'} |"
        )
    if arguments.figure:
        draw(found, float(codes), arguments.figure)


def draw(found: dict[str, dict[Any, list[list[float]]]], chance: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "bridge", "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    lines = (
        (0, "THN", "THN", "#0f766e", "o"),
        (0, "kNN", "nearest neighbours", "#9a9a94", "s"),
        (1, "target", "THN", "#0f766e", "o"),
        (2, "shown", "queries of shown kinds", "#0f766e", "o"),
        (2, "not shown", "of the others", "#c2410c", "D"),
    )
    for at, table, name, colour, marker in lines:
        places = list(found[table])
        values = np.array([np.mean(found[table][place], axis=1) for place in places])
        axes[at].errorbar(
            places, values.mean(axis=1), values.std(axis=1, ddof=1),
            color=colour, marker=marker, capsize=3, label=name,
        )  # fmt: skip
    axes[0].set_xscale("log")
    axes[0].set_xticks(PAIRS, [str(count) for count in PAIRS], minor=False)
    axes[0].minorticks_off()
    axes[0].set(ylabel="MAP, mean of both ways", ylim=(0, 1))
    axes[1].set_xticks(TARGETS, [str(count) for count in TARGETS])
    axes[2].set_xticks(KINDS, [f"{count}" for count in KINDS])
    names = ("pairs in the bridge", "unlabelled target items", "kinds in the bridge, of 12")
    for axis, name in zip(axes, names):
        axis.set_xlabel(name)
        axis.axhline(chance, color="#9a9a94", linestyle=":", label="chance")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
