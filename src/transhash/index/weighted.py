"""Rankings finer than Hamming distance: bits that a query is confident of weigh more.

A query has more than its code: the projections z whose signs the code stores. Codes h are scored by
Σ tanh(z_b) h_b (asymmetric distance), which is a constant minus twice the sum of |tanh(z_b)| over
the bits in which h differs from the query's code. So one weight per bit gives the ranking, smallest
sum first, and only codes have to be stored. Weights are integers: their sums are exact in any order
of addition, and equal sums compare equal.
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
MAX_COST = np.iinfo(np.int64).max  # the cost in a Ranking without an item

_STEPS = 65_535  # resolution: the greatest weight in units of the smallest one


def check_ranking(mode: str) -> RankingMode:
    for known in RANKING_MODES:
        if isinstance(mode, str) and mode == known:
            return known
    raise DataError(f"Unknown ranking {mode!r}. Choose from: {', '.join(RANKING_MODES)}.")


def query_weights(projections: npt.ArrayLike, mode: RankingMode) -> BitWeights | None:
    """Return the weight of each bit of each query; None for Hamming distance.

    "weighted" ranks by |tanh z|, equal sums by Hamming distance. "tiebreak" ranks by Hamming
    distance, and items at equal distance by |tanh z|.
    """
    if mode == "hamming":
        return None
    confidence = np.abs(np.tanh(np.asarray(projections, np.float64)))  # (queries, bits)
    confidence = np.nan_to_num(confidence)
    highest = confidence.max(axis=1, keepdims=True, initial=0)
    weights = np.rint(_STEPS * confidence / np.where(highest > 0, highest, 1)).astype(np.int64)
    if mode == "weighted":
        return np.asarray(weights * (weights.shape[1] + 1) + 1)
    return np.asarray(weights + weights.sum(axis=1, keepdims=True) + 1)


def check_weights(weights: BitWeights, queries: int, bits: int) -> BitWeights:
    """Return the weights in the form the kernel takes."""
    array = np.asarray(weights)
    if array.shape != (queries, bits) or array.dtype.kind not in "iu":
        raise DataError(
            f"Weights must be integers of shape {(queries, bits)}, one per bit of each query, "
            f"got {array.dtype} {array.shape}."
        )
    if array.size and (array.min() < 0 or float(array.max()) * bits >= 2.0**62):
        raise DataError("Weights must be 0 or more, and their sum below 2**62.")
    return np.ascontiguousarray(array, np.int64)


def costs_to_items(
    query: npt.NDArray[np.uint8], items: npt.NDArray[np.uint8], weights: Any
) -> Costs:
    """Return the sum of the weights of the bits in which each packed item differs from a query."""
    values = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.int64)
    tables = values @ np.asarray(weights, np.int64).reshape(-1, 8).T  # (256, bytes)
    costs = np.zeros(len(items), np.int64)
    for byte in range(items.shape[1]):
        costs += tables[items[:, byte] ^ query[byte], byte]
    return costs


def weighted_costs(queries: Codes, items: Codes, weights: BitWeights) -> Costs:
    """Return the (queries, items) matrix of costs."""
    rows = [costs_to_items(query, items.packed, w) for query, w in zip(queries.packed, weights)]
    return np.stack(rows) if rows else np.zeros((0, len(items)), np.int64)
