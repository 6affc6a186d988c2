"""What could be reached at most: classifiers that were told the labels of target items.

    python benchmarks/ceilings.py FOLDER --splits 100 101 102 103 104

MAP image -> text / text -> image of logistic regression, posteriors of a query against posteriors
of the database, ranked by real numbers. Told: the labels of the auxiliary items (no ceiling, a
baseline), of the 500 + 500 target items that methods see without them, or of the whole database.
Beside them THN by its real-valued activations, by its codes, and chance. Splits overlap in their
items.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from transhash.data.relation import LabelRelation
from transhash.evaluation import score_tie_groups
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.hashers.tuning import mean_map
from transhash.progress import progress_bar
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.split_data import (
    LabeledFeatures,
    build_split,
    label_matrix_for,
    load_benchmark_features,
)

Matrix = npt.NDArray[Any]


def posteriors(known: Matrix, labels: Matrix, asked: Matrix) -> Matrix:
    """One classifier a class; rows around the mean of what is known."""
    centre = known.mean(axis=0)
    x, y = normalize(known - centre), normalize(asked - centre)
    found = np.zeros((len(asked), labels.shape[1]))
    for kind in range(labels.shape[1]):
        if 0 < labels[:, kind].sum() < len(labels):
            fitted = LogisticRegression(C=10.0, max_iter=300).fit(x, labels[:, kind])
            found[:, kind] = fitted.predict_proba(y)[:, 1]
    return found


def mean_ap(
    queries: Matrix, database: Matrix, asked: LabeledFeatures, held: LabeledFeatures
) -> float:
    relation = LabelRelation(asked.labels, held.labels)
    return mean_map(score_tie_groups(lambda rows: queries[rows] @ database.T, relation))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[100, 101, 102, 103, 104])
    parser.add_argument("--image-features", default="efficientnet-lite0", help="as --features")
    arguments = parser.parse_args()
    features = image_features(arguments.image_features)
    ready, _ = load_benchmark_features(arguments.folder, features, track=progress_bar)
    found: dict[str, list[list[float]]] = {}
    for seed in progress_bar(arguments.splits, "splits"):
        task, split = build_split(ready, seed), ready.split(seed)
        target, training = task.target, task.training
        assert training.target_images is not None
        assert training.target_texts is not None

        def own(part: Any, rows: Any) -> Matrix:
            return label_matrix_for(part.take(rows), ready.classes)

        sides = {
            "the auxiliary items": (
                (training.images, own(ready.auxiliary_images, split.auxiliary_images)),
                (training.texts, own(ready.auxiliary_texts, split.auxiliary_texts)),
            ),
            "the unlabelled target items": (
                (training.target_images, own(ready.images, split.target_images)),
                (training.target_texts, own(ready.texts, split.target_texts)),
            ),
            "the database": (
                tuple(target.database_images),
                tuple(target.database_texts),
            ),
        }
        asked = (
            (target.query_images, target.database_texts),
            (target.query_texts, target.database_images),
        )
        for told, (images, texts) in sides.items():
            x, y = (
                [posteriors(side[0], side[1], part.features) for part in parts]
                for side, parts in (
                    (images, (target.query_images, target.database_images)),
                    (texts, (target.query_texts, target.database_texts)),
                )
            )
            scores = [mean_ap(x[0], y[1], *asked[0]), mean_ap(y[0], x[1], *asked[1])]
            found.setdefault(f"logistic regression with labels of {told}", []).append(scores)
        hasher = make_hasher("THN", bits=32, seed=seed).fit(training)
        z = [
            normalize(np.tanh(project(part.features)))
            for project, part in (
                (hasher.project_images, target.query_images),
                (hasher.project_texts, target.database_texts),
                (hasher.project_texts, target.query_texts),
                (hasher.project_images, target.database_images),
            )
        ]
        real = [mean_ap(z[0], z[1], *asked[0]), mean_ap(z[2], z[3], *asked[1])]
        found.setdefault("THN, 32 bits, real-valued activations", []).append(real)
        coded = score_directions(directions_of(hasher, target))
        both = [coded[way] for way in ("image_to_text", "text_to_image")]
        found.setdefault("THN, 32 bits, codes", []).append([one.map for one in both])
        found.setdefault("chance", []).append([one.chance for one in both])
    for name, rows in found.items():
        mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
        print(
            f"| {name} | " + " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread)) + " |"
        )


if __name__ == "__main__":
    main()
