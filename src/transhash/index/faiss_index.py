"""FAISS's exact binary index behind our contract: same neighbours, ties put in order of id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.index.base import (
    Distances,
    Ids,
    RadiusResult,
    Ranking,
    check_query,
    check_radius,
    check_search,
    pad_rows,
    rerank,
    rerank_pool,
)
from transhash.index.exact import SortedItems
from transhash.index.weighted import BitWeights


class FaissIndex(SortedItems):
    """IndexBinaryFlat over the items sorted by id; a change rebuilds it at the next search."""

    engine = "faiss"
    _flat: Any = None

    def candidates(self, k: int) -> int:
        return rerank_pool(k)

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        """With weights: of all items no farther than the `candidates(k)`-th, the k cheapest."""
        k, weights = check_search(codes, self._bits, k, weights)
        if weights is None:
            offsets, rows, distances = nearest_rows(self._index(), codes.packed, k)
            return pad_rows(offsets, self._ids[rows], distances, k)
        offsets, rows, distances = nearest_rows(self._index(), codes.packed, rerank_pool(k))
        found = RadiusResult(offsets, self._ids[rows], distances)
        return rerank(found, self._packed[rows], codes, weights, k)

    def search_radius(self, codes: Codes, radius: int) -> RadiusResult:
        check_query(codes, self._bits)
        radius = check_radius(radius)
        offsets, rows, distances = rows_within(self._index(), codes.packed, radius)
        return RadiusResult(offsets, self._ids[rows], distances)

    def _index(self) -> Any:
        if self._flat is None:
            self._flat = flat_index(self._packed)
        return self._flat

    def _replace(self, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        super()._replace(ids, packed)
        self._flat = None


def flat_index(packed: npt.NDArray[np.uint8]) -> Any:
    import faiss

    flat = faiss.IndexBinaryFlat(packed.shape[1] * 8)
    flat.add(packed)
    return flat


def write_faiss(path: Path, ids: Ids, codes: Codes) -> None:
    """A file that FAISS itself reads: a flat index that answers with these ids."""
    import faiss

    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(codes.bits))
    if len(ids):
        index.add_with_ids(codes.packed, ids)
    faiss.write_index_binary(index, str(path))


def nearest_rows(flat: Any, queries: npt.NDArray[np.uint8], k: int) -> tuple[Ids, Ids, Distances]:
    """(offsets, rows, distances): all rows no farther than the k-th, by distance, then by row.

    FAISS keeps any k rows and does not say which of those at the k-th distance; asking for all
    rows within that distance completes the last group, so that the caller may cut where it likes.
    """
    count = min(k, flat.ntotal)
    if count == 0 or len(queries) == 0:
        return np.zeros(len(queries) + 1, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
    last = flat.search(queries, count)[0][:, -1]
    parts: list[tuple[Ids, Distances]] = [(np.empty(0, np.int64),) * 2] * len(queries)  # type: ignore[list-item]
    for radius in np.unique(last):
        chosen = np.flatnonzero(last == radius)
        offsets, rows, distances = rows_within(flat, queries[chosen], int(radius))
        for q, start, end in zip(chosen, offsets, offsets[1:]):
            parts[q] = rows[start:end], distances[start:end]
    lengths = [len(rows) for rows, _ in parts]
    return (
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        np.concatenate([rows for rows, _ in parts]),
        np.concatenate([distances for _, distances in parts]).astype(np.int32),
    )


def rows_within(
    flat: Any, queries: npt.NDArray[np.uint8], radius: int
) -> tuple[Ids, Ids, Distances]:
    """(offsets, rows, distances) of all rows within `radius`, by distance, then by row."""
    if flat.ntotal == 0 or len(queries) == 0:
        return np.zeros(len(queries) + 1, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
    # FAISS's radius is exclusive.
    limits, distances, rows = flat.range_search(queries, min(radius, queries.shape[1] * 8) + 1)
    offsets = limits.astype(np.int64)
    owner = np.repeat(np.arange(len(queries)), np.diff(offsets))
    order = np.lexsort((rows, distances, owner))
    return offsets, rows[order].astype(np.int64), distances[order].astype(np.int32)
