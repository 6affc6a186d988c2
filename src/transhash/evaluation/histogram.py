"""DistanceHistogram: items and relevant items at each Hamming distance of every query.

Average precision needs these counts and no order, so nothing is sorted and no queries x items
matrix is built. The native kernel counts on all cores; without it NumPy counts query by query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from os import PathLike
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import Relation, Rows
from transhash.errors import DataError
from transhash.evaluation.average_precision import Counts, Floats, before
from transhash.index.kernel import native
from transhash.threads import cpu_count

_Bytes = npt.NDArray[np.uint8]
_Bools = npt.NDArray[np.bool_]

RECALL_STEPS = 100  # recall 0, .01, ..., 1
_CHUNK_PAIRS = 4_000_000  # of a relation that are expanded at a time: 20 to 40 MB


def count_pairs(
    query_codes: _Bytes,
    database_codes: _Bytes,
    query_labels: _Bools,
    database_labels: _Bools,
    workers: int | None = None,
) -> tuple[Counts, Counts]:
    """Return items[q, d] and relevant[q, d] of packed codes; relevant means sharing a label."""
    if native is None:
        relevant = (np.asarray(database_labels[:, row].any(axis=1)) for row in query_labels)
        return _count_with_numpy(query_codes, database_codes, zip(relevant, repeat(None)))
    # Eight items per byte: the kernel takes the union of the rows of a query's classes.
    truth = np.ascontiguousarray(query_labels), _bits(database_labels.T), None, None
    return _count_natively(query_codes, database_codes, truth, workers)


def count_relation(
    query_codes: _Bytes,
    database_codes: _Bytes,
    relevant: _Bools,
    known: _Bools | None = None,
) -> tuple[Counts, Counts]:
    """Return items[q, d] and relevant[q, d] among the known pairs, given as (queries, items)."""
    if native is None:
        rows = zip(relevant, repeat(None) if known is None else known)
        return _count_with_numpy(query_codes, database_codes, rows)
    truth = None, None, _bits(relevant), None if known is None else _bits(known)
    return _count_natively(query_codes, database_codes, truth)


def _count_natively(
    query_codes: _Bytes,
    database_codes: _Bytes,
    truth: tuple[Any, Any, Any, Any],
    workers: int | None = None,
) -> tuple[Counts, Counts]:
    """`truth`: labels, holders, relevant and known, the arguments of the kernel."""
    queries, words = _words(query_codes), _words(database_codes)
    items = np.zeros((len(queries), query_codes.shape[1] * 8 + 1), dtype=np.int64)
    hits = np.zeros_like(items)
    stride = words.shape[1] * words.itemsize
    native.count(words, stride, queries, *truth, workers or cpu_count(), items, hits)
    return items, hits


def _count_with_numpy(
    query_codes: _Bytes,
    database_codes: _Bytes,
    rows: Iterable[tuple[_Bools, _Bools | None]],
) -> tuple[Counts, Counts]:
    """`rows`: the relevant items of each query and the known ones (None: all)."""
    groups = query_codes.shape[1] * 8 + 1
    queries, columns = _words(query_codes), np.ascontiguousarray(_words(database_codes).T)
    counts = np.zeros((len(queries), 2, groups), dtype=np.int64)
    for query, (words, (relevant, known)) in enumerate(zip(queries, rows)):
        cells = relevant * groups
        for column, word in zip(columns, words, strict=True):
            cells += np.bitwise_count(column ^ word)
        cells = cells if known is None else cells[known]
        counts[query] = np.bincount(cells, minlength=2 * groups).reshape(2, groups)
    return counts.sum(axis=1), counts[:, 1]


def _words(packed: _Bytes) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return packed codes as machine words, padded with zeros."""
    width = 4 if packed.shape[1] <= 4 else 8
    padded = np.pad(packed, ((0, 0), (0, -packed.shape[1] % width)))
    return np.ascontiguousarray(padded).view(f"u{width}")


