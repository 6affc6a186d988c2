"""Finer rankings than Hamming distance, scored in expectation over what remains equal."""

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

SIZES = [0.0, 0.2, 0.2, 1.5]  # few, so that items stay equal


def drawn(seed: int, items: int = 10) -> tuple[np.ndarray, Codes, np.ndarray, np.ndarray]:
    """Projections of 6 queries, codes of some items that repeat, and a class each."""
    rng = np.random.default_rng(seed)
    z = rng.choice(SIZES, (6, 8)) * rng.choice([-1, 1], (6, 8))
    codes = Codes(rng.choice(np.array([3, 12, 15, 200, 201], np.uint8), (items, 1)), 8)
    labels = [np.eye(2, dtype=bool)[rng.integers(0, 2, n)] for n in (6, items)]
    return z, codes, labels[0], labels[1]


def by_hand(
    z: np.ndarray, codes: Codes, encode_queries: np.ndarray, labels: np.ndarray, mode: str
) -> list:
    """AP of each query, the mean over every order of items that the ranking does not tell apart."""
    found = []
    for values, label in zip(z, encode_queries, strict=True):
        signs = np.where(values > 0, 1, -1)
        sure = np.abs(np.tanh(values))
        sure = np.rint(65535 * sure / (sure.max() or 1))
        keys = []
        for code, own in zip(codes.signs(), labels, strict=True):
            differing = signs != code
            cost, far = sure[differing].sum(), differing.sum()
            order = {"hamming": (far,), "tiebreak": (far, cost), "weighted": (cost, far)}[mode]
            keys.append((order, bool((label & own).any())))
        keys.sort(key=lambda pair: pair[0])
        groups = []
        for _, members in groupby(keys, key=lambda pair: pair[0]):
            relevant = [hit for _, hit in members]
            groups.append((len(relevant), sum(relevant)))
        if any(r for _, r in groups):
            found.append(mean_over_orders(lambda row: average_precision(row, 99, "all"), groups))
    return found


@pytest.mark.parametrize("mode", ["hamming", "tiebreak", "weighted"])
@pytest.mark.parametrize("seed", range(8))
def test_every_ranking_is_scored_in_expectation_over_what_it_leaves_equal(
    seed: int, mode: RankingMode
) -> None:
    z, codes, encode_queries, labels = drawn(seed)
    queries = Codes.from_projections(z)
    scores = evaluate(queries, codes, encode_queries, labels, ranking=mode, query_projections=z)
    assert scores.map == pytest.approx(
        np.mean(by_hand(z, codes, encode_queries, labels, mode)), abs=1e-12
    )
    assert scores.worst_tie_order <= scores.map <= scores.best_tie_order
    assert scores.ranking == scores.to_dict()["ranking"] == mode
    assert f"ranking {mode}" in str(scores)
    assert scores.bits == 8
    assert bool(scores.pr_by_radius) == (mode == "hamming")


@pytest.mark.parametrize("mode", ["tiebreak", "weighted"])
def test_what_an_engine_answers_is_scored_alike(mode: RankingMode) -> None:
    z, codes, encode_queries, labels = drawn(3, items=40)
    queries, weights = Codes.from_projections(z), query_weights(z, mode)
    index = ExactIndex(8)
    index.add(np.arange(40), codes)
    found = index.search(queries, 40, weights)
    assert found.costs is not None
    ours = Scores.from_counts([result_tie_groups(found.ids, found.costs, encode_queries, labels)])
    whole = evaluate(queries, codes, encode_queries, labels, ranking=mode, query_projections=z)
    assert ours.map == pytest.approx(whole.map, abs=1e-12)
    # An engine that leaves items out: they come last, in any order.
    few = index.search(queries, 7, weights)
    assert few.costs is not None
    cut = result_tie_groups(few.ids, few.costs, encode_queries, labels)
    assert cut.items.sum(axis=1).tolist() == [40] * 6
    assert (
        cut.relevant.sum(axis=1).tolist()
        == (encode_queries.astype(int) @ labels.T).sum(axis=1).tolist()
    )
    assert Scores.from_counts([cut]).chance == pytest.approx(whole.chance, abs=1e-12)


def test_projections_of_other_queries_are_refused() -> None:
    z, codes, encode_queries, labels = drawn(0)
    queries = Codes.from_projections(z)
    for wrong in (None, -z - 1, z[:3]):
        with pytest.raises(DataError, match="'all' needs query_projections"):
            evaluate(
                queries, codes, encode_queries, labels, ranking="weighted", query_projections=wrong
            )
    with pytest.raises(DataError, match="one of hamming, ties, all"):
        evaluate(queries, codes, encode_queries, labels, ranking="cosine")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="6 queries against 10 items, but the labels"):
        evaluate(
            queries, codes, encode_queries[:5], labels, ranking="weighted", query_projections=z
        )
