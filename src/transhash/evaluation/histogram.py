"""DistanceHistogram: all that a Hamming ranking's scores depend on, in two small tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import Relation
from transhash.errors import DataError
from transhash.evaluation.average_precision import Counts, Floats, before
from transhash.index.kernel import core_count, native

# How many items, and how many relevant ones, lie at each Hamming distance of every query.
#
# Average precision needs these counts and no order, so nothing is sorted and no queries x items
# matrix is held. The native kernel counts on all cores; without it NumPy counts one query after
# the other.

_Bytes = npt.NDArray[np.uint8]
_Truth = npt.NDArray[np.bool_]


def count_pairs(
    query_codes: _Bytes,
    database_codes: _Bytes,
    query_labels: _Truth,
    database_labels: _Truth,
    workers: int | None = None,
) -> tuple[Counts, Counts]:
    """items[q, d] and relevant[q, d] for packed codes; relevant means sharing a label."""
    # Eight items to a byte: the items relevant to a query are the union of its classes' rows.
    holders = _bits(database_labels.T)  # (classes, items / 8)
    if native is not None:
        truth = np.ascontiguousarray(query_labels), holders, None, None
        return _count_natively(query_codes, database_codes, truth, workers)
    size = len(database_codes)

    def rows(query: int) -> tuple[_Truth, None]:
        union = np.bitwise_or.reduce(holders[query_labels[query]], axis=0)
        return np.unpackbits(union, count=size, bitorder="little").view(np.bool_), None

    return _count_with_numpy(query_codes, database_codes, rows)


def count_relation(
    query_codes: _Bytes,
    database_codes: _Bytes,
    relevant: _Truth,
    known: _Truth | None = None,
    workers: int | None = None,
) -> tuple[Counts, Counts]:
    """items[q, d] and relevant[q, d] among the known pairs, given row by row (queries, items)."""
    if native is not None:
        truth = None, None, _bits(relevant), None if known is None else _bits(known)
        return _count_natively(query_codes, database_codes, truth, workers)

    def rows(query: int) -> tuple[_Truth, _Truth | None]:
        return relevant[query], None if known is None else known[query]

    return _count_with_numpy(query_codes, database_codes, rows)


def _count_natively(
    query_codes: _Bytes,
    database_codes: _Bytes,
    truth: tuple[Any, Any, Any, Any],
    workers: int | None,
) -> tuple[Counts, Counts]:
    """`truth` is labels, holders, relevant and known, as the kernel takes them."""
    queries, words = _words(query_codes), _words(database_codes)
    items = np.zeros((len(queries), query_codes.shape[1] * 8 + 1), dtype=np.int64)
    hits = np.zeros_like(items)
    stride = words.shape[1] * words.itemsize
    native.count(words, stride, queries, *truth, workers or core_count(), items, hits)
    return items, hits


def _count_with_numpy(
    query_codes: _Bytes,
    database_codes: _Bytes,
    rows: Callable[[int], tuple[_Truth, _Truth | None]],
) -> tuple[Counts, Counts]:
    """`rows` gives the relevant and, unless all are, the known items of one query."""
    groups = query_codes.shape[1] * 8 + 1
    queries, columns = _words(query_codes), np.ascontiguousarray(_words(database_codes).T)
    counts = np.zeros((len(queries), 2, groups), dtype=np.int64)
    for query, words in enumerate(queries):
        relevant, known = rows(query)
        cells = relevant * groups
        for column, word in zip(columns, words, strict=True):
            cells += np.bitwise_count(column ^ word)
        cells = cells if known is None else cells[known]
        counts[query] = np.bincount(cells, minlength=2 * groups).reshape(2, groups)
    return counts.sum(axis=1), counts[:, 1]


def _words(packed: _Bytes) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Packed codes as machine words, zeros at the end."""
    width = 4 if packed.shape[1] <= 4 else 8
    padded = np.pad(packed, ((0, 0), (0, -packed.shape[1] % width)))
    return np.ascontiguousarray(padded).view(f"u{width}")


def _bits(truth: _Truth) -> _Bytes:
    return np.ascontiguousarray(np.packbits(truth, axis=1, bitorder="little"))


RECALL_STEPS = 100  # recall 0, .01, ..., 1
_PAIRS = 4_000_000  # of a relation that are written out at a time: 20 MB or 40


