"""Oracles: every order of tied items, and AP as plain loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product

import numpy as np

from transhash.evaluation import DistanceHistogram

Groups = list[tuple[int, int]]  # items, relevant; nearest first


def histogram(*queries: Groups) -> DistanceHistogram:
    tables = np.array(queries, dtype=np.int64)
    return DistanceHistogram(tables[:, :, 0].copy(), tables[:, :, 1].copy())


def rankings(groups: Groups) -> Iterator[np.ndarray]:
    """Yield all equally likely patterns of relevance down the list."""

    def arrangements(items: int, relevant: int) -> list[list[int]]:
        return [
            [int(i in places) for i in range(items)]
            for places in combinations(range(items), relevant)
        ]

    for parts in product(*(arrangements(n, r) for n, r in groups)):
        yield np.array([value for part in parts for value in part])


def mean_over_orders(score: Callable[[np.ndarray], float], groups: Groups) -> float:
    return float(np.mean([score(ranking) for ranking in rankings(groups)]))


def precisions(ranking: np.ndarray) -> np.ndarray:
    """Precision at each relevant item, in order."""
    places = np.flatnonzero(ranking) + 1
    return np.arange(1, len(places) + 1) / places


def average_precision(ranking: np.ndarray, k: int, divisor: str) -> float:
    head = precisions(ranking[:k])
    total = ranking.sum()
    by = {"all": total, "min": min(total, k), "hits": len(head)}[divisor]
    return float(head.sum() / by) if by else 0.0


def first_relevant(ranking: np.ndarray, k: int) -> float:
    return float(precisions(ranking)[:k].mean()) if ranking.any() else 0.0


CASES: list[Groups] = [
    [(1, 1)],
    [(4, 2)],
    [(3, 0), (5, 3)],
    [(2, 1), (0, 0), (4, 2), (3, 1)],
    [(1, 0), (6, 2), (2, 2)],
    [(5, 5), (3, 1)],
    [(1, 0), (1, 1), (1, 0), (1, 1)],
    [(7, 3), (1, 0), (4, 3)],
    [(10, 4)],
]
