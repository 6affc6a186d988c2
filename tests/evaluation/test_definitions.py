"""The MAP definition of each repository, re-implemented as a small loop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from transhash.errors import DataError
from transhash.evaluation import DEFINITIONS, find_definition

from .orders import Groups, histogram, precisions, rankings

Rankings = list[np.ndarray]


def thulab(queries: Rankings, k: int) -> float:
    scores = []
    for ranking in queries:
        match = ranking[:k]
        precision = np.cumsum(match) / np.arange(1, len(match) + 1)
        if match.sum() != 0:
            scores.append((precision * match).sum() / match.sum())
    return float(np.mean(scores)) if scores else float("nan")


def deephash_pytorch(queries: Rankings, k: int) -> float:
    total = 0.0
    for ranking in queries:
        head = ranking[0:k]  # k = -1 loses the last item, as in the original
        if head.sum():
            total += precisions(head).mean()
    return total / len(queries)


def dcmh(queries: Rankings, k: int) -> float:
    return sum(precisions(r).mean() for r in queries if r.any()) / len(queries)


def first_k(queries: Rankings, k: int) -> float:
    total = 0.0
    for ranking in queries:
        if ranking.any():
            total += precisions(ranking)[: min(k, ranking.sum())].mean()
    return total / len(queries)


def dchmt(queries: Rankings, k: int) -> float:
    if not all(ranking.any() for ranking in queries):
        return float("nan")
    return first_k(queries, k)


def bmc(queries: Rankings, k: int) -> float:
    good, total = 10, 0.0
    for ranking in queries:
        if ranking.any():
            good += 1
            total += precisions(ranking).mean()
    return total / good


def trec(queries: Rankings, k: int) -> float:
    scores = [precisions(r[:k]).sum() / r.sum() if r.any() else 0.0 for r in queries]
    return float(np.mean(scores))


LOOPS: dict[str, Callable[[Rankings, int], float]] = {
    "thulab/DeepHash": thulab,
    "HashNet": thulab,
    "UCCH": thulab,
    "DeepHash-pytorch": deephash_pytorch,
    "FIRe": deephash_pytorch,
    "torchmetrics": deephash_pytorch,
    "DCMH": dcmh,
    "UCMFH": dcmh,
    "torchcmh": first_k,
    "WendellGul/DCMH": first_k,
    "DSPH": first_k,
    "DCHMT": dchmt,
    "BMC-SDNU": bmc,
    "ranx": trec,
    "trec_eval": trec,
}
WITHOUT_CUTOFF = {"DCMH", "UCMFH", "BMC-SDNU"}

# Three queries, ties everywhere; the last one has few hits, so that a cutoff can miss them all.
QUERIES: list[Groups] = [
    [(3, 1), (2, 1), (2, 0)],
    [(2, 0), (4, 2), (1, 1)],
    [(4, 1), (2, 0), (1, 0)],
]
NOTHING_RELEVANT: Groups = [(4, 0), (2, 0), (1, 0)]


def mean_over_all_orders(loop: Callable[[Rankings, int], float], k: int, *extra: Groups) -> float:
    joint = product(*(list(rankings(groups)) for groups in (*QUERIES, *extra)))
    scores = np.array([loop(list(queries), k) for queries in joint])
    if np.isnan(scores).all():
        return float("nan")
    return float(np.nanmean(scores))  # thulab: outcomes without any hit do not count


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("empty", [False, True])
def test_a_definition_is_its_loop_averaged_over_all_joint_tie_orders(
    name: str, empty: bool
) -> None:
    extra = [NOTHING_RELEVANT] if empty else []
    table = histogram(*QUERIES, *extra)
    for k in [7] if name in WITHOUT_CUTOFF else [1, 2, 3, 5, 7]:
        cutoff = None if name in WITHOUT_CUTOFF else k
        expected = mean_over_all_orders(LOOPS[name], k, *extra)
        measured = find_definition(name, cutoff).score(table, cutoff)
        assert measured == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_every_other_definition_is_checked_here_or_against_its_library() -> None:
    ours, elsewhere = {"all", "min", "hits"}, {"TALR", "scikit-learn"}
    assert set(DEFINITIONS) == set(LOOPS) | ours | elsewhere


def test_deephash_pytorch_loses_the_last_rank_without_a_cutoff() -> None:
    expected = mean_over_all_orders(deephash_pytorch, -1)
    measured = DEFINITIONS["DeepHash-pytorch"].score(histogram(*QUERIES))
    assert measured == pytest.approx(expected, rel=1e-12)
    assert "last rank lost" in DEFINITIONS["DeepHash-pytorch"].describe()


def test_dropping_queries_without_a_hit_is_exact_if_no_hit_is_certain() -> None:
    pair = [[(5, 1)], [(5, 2)]]
    joint = product(*(list(rankings(groups)) for groups in pair))
    scores = [thulab(list(queries), 2) for queries in joint]
    measured = DEFINITIONS["thulab/DeepHash"].score(histogram(*pair), 2)
    assert measured == pytest.approx(float(np.nanmean(scores)), rel=1e-12)


def test_dropping_queries_without_a_hit_works_for_thousands_of_queries() -> None:
    """Against sampling: 2,000 queries most of which may have no hit before the cutoff."""
    rng = np.random.default_rng(0)
    groups = [[(50, int(r)), (50, 5)] for r in rng.integers(0, 4, 2000)]
    means = []
    for _ in range(30):
        rows = [rng.permutation(np.arange(50) < g[0][1]).astype(int) for g in groups]
        means.append(thulab(rows, 10))
    measured = DEFINITIONS["thulab/DeepHash"].score(histogram(*groups), 10)
    assert measured == pytest.approx(np.mean(means), abs=5 * np.std(means) / 30**0.5)


def test_the_same_ranking_scores_differently_under_other_definitions() -> None:
    """Dividing by the hits scores [+ - -] above [+ - +]."""
    fewer, more = histogram([(1, 1), (1, 0), (1, 0)]), histogram([(1, 1), (1, 0), (1, 1)])
    by_hits, by_min = DEFINITIONS["hits"], DEFINITIONS["min"]
    assert by_hits.score(fewer, 3) == 1.0
    assert by_hits.score(more, 3) == pytest.approx(5 / 6)
    assert by_min.score(more, 2) == pytest.approx(1 / 2)


def test_an_unknown_definition_is_refused_with_the_known_names() -> None:
    with pytest.raises(DataError, match=r"'mAP'.*thulab/DeepHash"):
        find_definition("mAP")


def test_a_cutoff_is_refused_if_the_original_has_none() -> None:
    with pytest.raises(DataError, match="DCMH has no cutoff"):
        find_definition("DCMH", 5000)


def test_each_definition_has_a_description() -> None:
    assert DEFINITIONS["thulab/DeepHash"].describe(5000) == (
        "mAP@5000, divided by the relevant items found before the cut, "
        "queries without a hit before the cut dropped, ties in expectation"
    )
    assert len({definition.describe() for definition in DEFINITIONS.values()}) >= 9
