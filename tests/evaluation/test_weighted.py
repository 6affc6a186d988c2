"""Rankings finer than Hamming distance, scored in expectation over the remaining ties."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.errors import DataError
from transhash.evaluation import Scores, evaluate, result_tie_groups
from transhash.index.exact import ExactIndex
from transhash.index.weighted import RankingMode, query_weights

from .orders import average_precision, mean_over_orders

SIZES = [0.0, 0.2, 0.2, 1.5]  # few, so that items tie


def random_data(seed: int, items: int = 10) -> tuple[np.ndarray, Codes, np.ndarray, np.ndarray]:
    """Projections of 6 queries, codes of items that repeat, and one class each."""
    rng = np.random.default_rng(seed)
    z = rng.choice(SIZES, (6, 8)) * rng.choice([-1, 1], (6, 8))
    codes = Codes(rng.choice(np.array([3, 12, 15, 200, 201], np.uint8), (items, 1)), 8)
    labels = [np.eye(2, dtype=bool)[rng.integers(0, 2, n)] for n in (6, items)]
    return z, codes, labels[0], labels[1]


def average_precisions(
    z: np.ndarray, codes: Codes, query_labels: np.ndarray, labels: np.ndarray, mode: str
) -> list:
    """Return the AP of each query, the mean over every order of tied items."""
    values = []
    for projections, label in zip(z, query_labels, strict=True):
        signs = np.where(projections > 0, 1, -1)
        confidence = np.abs(np.tanh(projections))
        confidence = np.rint(65535 * confidence / (confidence.max() or 1))
        keys = []
        for code, own in zip(codes.signs(), labels, strict=True):
            differing = signs != code
            cost, distance = confidence[differing].sum(), differing.sum()
            order = {
                "hamming": (distance,),
                "tiebreak": (distance, cost),
                "weighted": (cost, distance),
            }[mode]
            keys.append((order, bool((label & own).any())))
        keys.sort(key=lambda pair: pair[0])
        groups = []
        for _, members in groupby(keys, key=lambda pair: pair[0]):
            relevant = [hit for _, hit in members]
            groups.append((len(relevant), sum(relevant)))
        if any(r for _, r in groups):
            values.append(mean_over_orders(lambda row: average_precision(row, 99, "all"), groups))
    return values


@pytest.mark.parametrize("mode", ["hamming", "tiebreak", "weighted"])
@pytest.mark.parametrize("seed", range(8))
def test_every_ranking_is_scored_in_expectation_over_its_ties(seed: int, mode: RankingMode) -> None:
    z, codes, query_labels, labels = random_data(seed)
    queries = Codes.from_projections(z)
    scores = evaluate(queries, codes, query_labels, labels, ranking=mode, query_projections=z)
    assert scores.map == pytest.approx(
        np.mean(average_precisions(z, codes, query_labels, labels, mode)), abs=1e-12
    )
    assert scores.worst_tie_order <= scores.map <= scores.best_tie_order
    assert scores.ranking == scores.to_dict()["ranking"] == mode
    assert f"ranking {mode}" in str(scores)
    assert scores.bits == 8
    assert bool(scores.pr_by_radius) == (mode == "hamming")


@pytest.mark.parametrize("mode", ["tiebreak", "weighted"])
def test_search_results_have_the_same_scores(mode: RankingMode) -> None:
    z, codes, query_labels, labels = random_data(3, items=40)
    queries, weights = Codes.from_projections(z), query_weights(z, mode)
    index = ExactIndex(8)
    index.add(np.arange(40), codes)
    ranking = index.search(queries, 40, weights)
    assert ranking.costs is not None
    ours = Scores.from_counts([result_tie_groups(ranking.ids, ranking.costs, query_labels, labels)])
    expected = evaluate(queries, codes, query_labels, labels, ranking=mode, query_projections=z)
    assert ours.map == pytest.approx(expected.map, abs=1e-12)
    # Items that a search omits come last, in any order.
    few = index.search(queries, 7, weights)
    assert few.costs is not None
    partial = result_tie_groups(few.ids, few.costs, query_labels, labels)
    assert partial.items.sum(axis=1).tolist() == [40] * 6
    assert (
        partial.relevant.sum(axis=1).tolist()
        == (query_labels.astype(int) @ labels.T).sum(axis=1).tolist()
    )
    assert Scores.from_counts([partial]).chance == pytest.approx(expected.chance, abs=1e-12)


def test_wrong_projections_are_refused() -> None:
    z, codes, query_labels, labels = random_data(0)
    queries = Codes.from_projections(z)
    for wrong in (None, -z - 1, z[:3]):
        with pytest.raises(DataError, match="query_projections"):
            evaluate(
                queries, codes, query_labels, labels, ranking="weighted", query_projections=wrong
            )
    with pytest.raises(DataError, match="cosine"):
        evaluate(queries, codes, query_labels, labels, ranking="cosine")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="6 queries and 10 items"):
        evaluate(queries, codes, query_labels[:5], labels, ranking="weighted", query_projections=z)
