"""Measure THN by code length and ranking mode, trained on labels and on pairs.

    python benchmarks/ranking.py FOLDER --bits 16 32 64 128

MAP, mean and deviation over splits, image -> text / text -> image. "target" is scored with the
labels of the target. "held-out captions" needs no labels: auxiliary rows outside the training set
search their own caption or image among all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import DIRECTIONS, chances, maps, mean_cell, pairs_training_set, row_pairs

from transhash.codes import Codes
from transhash.data.relation import Relation
from transhash.evaluation import Scores, score_tie_groups
from transhash.features.images import EfficientNetLite0
from transhash.hashers.thn import THN
from transhash.index.weighted import RANKING_MODES, RankingMode, query_weights, weighted_costs
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import build_split, load_benchmark_features


def score_projections(
    queries: np.ndarray, items: np.ndarray, relation: Relation, mode: RankingMode
) -> Scores:
    """Score the ranking of items for queries, both given as projections."""
    query_codes, item_codes = Codes.from_projections(queries), Codes.from_projections(items)
    weights = query_weights(queries, mode)
    if weights is None:
        weights = np.ones(queries.shape, np.int64)
    return Scores.from_counts(
        score_tie_groups(
            lambda rows: -weighted_costs(query_codes[rows], item_codes, weights[rows]), relation
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--text-features")
    options = parser.parse_args()
    benchmark, _ = load_benchmark_features(options.folder, EfficientNetLite0(), track=progress_bar)
    chance: list[list[float]] = []
    target: dict[tuple[str, int, RankingMode], list[list[float]]] = {}
    captions: dict[tuple[str, int, RankingMode], list[list[float]]] = {}
    for seed in range(options.splits):
        data = build_split(benchmark, seed, texts=options.text_features)
        split = benchmark.split(seed)
        rest = np.setdiff1d(split.held_out_images, split.auxiliary_texts)
        held_out = pairs_training_set(benchmark, rest, data)
        pairs = pairs_training_set(benchmark, split.auxiliary_images, data)
        for bits in options.bits:
            for name, training in (("labels", data.training), ("pairs", pairs)):
                hasher = THN(bits=bits, seed=seed).fit(training)
                x, y = hasher.project_auxiliary(held_out.images, held_out.texts)
                for mode in RANKING_MODES:
                    directions = build_directions(hasher, data.test, mode)
                    scores = score_directions(directions, ranking=mode)
                    relation = row_pairs(len(rest))
                    own = (score_projections(x, y, relation, mode),
                           score_projections(y, x, relation, mode))  # fmt: skip
                    own_scores = dict(zip(DIRECTIONS, own))
                    key = name, bits, mode
                    target.setdefault(key, []).append(maps(scores))
                    captions.setdefault(key, []).append(maps(own_scores))
                    chance.append(chances(scores) + chances(own_scores))
    mean = np.mean(chance, axis=0)
    print(f"chance {mean[0]:.3f} / {mean[1]:.3f} target, "
          f"{mean[2]:.3f} / {mean[3]:.3f} held-out captions")  # fmt: skip
    print("| supervision | bits | ranking | target | held-out captions |\n|---|---|---|---|---|")
    for key in sorted(target, key=lambda k: (k[0], k[1], RANKING_MODES.index(k[2]))):
        name, bits, mode = key
        print(
            f"| {name} | {bits} | {mode} | {mean_cell(target[key])} | {mean_cell(captions[key])} |"
        )


if __name__ == "__main__":
    main()
