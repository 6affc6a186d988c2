"""Closed forms against the mean over all tie orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from transhash.evaluation import DEFINITIONS, DistanceHistogram
from transhash.evaluation.average_precision import (
    _hypergeometric,
    _negative_hypergeometric,
    harmonic_span,
)

from .orders import (
    CASES,
    Groups,
    average_precision,
    first_relevant,
    histogram,
    mean_over_orders,
    precisions,
    rankings,
)

EXACT = {"rel": 1e-12, "abs": 1e-13}


@pytest.mark.parametrize("groups", CASES)
@pytest.mark.parametrize("divisor", ["all", "min", "hits"])
def test_average_precision_at_every_cutoff_is_the_mean_over_all_tie_orders(
    groups: Groups, divisor: str
) -> None:
    size = sum(items for items, _ in groups)
    for k in range(1, size + 2):
        expected = mean_over_orders(lambda r, k=k: average_precision(r, k, divisor), groups)
        assert DEFINITIONS[divisor].score(histogram(groups), k) == pytest.approx(expected, **EXACT)
    complete = mean_over_orders(lambda r: float(precisions(r).mean()), groups)
    assert DEFINITIONS[divisor].score(histogram(groups)) == pytest.approx(complete, **EXACT)


@pytest.mark.parametrize("groups", CASES)
def test_the_first_k_relevant_items_are_averaged_over_all_tie_orders(groups: Groups) -> None:
    for k in range(1, sum(relevant for _, relevant in groups) + 2):
        expected = mean_over_orders(lambda r, k=k: first_relevant(r, k), groups)
        measured = DEFINITIONS["torchcmh"].score(histogram(groups), k)
        assert measured == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("groups", CASES)
def test_precision_and_recall_at_a_rank_are_means_over_all_tie_orders(groups: Groups) -> None:
    total = sum(relevant for _, relevant in groups)
    for k in range(1, sum(items for items, _ in groups) + 1):
        hits = mean_over_orders(lambda r, k=k: float(r[:k].sum()), groups)
        assert histogram(groups).precision_at(k)[0] == pytest.approx(hits / k, **EXACT)
        assert histogram(groups).recall_at(k)[0] == pytest.approx(hits / total, **EXACT)


@pytest.mark.parametrize("groups", CASES)
def test_best_and_worst_tie_order_are_the_extremes_of_all_orders(groups: Groups) -> None:
    scores = [float(precisions(ranking).mean()) for ranking in rankings(groups)]
    measure = DEFINITIONS["all"].score
    assert measure(histogram(groups).relevant_first()) == pytest.approx(max(scores), **EXACT)
    assert measure(histogram(groups).relevant_last()) == pytest.approx(min(scores), **EXACT)


def test_large_tie_groups_agree_with_random_orders() -> None:
    """Groups too large to enumerate: 20,000 sampled orders, within five standard errors."""
    groups: Groups = [(40, 9), (300, 60), (200, 20)]
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(20_000):
        row = [rng.permutation(np.arange(n) < r) for n, r in groups]
        rows.append(np.concatenate(row).astype(int))
    for name, k, score in (
        ("hits", 100, lambda r: average_precision(r, 100, "hits")),
        ("torchcmh", 30, lambda r: first_relevant(r, 30)),
        ("all", None, lambda r: float(precisions(r).mean())),
    ):
        sample = np.array([score(row) for row in rows])
        error = 5 * sample.std() / len(sample) ** 0.5
        measured = DEFINITIONS[name].score(histogram(groups), k)
        assert measured == pytest.approx(sample.mean(), abs=error)


def test_huge_groups_keep_their_precision() -> None:
    """Against exact sums: two relevant items in a group behind a million others."""
    items = np.array([[1_000_000, 2, 999_998]], dtype=np.int64)
    relevant = np.array([[0, 2, 0]], dtype=np.int64)
    expected = (1 / 1_000_001 + 2 / 1_000_002) / 2
    measured = DEFINITIONS["all"].score(DistanceHistogram(items, relevant))
    assert measured == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("start", [0, 1, 63, 64, 65, 1000, 10**6])
def test_harmonic_spans_equal_plain_sums(start: int) -> None:
    lengths = np.array([0, 1, 2, 100, 5000])
    sums = [np.sum(1 / np.arange(start + 1, start + n + 1)[::-1]) for n in lengths]
    np.testing.assert_allclose(harmonic_span(start, lengths), sums, rtol=2e-13)


def test_chance_is_the_fraction_of_relevant_items_in_a_large_database() -> None:
    flat = histogram([(30_000, 2_000), (70_000, 8_000)]).collapse_to_one_group()
    size, relevant = 100_000, 10_000
    slope = (relevant - 1) / (size - 1)
    harmonic = np.sum(1 / np.arange(1, size + 1))
    closed = ((1 - slope) * harmonic + slope * size) / size
    assert DEFINITIONS["all"].score(flat) == pytest.approx(closed, rel=1e-12)
    assert closed == pytest.approx(0.1, abs=0.001)


group_lists = st.lists(
    st.integers(0, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    min_size=1,
    max_size=9,
).filter(lambda groups: sum(relevant for _, relevant in groups) > 0)


@given(group_lists, st.integers(1, 500))
@settings(max_examples=150, deadline=None)
def test_expected_map_lies_between_worst_and_best_tie_order(groups: Groups, k: int) -> None:
    table = histogram(groups)
    for name in ("all", "min", "torchcmh"):
        for cutoff in (None, k):
            measure = DEFINITIONS[name].score
            worst, best = (
                measure(table.relevant_last(), cutoff),
                measure(table.relevant_first(), cutoff),
            )
            assert worst - 1e-12 <= measure(table, cutoff) <= best + 1e-12


@given(group_lists, st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_a_cutoff_beyond_the_database_changes_nothing(groups: Groups, beyond: int) -> None:
    table = histogram(groups)
    for name in ("all", "min", "hits", "torchcmh"):
        measure = DEFINITIONS[name].score
        complete = measure(table)
        assert measure(table, table.database + beyond) == pytest.approx(complete, rel=1e-12)


@given(st.integers(1, 300), st.data())
@settings(max_examples=100, deadline=None)
def test_without_ties_all_orders_agree(size: int, data: st.DataObject) -> None:
    ranking = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size).filter(any))
    table = histogram([(1, value) for value in ranking])
    expected = pytest.approx(float(precisions(np.array(ranking)).mean()), rel=1e-11)
    for variant in (table, table.relevant_first(), table.relevant_last()):
        for name in ("all", "hits", "torchcmh", "scikit-learn"):
            assert DEFINITIONS[name].score(variant) == expected


@pytest.mark.parametrize(
    ("n", "r", "t"), [(10, 4, 3), (200_000, 30_000, 5000), (200_000, 3, 5000), (5000, 4990, 50)]
)
def test_the_distributions_of_the_straddling_group_equal_scipy(n: int, r: int, t: int) -> None:
    hits, probability = _hypergeometric(n, r, t)
    np.testing.assert_allclose(probability, hypergeom(n, r, t).pmf(hits), atol=1e-10)
    s = min(r, t) // 2 + 1
    places, probability = _negative_hypergeometric(n, r, s)
    # The s-th relevant item is at place z iff z draws have s, and the last draw is one of them.
    np.testing.assert_allclose(probability, s / places * hypergeom(n, r, places).pmf(s), atol=1e-10)
