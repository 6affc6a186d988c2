"""Compare methods trained on labels with the same methods trained on labels and pairs.

    python benchmarks/labels_and_pairs.py FOLDER --bits 32 64 128
    python benchmarks/labels_and_pairs.py FOLDER --methods DCMH DCMH-published --supervision both
    python benchmarks/labels_and_pairs.py FOLDER --methods DCMH-published --supervision both \
      --features alexnet --set weights=alexnet.pth device=cuda precision=bfloat16   # from pixels

Both train on the same rows of a split. Prints MAP of the target by class (image -> text / text ->
image) with Hamming and with weighted ranking, and the rank of a held-out caption's own image among
the held-out images that share a label with it, as a fraction (0 is first, .5 is chance). Mean and
deviation over splits.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
from common import maps, mean_cells, row_pairs

from transhash.cli.fit import parse_settings
from transhash.data.collection import label_matrix
from transhash.data.relation import GradedRelation, LabelRelation, Relation
from transhash.data.training_set import TrainingSet
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import build_split, load_benchmark_features

SUPERVISION = {"labels": "labels", "both": "labels and pairs"}  # names in the table


def rank_in_class(scores: npt.NDArray[np.float64], related: npt.NDArray[np.bool_]) -> float:
    """Return the mean fraction of its class that ranks before a caption's own image."""
    own = np.diag(scores)
    fractions = []
    for row in range(len(own)):
        others = related[row].copy()
        others[row] = False
        if others.any():
            rest = scores[row, others]
            fractions.append(((rest > own[row]) + 0.5 * (rest == own[row])).mean())
    return float(np.mean(fractions))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["THN"])
    parser.add_argument("--supervision", nargs="+", default=SUPERVISION,
                        choices=SUPERVISION)  # fmt: skip
    parser.add_argument("--features", default="efficientnet-lite0", help="image features")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the methods")
    options = parser.parse_args()
    settings = parse_settings(options.set)
    features = image_features(options.features, settings.get("device", "cpu"))
    benchmark, _ = load_benchmark_features(options.folder, features, track=progress_bar)
    images, captions = benchmark.auxiliary_images, benchmark.auxiliary_texts
    assert images.features is not None
    assert images.labels is not None
    labels = label_matrix(images.labels, sorted(set().union(*images.labels)))
    print("| method | bits | supervision | MAP, Hamming | weighted | rank, Hamming | weighted |")
    print("|---|---|---|---|---|---|---|")
    for method, bits in product(options.methods, options.bits):
        results: dict[str, list[list[float]]] = {name: [] for name in options.supervision}
        for seed in options.splits:
            split, rows = build_split(benchmark, seed), benchmark.split(seed).auxiliary_images
            rest = np.setdiff1d(np.arange(len(images)), rows)
            by_label = LabelRelation(labels[rows], labels[rows])
            relations: dict[str, Relation] = {
                "labels": by_label,
                "both": GradedRelation(by_label, row_pairs(len(rows))),
            }
            texts = split.text_features.transform(captions.take(rows).items)
            held_out_texts = split.text_features.transform(captions.take(rest).items)
            related = labels[rest] @ labels[rest].T
            target = split.training.target_images, split.training.target_texts
            for name in options.supervision:
                training = TrainingSet(images.features[rows], texts, relations[name], *target)
                hasher = make_hasher(method, bits=bits, seed=seed, **settings).fit(training)
                z_x, z_y = hasher.project_auxiliary(images.features[rest], held_out_texts)
                signs = np.where(z_x > 0, 1.0, -1.0)
                results[name].append(
                    [
                        *maps(score_directions(build_directions(hasher, split.test))),
                        *maps(score_directions(build_directions(hasher, split.test, "weighted"))),
                        rank_in_class(np.where(z_y > 0, 1.0, -1.0) @ signs.T, related),
                        rank_in_class(np.tanh(z_y.astype(np.float64)) @ signs.T, related),
                    ]
                )
        for name, values in results.items():
            cells = mean_cells(values)
            scores = f"{cells[0]} / {cells[1]} | {cells[2]} / {cells[3]} | {cells[4]} | {cells[5]}"
            print(f"| {method} | {bits} | {SUPERVISION[name]} | {scores} |", flush=True)


if __name__ == "__main__":
    main()