@dataclass(frozen=True, eq=False)
class DistanceHistogram:
    """Items and relevant items at each distance of each query; adds over database shards.

    The columns are tie groups, nearest first: as counted, column d is Hamming distance d.
    """

    items: Counts  # (queries, bits + 1)
    relevant: Counts  # (queries, bits + 1)

    def __post_init__(self) -> None:
        if self.items.ndim != 2 or self.items.shape != self.relevant.shape:
            raise DataError(
                "a distance histogram needs two equal tables (queries x distances), "
                f"got {self.items.shape} and {self.relevant.shape}"
            )
        if (self.relevant < 0).any() or (self.relevant > self.items).any():
            raise DataError("a distance histogram cannot hold more relevant items than items")

    @classmethod
    def of(
        cls,
        query_codes: Codes,
        database_codes: Codes,
        query_labels: npt.ArrayLike,
        database_labels: npt.ArrayLike,
        *,
        workers: int | None = None,
    ) -> DistanceHistogram:
        """Counts all pairs; two items are relevant to each other iff they share a label.

        Labels are boolean matrices (items x classes). Never holds queries x items; `workers`
        threads (default: one for each core) share the queries.
        """
        _check_bits(query_codes, database_codes)
        queries = _labels(query_labels, len(query_codes), "query")
        database = _labels(database_labels, len(database_codes), "database")
        if queries.shape[1] != database.shape[1]:
            raise DataError(
                f"query labels have {queries.shape[1]} classes but database labels have "
                f"{database.shape[1]}; build both with the same list of classes"
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
        workers: int | None = None,
    ) -> DistanceHistogram:
        """Counts the pairs whose s_ij is known; relevant means s_ij = 1.

        The queries are the relation's images, or its texts if `from_texts`.
        """
        _check_bits(query_codes, database_codes)
        sizes = len(query_codes), len(database_codes)
        shape = relation.shape[::-1] if from_texts else relation.shape
        if sizes != shape:
            raise DataError(
                f"{sizes[0]} query codes and {sizes[1]} database codes do not fit a relation "
                f"between {shape[0]} and {shape[1]} items"
            )
        items = np.zeros((sizes[0], query_codes.bits + 1), dtype=np.int64)
        relevant = np.zeros_like(items)
        queries, database = np.arange(sizes[0]), np.arange(sizes[1])
        step = max(1, _PAIRS // max(sizes[1], 1))
        for start in range(0, sizes[0], step):
            rows = queries[start : start + step]
            if from_texts:
                s, known = relation.block(database, rows)
                s, known = s.T, None if known is None else known.T
            else:
                s, known = relation.block(rows, database)
            items[rows], relevant[rows] = count_relation(
                query_codes.packed[rows],
                database_codes.packed,
                s > 0,
                None if known is None else known > 0,
                workers,
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
        """Counts what a search engine answered: database rows, -1 for none, and distances.

        Both are (queries, k). Items that an approximate engine leaves out are ranked last, as
        one tie group: they are counted at the greatest distance.
        """
        queries = _labels(query_labels, len(rows), "query")
        database = np.asarray(database_labels, dtype=np.float32)
        related = queries.astype(np.float32) @ database.T > 0  # (queries, items)
        asked, place = np.nonzero(rows >= 0)
        group = asked * (bits + 1) + distances[asked, place]
        hits = related[asked, rows[asked, place]]
        shape, cells = (len(rows), bits + 1), len(rows) * (bits + 1)
        items = np.bincount(group, minlength=cells).reshape(shape)
        relevant = np.bincount(group[hits], minlength=cells).reshape(shape)
        items[:, bits] += len(database) - items.sum(axis=1)
        relevant[:, bits] += related.sum(axis=1) - relevant.sum(axis=1)
        return cls(items, relevant)

    def __add__(self, other: DistanceHistogram) -> DistanceHistogram:
        """The same queries against both shards of a database."""
        if not isinstance(other, DistanceHistogram):
            return NotImplemented
        if self.items.shape != other.items.shape:
            raise DataError(
                "histograms add over shards of one database for the same queries and code length, "
                f"got tables of {self.items.shape} and {other.items.shape}"
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
            raise DataError(f"{path} is not a saved distance histogram ({error})") from error

    @property
    def database(self) -> int:
        """Items in the database; where pairs are unknown, the most that any query knows."""
        return int(self.items.sum(axis=1).max(initial=0))

    @property
    def relevant_totals(self) -> Counts:
        """R: relevant items of each query in the whole database."""
        totals: Counts = self.relevant.sum(axis=1)
        return totals

    def answerable(self) -> DistanceHistogram:
        """Only the queries that have something relevant in the database."""
        rows = self.relevant_totals > 0
        return DistanceHistogram(self.items[rows], self.relevant[rows])

    def relevant_first(self) -> DistanceHistogram:
        """The best tie order: in each group the relevant items come first."""
        others = self.items - self.relevant
        return DistanceHistogram(
            _interleave(self.relevant, others),
            _interleave(self.relevant, np.zeros_like(others)),
        )

    def relevant_last(self) -> DistanceHistogram:
        """The worst tie order: in each group the relevant items come last."""
        others = self.items - self.relevant
        return DistanceHistogram(
            _interleave(others, self.relevant),
            _interleave(np.zeros_like(others), self.relevant),
        )

    def collapse_to_one_group(self) -> DistanceHistogram:
        """One group for the whole database: what codes that say nothing would give."""
        return DistanceHistogram(
            self.items.sum(axis=1, keepdims=True), self.relevant.sum(axis=1, keepdims=True)
        )

    def hits(self, rank: int) -> Floats:
        """Expected relevant items among the first `rank`, for each query."""
        slots = np.clip(rank - before(self.items), 0, self.items)
        hits: Floats = (slots * self.relevant / np.maximum(self.items, 1)).sum(axis=1)
        return hits

    def precision_at(self, rank: int) -> Floats:
        """Expected P@rank of each query; divides by rank even if the database is smaller."""
        return self.hits(check_rank(rank)) / rank

    def recall_at(self, rank: int) -> Floats:
        """Expected share of the relevant items among the first `rank`; 0 if there are none."""
        return self.hits(check_rank(rank)) / np.maximum(self.relevant_totals, 1)

    def precision_by_recall(self) -> Floats:
        """(queries, 101) interpolated precision at recall 0, .01, ..., 1, for the PR curve by rank.

        Rule for ties: the hits up to a rank are replaced by their expectation, which grows evenly
        inside a group. The precision at recall ρ is the greatest one at any rank whose (expected)
        recall is at least ρ; inside a group precision is monotone, so only the first such rank
        and the ends of the later groups have to be looked at. Queries need something relevant.
        """
        ends = np.cumsum(self.items, axis=1)
        found = np.cumsum(self.relevant, axis=1)
        at_ends = found / np.maximum(ends, 1)
        best_later = np.maximum.accumulate(at_ends[:, ::-1], axis=1)[:, ::-1]
        total = found[:, -1]
        rows = np.arange(len(self))
        curve = np.empty((len(self), RECALL_STEPS + 1))
        for step in range(RECALL_STEPS + 1):
            # Whole numbers throughout: a recall of .07 must not be missed by a rounding error.
            # At recall 0 any hit will do, so the first group with something relevant is meant.
            needed = np.maximum(step * total, 1)  # hits, times RECALL_STEPS
            group = (found * RECALL_STEPS < needed[:, None]).sum(axis=1)
            n, r = self.items[rows, group], self.relevant[rows, group]
            earlier, hits = ends[rows, group] - n, found[rows, group] - r
            slots = -(-(needed - hits * RECALL_STEPS) * n // (RECALL_STEPS * r))
            precision = (hits + slots * r / n) / (earlier + slots)
            curve[:, step] = np.maximum(precision, best_later[rows, group])
        return curve

    def radius_curve(self) -> Floats:
        """Rows (radius, recall, precision) over all pairs of the queries within each radius.

        Nothing has to be broken: a radius takes a distance whole. Radii that retrieve nothing
        have no precision and are left out.
        """
        retrieved = np.cumsum(self.items.sum(axis=0))
        found = np.cumsum(self.relevant.sum(axis=0))
        radii = np.flatnonzero(retrieved)
        precision = found[radii] / retrieved[radii]
        return np.column_stack([radii, found[radii] / max(int(found[-1]), 1), precision])


def check_rank(rank: int) -> int:
    if rank < 1:
        raise DataError(f"ranks count from 1, got {rank}")
    return rank


def _check_bits(queries: Codes, database: Codes) -> None:
    if queries.bits != database.bits:
        raise DataError(
            f"queries have {queries.bits} bits but the database has {database.bits}; "
            "encode both with the same model"
        )


def _labels(labels: npt.ArrayLike, count: int, side: str) -> npt.NDArray[np.bool_]:
    matrix = np.asarray(labels)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise DataError(
            f"{side} labels must be a boolean matrix (items x classes), got {matrix.dtype} "
            f"{matrix.shape}; label_matrix() makes one from names"
        )
    if len(matrix) != count:
        raise DataError(f"{count} {side} codes but {len(matrix)} rows of {side} labels")
    if matrix.dtype == np.bool_:
        return matrix
    truth: npt.NDArray[np.bool_] = matrix != 0
    if not np.array_equal(truth, matrix):
        raise DataError(f"{side} labels must be 0 or 1, got values such as {matrix.max()}")
    return truth


def _interleave(first: Counts, second: Counts) -> Counts:
    return np.stack([first, second], axis=2).reshape(len(first), -1)
