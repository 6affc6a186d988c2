"""What captions add where auxiliary rows have labels, too: THN by labels alone, and by both.

    python benchmarks/labels_and_pairs.py FOLDER --bits 32 64 128

Both learn from the same rows of a split. MAP of the target by class (image -> text / text ->
image) by Hamming distance and as the page ranks, and the place of a held-out caption's own picture
among the held-out pictures that share a label with it, as a share of those (0 first, .5 chance).
Mean and deviation over splits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transhash.data.collection import label_matrix
from transhash.data.relation import GradedRelation, LabelRelation, Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.features.images import EfficientNetLite0
from transhash.hashers.thn import THN
from transhash.progress import progress_bar
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.split_data import build_split, load_benchmark_features


def place_in_class(scores: npt.NDArray[np.float64], alike: npt.NDArray[np.bool_]) -> float:
    """Mean share of its class that stands before a caption's own picture; ties count half."""
    own = np.diag(scores)
    shares = []
    for row in range(len(own)):
        others = alike[row].copy()
        others[row] = False
        if others.any():
            rest = scores[row, others]
            shares.append(((rest > own[row]) + 0.5 * (rest == own[row])).mean())
    return float(np.mean(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    ready, _ = load_benchmark_features(arguments.folder, EfficientNetLite0(), track=progress_bar)
    pictures, captions = ready.auxiliary_images, ready.auxiliary_texts
    assert pictures.features is not None
    assert pictures.labels is not None
    classes = sorted(set().union(*pictures.labels))
    truth = label_matrix(pictures.labels, classes)
    print("| bits | taught by | MAP, Hamming | as the page ranks | place, Hamming | as the page |")
    print("|---|---|---|---|---|---|")
    for bits in arguments.bits:
        found: dict[str, list[list[float]]] = {"labels": [], "labels and captions": []}
        for seed in range(arguments.seeds):
            task, rows = build_split(ready, seed), ready.split(seed).auxiliary_images
            rest = np.setdiff1d(np.arange(len(pictures)), rows)
            labels = LabelRelation(truth[rows], truth[rows])
            keys = [str(row) for row in rows]
            pairs = SparseRelation.from_pairs(keys, keys)
            x = pictures.features[rows]
            y = task.text_features.transform(captions.take(rows).items)
            held_x = pictures.features[rest]
            held_y = task.text_features.transform(captions.take(rest).items)
            alike = truth[rest] @ truth[rest].T
            relations: dict[str, Relation] = {
                "labels": labels,
                "labels and captions": GradedRelation(labels, pairs),
            }
            for name, relation in relations.items():
                training = TrainingSet(
                    x, y, relation, task.training.target_images, task.training.target_texts
                )
                hasher = THN(bits=bits, seed=seed).fit(training)
                scores = score_directions(directions_of(hasher, task.target))
                finer = score_directions(directions_of(hasher, task.target, "weighted"))
                z_x, z_y = hasher.project_auxiliary(held_x, held_y)
                signs = np.where(z_x > 0, 1.0, -1.0)
                found[name].append(
                    [
                        scores["image_to_text"].map,
                        scores["text_to_image"].map,
                        finer["image_to_text"].map,
                        finer["text_to_image"].map,
                        place_in_class(np.where(z_y > 0, 1.0, -1.0) @ signs.T, alike),
                        place_in_class(np.tanh(z_y.astype(np.float64)) @ signs.T, alike),
                    ]
                )
        for name, values in found.items():
            mean, spread = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
            shown = [f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread)]
            maps = f"{shown[0]} / {shown[1]} | {shown[2]} / {shown[3]}"
            print(f"| {bits} | {name} | {maps} | {shown[4]} | {shown[5]} |", flush=True)


if __name__ == "__main__":
    main()
