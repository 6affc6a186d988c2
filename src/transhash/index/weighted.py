"""Ranking finer than Hamming distances: bits that a query is sure of weigh more.

A query is not its code but the real values z whose signs the code keeps. Stored codes h are scored
by Σ tanh(z_b) h_b (asymmetric distance): that is a constant less twice the sum of |tanh(z_b)| over
the bits in which h differs from the query's code. So a weight for each bit ranks, smallest sum
first, and nothing but codes has to be stored. Weights are whole numbers: sums are exact, whoever
adds them in whatever order, and equal ones are equal.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import DataError

RankingMode = Literal["hamming", "tiebreak", "weighted"]
RANKING_MODES: tuple[RankingMode, ...] = get_args(RankingMode)

BitWeights = npt.NDArray[np.int64]  # (queries, bits), 0 or more
Costs = npt.NDArray[np.int64]  # sums of the weights of differing bits
LAST = np.iinfo(np.int64).max  # the cost of what was not found

_STEPS = 65_535  # of the smallest weight that is told from 0 to the greatest


def check_ranking(mode: str) -> RankingMode:
    """One of the three, or an error that names them."""
    for known in RANKING_MODES:
        if mode == known:
            return known
    raise DataError(f"a ranking is one of {', '.join(RANKING_MODES)}, got {mode!r}")


def query_weights(projections: npt.ArrayLike, mode: RankingMode) -> BitWeights | None:
    """What each bit of each query weighs; None: all alike, which is Hamming distance.

    "weighted": by |tanh z| over all items, equal sums by Hamming distance. "tiebreak": by Hamming
    distance, and by |tanh z| inside equal ones.
    """
    if mode == "hamming":
        return None
    sure = np.abs(np.tanh(np.asarray(projections, np.float64)))  # (queries, bits)
    sure = np.nan_to_num(sure)
    most = sure.max(axis=1, keepdims=True, initial=0)
    weights = np.rint(_STEPS * sure / np.where(most > 0, most, 1)).astype(np.int64)
    if mode == "weighted":
        return np.asarray(weights * (weights.shape[1] + 1) + 1)
    return np.asarray(weights + weights.sum(axis=1, keepdims=True) + 1)


def check_weights(weights: BitWeights, queries: int, bits: int) -> BitWeights:
    """The weights as the kernel takes them."""
    array = np.asarray(weights)
    if array.shape != (queries, bits) or array.dtype.kind not in "iu":
        raise DataError(
            f"weights must be whole numbers of shape {(queries, bits)}, one a bit of each query, "
            f"got {array.dtype} {array.shape}"
        )
    if array.size and (array.min() < 0 or float(array.max()) * bits >= 2.0**62):
        raise DataError("weights must be 0 or more, and their sum below 2**62")
    return np.ascontiguousarray(array, np.int64)


def costs_of(query: npt.NDArray[np.uint8], items: npt.NDArray[np.uint8], weights: Any) -> Costs:
    """The sum of the weights of the bits in which each item differs from one query, all packed."""
    values = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.int64)
    tables = values @ np.asarray(weights, np.int64).reshape(-1, 8).T  # (256, bytes)
    costs = np.zeros(len(items), np.int64)
    for byte in range(items.shape[1]):
        costs += tables[items[:, byte] ^ query[byte], byte]
    return costs


def weighted_costs(queries: Codes, items: Codes, weights: BitWeights) -> Costs:
    """(queries, items) costs: the plain reference."""
    rows = [costs_of(query, items.packed, w) for query, w in zip(queries.packed, weights)]
    return np.stack(rows) if rows else np.zeros((0, len(items)), np.int64)