def _bits(truth: _Bools) -> _Bytes:
    return np.ascontiguousarray(np.packbits(truth, axis=1, bitorder="little"))


@dataclass(frozen=True, eq=False)
class DistanceHistogram:
    """Items and relevant items at each distance of each query; histograms of shards can be added.

    The columns are tie groups, nearest first; after counting, column d is Hamming distance d.
    """

    items: Counts  # (queries, bits + 1)
    relevant: Counts  # (queries, bits + 1)

    def __post_init__(self) -> None:
        if self.items.ndim != 2 or self.items.shape != self.relevant.shape:
            raise DataError(
                "A distance histogram needs two tables of equal shape (queries x distances), "
                f"got {self.items.shape} and {self.relevant.shape}."
            )
        if (self.relevant < 0).any() or (self.relevant > self.items).any():
            raise DataError("A distance histogram has more relevant items than items.")

    @classmethod
    def from_codes(
        cls,
        query_codes: Codes,
        database_codes: Codes,
        query_labels: npt.ArrayLike,
        database_labels: npt.ArrayLike,
        *,
        workers: int | None = None,
    ) -> DistanceHistogram:
        """Count all pairs; two items are relevant to each other iff they share a label.

        Labels are boolean matrices (items x classes). `workers` threads (default: one per core)
        share the queries.
        """
        _check_bits(query_codes, database_codes)
        queries = _labels(query_labels, len(query_codes), "query")
        database = _labels(database_labels, len(database_codes), "database")
        if queries.shape[1] != database.shape[1]:
            raise DataError(
                f"The query labels have {queries.shape[1]} classes but the database labels have "
                f"{database.shape[1]}. Build both with the same list of classes."
            )
        return cls(
            *count_pairs(query_codes.packed, database_codes.packed, queries, database, workers)
        )

    @classmethod
    def from_relation(
        cls,
        query_codes: Codes,
        database_codes: Codes,
        relation: Relation,
        *,
        from_texts: bool = False,
    ) -> DistanceHistogram:
        """Count the pairs whose s_ij is known; relevant means s_ij = 1.

        The queries are the relation's images, or its texts if `from_texts`.
        """
        _check_bits(query_codes, database_codes)
        sizes = len(query_codes), len(database_codes)
        shape = relation.shape[::-1] if from_texts else relation.shape
        if sizes != shape:
            raise DataError(
                f"Got {sizes[0]} query codes and {sizes[1]} database codes for a relation between "
                f"{shape[0]} and {shape[1]} items."
            )
        items = np.zeros((sizes[0], query_codes.bits + 1), dtype=np.int64)
        relevant = np.zeros_like(items)
        for rows, s, known in relation_blocks(relation, _CHUNK_PAIRS, from_texts=from_texts):
            items[rows], relevant[rows] = count_relation(
                query_codes.packed[rows],
                database_codes.packed,
                s > 0,
                None if known is None else known > 0,
            )
        return cls(items, relevant)

    @classmethod
    def from_search_results(
        cls,
        rows: npt.NDArray[np.int64],
        distances: npt.NDArray[np.integer[Any]],
        query_labels: npt.ArrayLike,
        database_labels: npt.ArrayLike,
        bits: int,
    ) -> DistanceHistogram:
        """Count search results: database rows (-1 for none) and distances, both (queries, k).

        Items that an approximate index omits are ranked last, as one tie group: they are counted at
        the greatest distance.
        """
        queries = _labels(query_labels, len(rows), "query")
        database = np.asarray(database_labels, dtype=np.float32)
        related = queries.astype(np.float32) @ database.T > 0  # (queries, items)
        query, rank = np.nonzero(rows >= 0)
        group = query * (bits + 1) + distances[query, rank]
        hits = related[query, rows[query, rank]]
        shape, cells = (len(rows), bits + 1), len(rows) * (bits + 1)
        items = np.bincount(group, minlength=cells).reshape(shape)
        relevant = np.bincount(group[hits], minlength=cells).reshape(shape)
        items[:, bits] += len(database) - items.sum(axis=1)
        relevant[:, bits] += related.sum(axis=1) - relevant.sum(axis=1)
        return cls(items, relevant)

    def __add__(self, other: DistanceHistogram) -> DistanceHistogram:
        """Return the histogram of the same queries against both shards of a database."""
        if not isinstance(other, DistanceHistogram):
            return NotImplemented
        if self.items.shape != other.items.shape:
            raise DataError(
                "Only histograms of the same queries and code length can be added, got tables of "
                f"{self.items.shape} and {other.items.shape}."
            )
        return DistanceHistogram(self.items + other.items, self.relevant + other.relevant)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DistanceHistogram)
            and np.array_equal(self.items, other.items)
            and np.array_equal(self.relevant, other.relevant)
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.items)

    def save(self, path: str | PathLike[str]) -> None:
        with open(path, "wb") as file:  # a file object keeps numpy from adding a suffix
            np.savez_compressed(file, items=self.items, relevant=self.relevant)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> DistanceHistogram:
        try:
            with np.load(path, allow_pickle=False) as tables:
                return cls(tables["items"], tables["relevant"])
        except (BadZipFile, KeyError, ValueError, TypeError) as error:
            raise DataError(f"{path} is not a distance histogram ({error}).") from error

    @property
    def database(self) -> int:
        """Items in the database; if pairs are unknown, the most that any query knows."""
        return int(self.items.sum(axis=1).max(initial=0))

    @property
    def relevant_totals(self) -> Counts:
        """R: the relevant items of each query in the database."""
        totals: Counts = self.relevant.sum(axis=1)
        return totals

    def answerable(self) -> DistanceHistogram:
        """Return the rows of the queries that have relevant items."""
        rows = self.relevant_totals > 0
        return DistanceHistogram(self.items[rows], self.relevant[rows])

    def relevant_first(self) -> DistanceHistogram:
        """Return the best tie order: in each group the relevant items come first."""
        others = self.items - self.relevant
        return DistanceHistogram(
            _interleave(self.relevant, others),
            _interleave(self.relevant, np.zeros_like(others)),
        )

    def relevant_last(self) -> DistanceHistogram:
        """Return the worst tie order: in each group the relevant items come last."""
        others = self.items - self.relevant
        return DistanceHistogram(
            _interleave(others, self.relevant),
            _interleave(np.zeros_like(others), self.relevant),
        )

    def collapse_to_one_group(self) -> DistanceHistogram:
        """Return one tie group with the complete database: the histogram of equal codes."""
        return DistanceHistogram(
            self.items.sum(axis=1, keepdims=True), self.relevant.sum(axis=1, keepdims=True)
        )

    def hits(self, rank: int) -> Floats:
        """Return the expected relevant items among the first `rank` of each query."""
        slots = np.clip(rank - before(self.items), 0, self.items)
        hits: Floats = (slots * self.relevant / np.maximum(self.items, 1)).sum(axis=1)
        return hits

    def precision_at(self, rank: int) -> Floats:
        """Return the expected P@rank of each query, also if the database is smaller than rank."""
        return self.hits(check_rank(rank)) / rank

    def recall_at(self, rank: int) -> Floats:
        """Return the expected recall at `rank` of each query; 0 if nothing is relevant."""
        return self.hits(check_rank(rank)) / np.maximum(self.relevant_totals, 1)

    def precision_by_recall(self) -> Floats:
        """Return the (queries, 101) interpolated precision at recall 0, .01, ..., 1.

        Ties: the hits up to a rank are replaced by their expectation, which grows linearly inside a
        group. The precision at recall ρ is the greatest one at any rank whose (expected) recall is
        at least ρ; inside a group precision is monotone, so only the first such rank and the ends
        of the later groups matter. Every query must have relevant items.
        """
        ends = np.cumsum(self.items, axis=1)
        hits_at_ends = np.cumsum(self.relevant, axis=1)
        at_ends = hits_at_ends / np.maximum(ends, 1)
        best_later = np.maximum.accumulate(at_ends[:, ::-1], axis=1)[:, ::-1]
        total = hits_at_ends[:, -1]
        rows = np.arange(len(self))
        curve = np.empty((len(self), RECALL_STEPS + 1))
        for step in range(RECALL_STEPS + 1):
            # Integers throughout: a recall of .07 must not be missed by a rounding error.
            # At recall 0 any hit suffices, so this is the first group with a relevant item.
            needed = np.maximum(step * total, 1)  # hits, times RECALL_STEPS
            group = (hits_at_ends * RECALL_STEPS < needed[:, None]).sum(axis=1)
            n, r = self.items[rows, group], self.relevant[rows, group]
            earlier, hits = ends[rows, group] - n, hits_at_ends[rows, group] - r
            slots = -(-(needed - hits * RECALL_STEPS) * n // (RECALL_STEPS * r))
            precision = (hits + slots * r / n) / (earlier + slots)
            curve[:, step] = np.maximum(precision, best_later[rows, group])
        return curve

    def radius_curve(self) -> Floats:
        """Return rows (radius, recall, precision) over all pairs of the queries within each radius.

        A radius includes complete tie groups. Radii without any item are omitted.
        """
        retrieved = np.cumsum(self.items.sum(axis=0))
        hits = np.cumsum(self.relevant.sum(axis=0))
        radii = np.flatnonzero(retrieved)
        precision = hits[radii] / retrieved[radii]
        return np.column_stack([radii, hits[radii] / max(int(hits[-1]), 1), precision])


def relation_blocks(
    relation: Relation, chunk_pairs: int, *, from_texts: bool = False
) -> Iterator[tuple[Rows, npt.NDArray[Any], npt.NDArray[Any] | None]]:
    """Yield (query rows, s, known) of some queries at a time; s and known are (rows, items).

    The queries are the relation's images, or its texts if `from_texts`.
    """
    queries, items = relation.shape[::-1] if from_texts else relation.shape
    step, everything = max(1, chunk_pairs // max(items, 1)), np.arange(items)
    for start in range(0, queries, step):
        rows = np.arange(start, min(start + step, queries), dtype=np.int64)
        if from_texts:
            s, known = relation.block(everything, rows)
            yield rows, s.T, None if known is None else known.T
        else:
            yield rows, *relation.block(rows, everything)


def check_rank(rank: int) -> int:
    if rank < 1:
        raise DataError(f"A rank must be 1 or more, got {rank}.")
    return rank


def _check_bits(queries: Codes, database: Codes) -> None:
    if queries.bits != database.bits:
        raise DataError(
            f"The queries have {queries.bits} bits but the database has {database.bits}. "
            "Encode both with the same model."
        )


def _labels(labels: npt.ArrayLike, count: int, side: str) -> npt.NDArray[np.bool_]:
    matrix = np.asarray(labels)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise DataError(
            f"The {side} labels must be a boolean matrix (items x classes), got {matrix.dtype} "
            f"{matrix.shape}. Use label_matrix() to make one from names."
        )
    if len(matrix) != count:
        raise DataError(f"Got {count} {side} codes but {len(matrix)} rows of {side} labels.")
    if matrix.dtype == np.bool_:
        return matrix
    truth: npt.NDArray[np.bool_] = matrix != 0
    if not np.array_equal(truth, matrix):
        raise DataError(f"The {side} labels must be 0 or 1, got values such as {matrix.max()}.")
    return truth


def _interleave(first: Counts, second: Counts) -> Counts:
    return np.stack([first, second], axis=2).reshape(len(first), -1)
