"""The reference engine: all distances, one sort. Slow, plain and right; the others must agree."""

from __future__ import annotations

import numpy as np

from transhash.codes import Codes
from transhash.index.base import (
    Neighbours,
    Ranking,
    check_query,
    check_radius,
    check_search,
    empty_ranking,
)
from transhash.index.items import SortedItems
from transhash.index.weighted import BitWeights, costs_of


class ExactIndex(SortedItems):
    """Every query meets every item in NumPy."""

    engine = "exact"

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        k, weights = check_search(codes, self._bits, k, weights)
        width = min(k, len(self))
        found = empty_ranking(len(codes), width, weighted=weights is not None)
        items = Codes(self._packed, self._bits)
        for q in range(len(codes)):
            row = codes[q : q + 1].hamming(items)[0]
            # Items are sorted by id, so a stable sort by distance leaves ties by ascending id.
            best = np.argsort(row, kind="stable")
            if weights is not None and found.costs is not None:
                costs = costs_of(codes.packed[q], self._packed, weights[q])
                best = best[np.argsort(costs[best], kind="stable")]
                found.costs[q] = costs[best[:width]]
            best = best[:width]
            found.ids[q], found.distances[q] = self._ids[best], row[best]
        return found

    def search_radius(self, codes: Codes, radius: int) -> Neighbours:
        check_query(codes, self._bits)
        radius = check_radius(radius)
        items = Codes(self._packed, self._bits)
        ids, distances = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for q in range(len(codes)):
            row = codes[q : q + 1].hamming(items)[0]
            within = np.flatnonzero(row <= radius)
            within = within[np.argsort(row[within], kind="stable")]
            ids.append(self._ids[within])
            distances.append(row[within].astype(np.int32))
        offsets = np.cumsum([len(part) for part in ids], dtype=np.int64)
        return Neighbours(offsets, np.concatenate(ids), np.concatenate(distances))
