"""FAISS's exact binary index behind the Index contract: the same results, ties by id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.index.base import (
    NO_IDS,
    Distances,
    HitLists,
    Ids,
    Packed,
    Ranking,
    check_search,
    pad_rows,
    rerank,
    rerank_pool,
)
from transhash.index.exact import SortedItems
from transhash.index.weighted import BitWeights


class FaissIndex(SortedItems):
    """IndexBinaryFlat over the items sorted by id; rebuilt at the first search after a change."""

    _flat: Any = None

    def candidates(self, k: int) -> int:
        return rerank_pool(k)

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        """With weights, rerank all items no farther than the `candidates(k)`-th."""
        k, weights = check_search(codes, self._bits, k, weights)
        if self._flat is None:
            self._flat = flat_index(self._packed)
        count = k if weights is None else rerank_pool(k)
        offsets, rows, distances = nearest_rows(self._flat, codes.packed, count)
        if weights is None:
            return pad_rows(offsets, self._ids[rows], distances, k)
        hits = HitLists(offsets, self._ids[rows], distances)
        return rerank(hits, self._packed[rows], codes, weights, k)

    def _replace(self, ids: Ids, packed: Packed) -> None:
        super()._replace(ids, packed)
        self._flat = None


def flat_index(packed: Packed) -> Any:
    import faiss

    flat = faiss.IndexBinaryFlat(packed.shape[1] * 8)
    flat.add(packed)
    return flat


def write_faiss(path: Path, ids: Ids, codes: Codes) -> None:
    """Write a flat index with these ids as a file that FAISS reads."""
    import faiss

    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(codes.bits))
    if len(ids):
        index.add_with_ids(codes.packed, ids)
    faiss.write_index_binary(index, str(path))


def nearest_rows(flat: Any, queries: Packed, k: int) -> HitLists:
    """Return all rows no farther than the k-th of each query, by distance, then by row.

    FAISS returns an arbitrary choice of the rows at the k-th distance. A range search with that
    distance as radius returns all of them, so the caller can break the tie by id.
    """
    count = min(k, flat.ntotal)
    if count == 0 or len(queries) == 0:
        return HitLists(np.zeros(len(queries) + 1, np.int64), NO_IDS, np.empty(0, np.int32))
    last = flat.search(queries, count)[0][:, -1]
    parts: list[tuple[Ids, Distances]] = [(NO_IDS, np.empty(0, np.int32))] * len(queries)
    for radius in np.unique(last):
        chosen = np.flatnonzero(last == radius)
        offsets, rows, distances = _rows_within(flat, queries[chosen], int(radius))
        for q, start, end in zip(chosen, offsets, offsets[1:]):
            parts[q] = rows[start:end], distances[start:end]
    return HitLists(
        np.cumsum([0, *(len(rows) for rows, _ in parts)], dtype=np.int64),
        np.concatenate([rows for rows, _ in parts]),
        np.concatenate([distances for _, distances in parts]),
    )


def _rows_within(flat: Any, queries: Packed, radius: int) -> HitLists:
    # FAISS's radius is exclusive.
    limits, distances, rows = flat.range_search(queries, radius + 1)
    offsets = limits.astype(np.int64)
    query_of_hit = np.repeat(np.arange(len(queries)), np.diff(offsets))
    order = np.lexsort((rows, distances, query_of_hit))
    return HitLists(offsets, rows[order].astype(np.int64), distances[order].astype(np.int32))
