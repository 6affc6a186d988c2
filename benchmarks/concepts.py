"""Compare learning from labels or pairs, from the built-in concepts, and from both.

    python benchmarks/concepts.py FOLDER --methods THN kNN ridge --text-features words

FOLDER is a benchmark folder (docs/benchmarks.md). Pairs are the auxiliary images of a split with
their captions. MAP of the target, image -> text / text -> image, mean and deviation over splits,
and chance. Nothing is chosen on these numbers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import chances, maps, mean_cell, row_pairs

from transhash.data.benchmark import Benchmark
from transhash.data.feedback import append_auxiliary
from transhash.data.training_set import TrainingSet
from transhash.features.concepts import ImageStatistics, load_concepts, require_class_weights
from transhash.features.images import ImageFeatures, image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import text_features
from transhash.hashers.methods import make_method
from transhash.hashers.transductive import with_concept_settings
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import TestSet, build_test_set, load_benchmark_features

SOURCES = ("labels", "pairs", "concepts", "labels and concepts", "pairs and concepts")


def read_split(
    benchmark: Benchmark, seed: int, source: str, text_name: str, features: ImageFeatures
) -> tuple[TrainingSet, TestSet]:
    """Return the training set of a source, with text features fitted on its texts."""
    rows, concepts = benchmark.split(seed), load_concepts()
    has_concepts = source.endswith("concepts")
    columns = rows.auxiliary_images if source.startswith("pairs") else rows.auxiliary_texts
    auxiliary = benchmark.auxiliary(rows.auxiliary_images, columns)
    captions = [] if source == "concepts" else auxiliary.texts.items
    target_texts = benchmark.texts.take(rows.target_texts).items
    texts = text_features(text_name)
    corpora = [captions, concepts.texts if has_concepts else [], target_texts]
    texts.fit(*[corpus for corpus in corpora if corpus])
    target = extract_readable(None, benchmark.images.take(rows.target_images))[0]
    target_y, test = texts.transform(target_texts), build_test_set(benchmark, rows, texts)
    pairs = None
    if has_concepts:
        weights = require_class_weights(features, concepts)
        statistics = ImageStatistics.from_features(target)
        pairs = concepts.pairs(weights, statistics, texts.transform(concepts.texts))
        if source == "concepts":
            training = TrainingSet(pairs.images, pairs.texts, pairs.relation, target, target_y)
            return training, test
    relation = row_pairs(len(columns)) if source.startswith("pairs") else auxiliary.relation
    training = TrainingSet(
        extract_readable(None, auxiliary.images)[0], texts.transform(captions), relation,
        target, target_y,
    )  # fmt: skip
    return training if pairs is None else append_auxiliary(training, pairs), test


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    parser.add_argument("--methods", nargs="+", default=["THN", "kNN", "ridge"])
    parser.add_argument("--text-features", default="words")
    parser.add_argument("--image-features", default="efficientnet-lite0")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    features = image_features(options.image_features)
    benchmark, _ = load_benchmark_features(options.folder, features, progress_bar)
    chance = []
    print(
        f"| learned from | {' | '.join(options.methods)} |\n{'|---' * (len(options.methods) + 1)}|"
    )
    for source in options.sources:
        results: dict[str, list[list[float]]] = {name: [] for name in options.methods}
        for seed in options.splits:
            training, test = read_split(benchmark, seed, source, options.text_features, features)
            for name, rows in results.items():
                method = make_method(name, bits=options.bits, seed=seed)
                if source.endswith("concepts"):
                    method = with_concept_settings(method)
                method.fit(training)
                scores = score_directions(build_directions(method, test))
                rows.append(maps(scores))
                chance.append(chances(scores))
        print(f"| {source} | {' | '.join(map(mean_cell, results.values()))} |", flush=True)
    print("chance " + " / ".join(f"{value:.3f}" for value in np.mean(chance, axis=0)))


if __name__ == "__main__":
    main()
