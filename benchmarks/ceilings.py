"""Measure upper bounds of MAP: classifiers trained with the labels of target items.

    python benchmarks/ceilings.py FOLDER --splits 100 101 102 103 104

MAP image -> text / text -> image of logistic regression, ranking by posteriors of query and
database. It is trained on the auxiliary items (a baseline rather than a bound), on the 500 + 500
target items that methods use unlabeled, or on the database. For comparison: THN by real-valued
activations, THN by codes, and chance. Splits overlap.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import chances, maps, mean_cell
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from transhash.data.relation import LabelRelation
from transhash.evaluation import score_tie_groups
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.hashers.tuning import mean_map
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import (
    LabeledFeatures,
    build_split,
    label_matrix_for,
    load_benchmark_features,
)

Matrix = npt.NDArray[Any]


def posteriors(features: Matrix, labels: Matrix, queries: Matrix) -> Matrix:
    """Fit one classifier per class, on centered features, and return its probabilities."""
    center = features.mean(axis=0)
    x, y = normalize(features - center), normalize(queries - center)
    result = np.zeros((len(queries), labels.shape[1]))
    for column in range(labels.shape[1]):
        if 0 < labels[:, column].sum() < len(labels):
            classifier = LogisticRegression(C=10.0, max_iter=300).fit(x, labels[:, column])
            result[:, column] = classifier.predict_proba(y)[:, 1]
    return result


def map_of_products(
    queries: Matrix, database: Matrix, query_set: LabeledFeatures, database_set: LabeledFeatures
) -> float:
    relation = LabelRelation(query_set.labels, database_set.labels)
    return mean_map(score_tie_groups(lambda rows: queries[rows] @ database.T, relation))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[100, 101, 102, 103, 104])
    parser.add_argument("--image-features", default="efficientnet-lite0")
    options = parser.parse_args()
    features = image_features(options.image_features)
    benchmark, _ = load_benchmark_features(options.folder, features, track=progress_bar)
    results: dict[str, list[list[float]]] = {}
    for seed in progress_bar(options.splits, "splits"):
        data, rows = build_split(benchmark, seed), benchmark.split(seed)
        test, training = data.test, data.training
        assert training.target_images is not None
        assert training.target_texts is not None

        def labels(items: Any, rows: Any) -> Matrix:
            return label_matrix_for(items.take(rows), benchmark.classes)

        training_sets = {
            "the auxiliary items": (
                (training.images, labels(benchmark.auxiliary_images, rows.auxiliary_images)),
                (training.texts, labels(benchmark.auxiliary_texts, rows.auxiliary_texts)),
            ),
            "the unlabeled target items": (
                (training.target_images, labels(benchmark.images, rows.target_images)),
                (training.target_texts, labels(benchmark.texts, rows.target_texts)),
            ),
            "the database": (tuple(test.database_images), tuple(test.database_texts)),
        }
        directions = (
            (test.query_images, test.database_texts),
            (test.query_texts, test.database_images),
        )
        for name, (images, texts) in training_sets.items():
            x, y = (
                [posteriors(labeled[0], labeled[1], part.features) for part in parts]
                for labeled, parts in (
                    (images, (test.query_images, test.database_images)),
                    (texts, (test.query_texts, test.database_texts)),
                )
            )
            results.setdefault(f"logistic regression with labels of {name}", []).append(
                [
                    map_of_products(x[0], y[1], *directions[0]),
                    map_of_products(y[0], x[1], *directions[1]),
                ]
            )
        hasher = make_hasher("THN", bits=32, seed=seed).fit(training)
        z = [
            normalize(np.tanh(project(part.features)))
            for project, part in (
                (hasher.project_images, test.query_images),
                (hasher.project_texts, test.database_texts),
                (hasher.project_texts, test.query_texts),
                (hasher.project_images, test.database_images),
            )
        ]
        real_valued = [
            map_of_products(z[0], z[1], *directions[0]),
            map_of_products(z[2], z[3], *directions[1]),
        ]
        scores = score_directions(build_directions(hasher, test))
        results.setdefault("THN, 32 bits, real-valued activations", []).append(real_valued)
        results.setdefault("THN, 32 bits, codes", []).append(maps(scores))
        results.setdefault("chance", []).append(chances(scores))
    for name, values in results.items():
        print(f"| {name} | {mean_cell(values)} |")


if __name__ == "__main__":
    main()
