"""Compare methods and text features on a benchmark folder, trained on labels and on pairs.

    python benchmarks/pairs.py FOLDER bag-of-words words --methods THN QCH CVH kNN ridge

MAP of the target at 32 bits (kNN and ridge are real-valued), mean and deviation over splits, image
-> text / text -> image, and chance. Pairs are the auxiliary images of a split with their captions.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from common import chances, maps, mean_cell, pairs_training_set

from transhash.data.training_set import TrainingSet
from transhash.evaluation import Scores
from transhash.features.images import image_features
from transhash.hashers.methods import make_method
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import TestSet, build_split, load_benchmark_features


def measure(name: str, training: TrainingSet, test: TestSet, seed: int) -> dict[str, Scores]:
    method = make_method(name, bits=32, seed=seed)
    method.fit(training)
    return score_directions(build_directions(method, test))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("features", nargs="+", help="text features, as for fit --text-features")
    parser.add_argument("--image-features", default="efficientnet-lite0")
    parser.add_argument("--methods", nargs="+", default=["THN"])
    parser.add_argument("--pairs", type=int, help="maximum number of pairs")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    benchmark, _ = load_benchmark_features(
        options.folder, image_features(options.image_features), track=progress_bar
    )
    chance = []
    print("| text features | method | labels | pairs |\n|---|---|---|---|")
    for name, method in product(options.features, options.methods):
        by_labels, by_pairs = [], []
        for seed in range(options.seeds):
            split = build_split(benchmark, seed, texts=name)
            rows = benchmark.split(seed).auxiliary_images[: options.pairs]
            scores = measure(method, split.training, split.test, seed)
            by_labels.append(maps(scores))
            chance.append(chances(scores))
            pairs = pairs_training_set(benchmark, rows, split)
            by_pairs.append(maps(measure(method, pairs, split.test, seed)))
        print(f"| {name} | {method} | {mean_cell(by_labels)} | {mean_cell(by_pairs)} |", flush=True)
    print("chance " + " / ".join(f"{value:.3f}" for value in np.mean(chance, axis=0)))


if __name__ == "__main__":
    main()
