"""Methods on a three-part folder, taught by class labels and by captions alone, by text features.

    python benchmarks/pairs.py FOLDER bag-of-words words --methods THN QCH CVH kNN ridge

MAP of the target at 32 bits (kNN and ridge rank by real numbers), mean and deviation over splits,
image -> text / text -> image, and of chance.
Pairs: both halves of the auxiliary rows whose images a split trains on; nothing else relates them.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np

from transhash.data.relation import SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.features.images import image_features
from transhash.hashers.methods import make_method
from transhash.progress import progress_bar
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.split_data import SplitData, build_split, load_benchmark_features


def maps(method: str, training: TrainingSet, task: SplitData, seed: int) -> list[float]:
    hasher = make_method(method, bits=32, seed=seed)
    hasher.fit(training)
    scores = score_directions(directions_of(hasher, task.target))
    ways = [scores[way] for way in ("image_to_text", "text_to_image")]
    return [one.map for one in ways] + [one.chance for one in ways]


def shown(rows: list[list[float]]) -> str:
    """Both directions."""
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
    return " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean[:2], spread[:2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("features", nargs="+", help="as --text-features takes them")
    parser.add_argument("--image-features", default="efficientnet-lite0", help="as --features")
    parser.add_argument("--methods", nargs="+", default=["THN"])
    parser.add_argument("--pairs", type=int, help="only so many of them")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    ready, _ = load_benchmark_features(
        arguments.folder, image_features(arguments.image_features), track=progress_bar
    )
    print("| text features | method | labels | pairs |\n|---|---|---|---|")
    for name, method in product(arguments.features, arguments.methods):
        by_labels, by_pairs = [], []
        for seed in range(arguments.seeds):
            task, rows = build_split(ready, seed, texts=name), ready.split(seed).auxiliary_images
            by_labels.append(maps(method, task.training, task, seed))
            rows = rows[: arguments.pairs]
            captions = ready.auxiliary_texts.take(rows).items
            images = ready.auxiliary_images.take(rows).features
            assert images is not None
            keys = [str(row) for row in rows]
            pairs = TrainingSet(
                images, task.text_features.transform(captions),
                SparseRelation.from_pairs(keys, keys),
                task.training.target_images, task.training.target_texts,
            )  # fmt: skip
            by_pairs.append(maps(method, pairs, task, seed))
        print(f"| {name} | {method} | {shown(by_labels)} | {shown(by_pairs)} |", flush=True)
    chance = np.mean(by_labels, axis=0)[2:]
    print("chance " + " / ".join(f"{one:.3f}" for one in chance))


if __name__ == "__main__":
    main()
