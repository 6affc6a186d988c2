"""The reference engine: all distances, one sort. Slow, plain and right; the others must agree."""

from __future__ import annotations

import numpy as np

from transhash.codes import Codes
from transhash.index.base import (
    Neighbours,
    Ranking,
    check_count,
    check_query,
    check_radius,
    empty_ranking,
)
from transhash.index.items import SortedItems


class ExactIndex(SortedItems):
    """Every query meets every item in NumPy."""

    engine = "exact"

    def search(self, codes: Codes, k: int) -> Ranking:
        check_query(codes, self._bits)
        ids, distances = empty_ranking(len(codes), min(check_count(k), len(self)))
        items = Codes(self._packed, self._bits)
        for q in range(len(codes)):
            row = codes[q : q + 1].hamming(items)[0]
            # Items are sorted by id, so a stable sort by distance leaves ties by ascending id.
            best = np.argsort(row, kind="stable")[: ids.shape[1]]
            ids[q], distances[q] = self._ids[best], row[best]
        return Ranking(ids, distances)

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
