"""Fuse the ranking by codes with the ranking by keywords.

The score of an item is its similarity, 1 - 2 c / C with its cost c out of C (0 for a code that is
as different as a random one), plus its coverage of the query's words (0 to 1, search/keywords.py).
Such a sum of scores with fixed bounds is the fusion of Bruch, Gai and Ingber, An Analysis of Fusion
Functions for Hybrid Retrieval (2023), with equal weights. Unlike a sum of reciprocal ranks it needs
no rank of an item that only one of the two found, so the k best are exact: an item without a word
of the query that is not among the k nearest has k items before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.index import Ranking
from transhash.index.weighted import BitWeights, costs_to_items
from transhash.search.keywords import KeywordMatches


def fuse(
    query: Codes, weights: BitWeights | None, nearest: Ranking, matches: KeywordMatches, k: int
) -> Ranking:
    """Return the k best of one query's nearest items and keyword matches.

    Equal scores are ordered by cost, then by Hamming distance, then by number.
    """
    is_item = nearest.ids[0] >= 0
    ids, distances = nearest.ids[0][is_item], nearest.distances[0][is_item]
    costs = distances if nearest.costs is None else nearest.costs[0][is_item]
    others = ~np.isin(matches.numbers, ids)
    matched = rank_codes(query, weights, matches.numbers[others], matches.codes[others])
    ids = np.concatenate([ids, matched.ids[0]])
    distances = np.concatenate([distances, matched.distances[0]]).astype(np.int32)
    assert matched.costs is not None
    costs = np.concatenate([costs, matched.costs[0]])
    coverage = dict(zip(matches.numbers.tolist(), matches.coverage.tolist()))
    highest = query.bits if weights is None else int(weights.sum())
    scores = np.maximum(0, 1 - 2 * costs / max(1, highest))
    scores += [coverage.get(number, 0.0) for number in ids.tolist()]
    order = np.lexsort((ids, distances, costs, -scores))[:k]
    return Ranking(ids[order][None], distances[order][None], costs[order][None])


def rank_codes(
    query: Codes,
    weights: BitWeights | None,
    numbers: npt.NDArray[np.int64],
    packed: npt.NDArray[np.uint8],
) -> Ranking:
    """Return all items for one query: smallest cost first, then by Hamming distance and number."""
    items = Codes(packed, query.bits)
    distances = query.hamming(items)[0].astype(np.int32)
    costs = distances.astype(np.int64)
    if weights is not None:
        costs = costs_to_items(query.packed[0], packed, weights[0])
    order = np.lexsort((numbers, distances, costs))
    return Ranking(numbers[order][None], distances[order][None], costs[order][None])
