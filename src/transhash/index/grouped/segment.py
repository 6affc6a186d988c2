"""A segment: an immutable set of items, grouped by distinct code and searched as one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import EngineError
from transhash.index.base import (
    Distances,
    HitLists,
    Ids,
    Packed,
    Ranking,
    empty_ranking,
    pad_rows,
)
from transhash.index.kernel import native
from transhash.index.weighted import BitWeights, costs_to_items

CodeWords = npt.NDArray[Any]  # (n, words per code) uint32 or uint64
_Array = npt.NDArray[Any]

_MIN_BUDGET = 0.02  # of tables that do not help: only queries for codes that are there are cheap
_CHUNK_VALUES = 1 << 16  # values of the 16-bit chunk that indexes a table
MIN_TABLE_BYTES = 1 << 19  # of codes; a smaller segment is scanned in about 10 µs
_MAX_TABLES = 64  # MOST_TABLES in the kernel
_MAX_ITEMS = (1 << 32) - 2  # rows and postings are counted in 32 bits
# Bytes per item for ids, offsets and tables, on top of twice the packed code: if the tables do not
# help, and if they do.
SPARE_BYTES, SPARE_BYTES_WITH_TABLES = 8, 16
_TRIAL_ROWS = 32  # rows searched at build time to see whether the tables help
MAX_TRIAL_QUERIES = 64  # of other codes


class DeletedBits(NamedTuple):
    """Bitmaps of the deleted items of a segment, in which the kernel skips 64 in one step."""

    items: npt.NDArray[np.uint64]  # by position in `ids`
    rows: npt.NDArray[
        np.uint64
    ]  # (tables or 1, ...) rows without other items, as tables order them


@dataclass(frozen=True, eq=False)
class Segment:
    """Codes in ascending order, the ids that have each code (CSR), and chunk tables."""

    words: CodeWords  # (rows, words per code)
    offsets: _Array | None  # (rows + 1,) uint32; None: one item per row, equal codes repeat
    ids: _Array  # (items,) uint32 or int64; ascending within a code
    sorted_ids: _Array | None  # (items,); None: the ids are first, first + 1, ..., last
    starts: _Array | None  # (tables, _CHUNK_VALUES + 1) uint32: first row of each chunk value
    orders: _Array | None  # (tables - 1, rows) uint32: rows by chunk; table 0 is the row order
    probe_budget: float = 0.0  # cost limit of the tables, as a fraction of a scan

    @property
    def items(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        derived = (vars(self).get("_positions"),)
        return sum(
            array.nbytes for array in (*self.arrays().values(), *derived) if array is not None
        )

    def arrays(self) -> dict[str, _Array]:
        """Return the arrays that are set, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in named.items() if isinstance(array, np.ndarray)}

    def search(
        self,
        words: CodeWords,
        k: int,
        threads: int = 1,
        probe_budget: float | None = None,
        weights: BitWeights | None = None,
        deleted: DeletedBits | None = None,
        limits: Ids | None = None,
    ) -> Ranking:
        """Return the k nearest items that are not deleted; `deleted` needs the kernel.

        Items beyond the distance or cost in `limits`, one per query, may be left out.
        """
        if native is None:
            if weights is None:
                return self._search_with_faiss(words, k)
            return self._search_with_numpy(words, k, weights)
        ranking = empty_ranking(len(words), k, weighted=weights is not None)
        ids, distances, costs = ranking
        budget = self.probe_budget if probe_budget is None else probe_budget
        try:
            native.search(
                *self._arrays(words, deleted), k, budget, threads,
                ids, distances, weights, costs, limits,
            )  # fmt: skip
        except ValueError as error:
            raise _corrupt(error) from None
        return ranking

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        if not self.items:
            return np.zeros(len(ids), np.bool_)
        if self.sorted_ids is None:
            return (ids >= self._first_id) & (ids < self._first_id + self.items)
        return in_sorted(ids, self.sorted_ids)

    def expand(self) -> tuple[Ids, CodeWords]:
        """Return (ids, words) of every item, in row order."""
        ids = self.ids.astype(np.int64)
        if self.offsets is None:
            return ids, np.asarray(self.words)
        bounds = self.offsets.astype(np.int64)
        sizes = bounds[1:] - bounds[:-1]
        if sizes.min(initial=0) < 0 or sizes.sum() != len(ids):
            raise _corrupt("offsets and ids do not match")
        return ids, np.repeat(self.words, sizes, axis=0)

    def mark_deleted(self, ids: Ids, earlier: DeletedBits | None = None) -> DeletedBits:
        """Return bitmaps with the items of these ids, and of the earlier bitmaps."""
        if earlier is None:
            tables = 1 if self.starts is None else len(self.starts)
            earlier = DeletedBits(
                np.zeros(-(-self.items // 64), np.uint64),
                np.zeros((tables, -(-len(self.words) // 64)), np.uint64),
            )
        deleted = DeletedBits(earlier.items.copy(), earlier.rows.copy())
        try:
            native.bury(*self._stored, self._positions_of(ids), *deleted)
        except (ValueError, IndexError) as error:
            raise _corrupt(error) from None
        return deleted

    def _positions_of(self, ids: Ids) -> _Array:
        if self.sorted_ids is None:
            return self._positions[ids - self._first_id]
        return self._positions[np.searchsorted(self.sorted_ids, ids.astype(self.ids.dtype))]

    @cached_property
    def _positions(self) -> _Array:
        """Position in `ids` of each id in ascending order; only needed once items are deleted."""
        if self.sorted_ids is not None:
            return np.argsort(self.ids).astype(np.uint32)
        positions = np.zeros(self.items, np.uint32)
        positions[self.ids.astype(np.int64) - self._first_id] = np.arange(
            self.items, dtype=np.uint32
        )
        return positions

    @cached_property
    def _first_id(self) -> int:
        return int(self.ids.min())

    @property
    def _stored(self) -> tuple[Any, ...]:
        stride = self.words.shape[1] * self.words.dtype.itemsize
        return self.words, stride, self.offsets, self.ids, self.starts, self.orders

    def _arrays(self, words: CodeWords, deleted: DeletedBits | None = None) -> tuple[Any, ...]:
        return *self._stored, *(deleted or (None, None)), words

    # Without the kernel FAISS scans the rows, and NumPy turns rows into items.

    @cached_property
    def _flat(self) -> Any:
        from transhash.index.faiss_index import flat_index

        return flat_index(np.ascontiguousarray(self.words).view(np.uint8))

    def _search_with_faiss(self, words: CodeWords, k: int) -> Ranking:
        from transhash.index.faiss_index import nearest_rows

        return pad_rows(*self._rows_to_items(nearest_rows(self._flat, words.view(np.uint8), k)), k)

    def _search_with_numpy(self, words: CodeWords, k: int, weights: BitWeights) -> Ranking:
        """Compute the cost of every item; FAISS has no weighted search."""
        ids, item_words = self.expand()
        bits = weights.shape[1]
        items = Codes(to_packed(item_words, bits), bits)
        queries = Codes(to_packed(words, bits), bits)
        ranking = empty_ranking(len(words), k, weighted=True)
        for q in range(len(words)):
            distances = queries[q : q + 1].hamming(items)[0]
            costs = costs_to_items(queries.packed[q], items.packed, weights[q])
            best = np.lexsort((ids, distances, costs))[:k]
            for output, column in zip(ranking, (ids, distances, costs), strict=True):
                assert output is not None
                output[q, : len(best)] = column[best]
        return ranking

    def _rows_to_items(self, hits: HitLists) -> HitLists:
        offsets, rows, distances = hits
        query = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        if self.offsets is not None:
            begin = self.offsets[rows].astype(np.int64)
            sizes = self.offsets[rows + 1].astype(np.int64) - begin
            if sizes.min(initial=0) < 0 or (begin + sizes).max(initial=0) > len(self.ids):
                raise _corrupt("offsets and ids do not match")
            jump = np.repeat(begin - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
            rows = np.arange(sizes.sum()) + jump if len(sizes) else rows
            query, distances = np.repeat(query, sizes), np.repeat(distances, sizes)
        return _sort_hits(query, self.ids[rows].astype(np.int64), distances, len(offsets) - 1)


def _corrupt(reason: object) -> EngineError:
    return EngineError(f"The index is corrupt ({reason}). Rebuild it from its items.")


def build(ids: Ids, words: CodeWords, bits: int, trials: CodeWords | None = None) -> Segment:
    """Sort by (code, id), group equal codes if that saves memory, add the tables that fit.

    `trials` are typical queries, which decide together with rows whether tables help.
    """
    if len(ids) > _MAX_ITEMS:
        raise EngineError(
            f"A segment has at most {_MAX_ITEMS:,} items, got {len(ids):,}. Split the collection."
        )
    if len(ids) > 1 and not (np.diff(ids) > 0).all():
        by_id = np.argsort(ids)
        ids, words = ids[by_id], words[by_id]
    compact = ids.astype(np.uint32) if len(ids) and ids[-1] < 1 << 32 else ids
    contiguous = len(ids) == 0 or int(ids[-1]) - int(ids[0]) + 1 == len(ids)
    sorted_ids = None if contiguous else compact
    order = code_order(words)
    words, compact = words[order], compact[order]
    del order
    is_new = np.ones(len(words), np.bool_)
    is_new[1:] = (words[1:] != words[:-1]).any(axis=1)
    rows = np.flatnonzero(is_new)
    offsets = None
    stride = words.shape[1] * words.dtype.itemsize
    if len(rows) * (stride + 4) < len(words) * stride:
        offsets = np.append(rows, len(words)).astype(np.uint32)
        words = words[rows]
    segment = Segment(words, offsets, compact, sorted_ids, None, None)
    return _with_tables(segment, bits, trials)


def _with_tables(segment: Segment, bits: int, trials: CodeWords | None) -> Segment:
    """Add as many tables as fit into twice the packed codes and the spare bytes."""
    count = _tables_that_fit(segment, bits, max(SPARE_BYTES, SPARE_BYTES_WITH_TABLES))
    if segment.words.nbytes < MIN_TABLE_BYTES or count < 1:
        return segment
    starts = np.zeros((count, _CHUNK_VALUES + 1), np.uint32)
    orders = np.empty((count - 1, len(segment.words)), np.uint32)
    for table in range(count):
        chunk = chunk_values(segment.words, table)
        np.cumsum(np.bincount(chunk, minlength=_CHUNK_VALUES), out=starts[table, 1:])
        if table:
            orders[table - 1] = np.argsort(chunk, kind="stable")  # radix sort for 16 bits
    full = with_budget(replace(segment, starts=starts, orders=orders), trials)
    if full.probe_budget > _MIN_BUDGET:
        return full
    few = _tables_that_fit(segment, bits, SPARE_BYTES)
    if few < 1:
        return segment
    return replace(full, starts=starts[:few].copy(), orders=orders[: few - 1].copy())


def _tables_that_fit(segment: Segment, bits: int, spare: int) -> int:
    free = segment.items * (bits // 4 + spare) - segment.nbytes - 4 * (_CHUNK_VALUES + 1)
    fitting = 1 + free // (4 * (len(segment.words) + _CHUNK_VALUES + 1))
    return int(min((bits + 15) // 16, _MAX_TABLES, fitting))


def with_budget(segment: Segment, trials: CodeWords | None) -> Segment:
    """Return the segment with the probe budget that trial queries and some of its rows suggest.

    The kernel gives tables up as soon as it foresees that they would exceed the budget. What that
    costs was measured: a tenth of a scan for most queries, and close to half the budget for the
    worst. So the highest budget is only for segments where tables are almost never given up.
    """
    if segment.starts is None:
        return segment
    rows = np.linspace(0, len(segment.words) - 1, _TRIAL_ROWS).astype(np.int64)
    groups = [segment.words[rows], *([trials] if trials is not None and len(trials) else [])]
    for budget, quorum in ((0.5, min), (0.25, max)):
        shares = [_share_answered(segment, group, budget) for group in groups]
        # All groups for the first one: one of them decides whether tables are used at all.
        if quorum(shares) >= (0.875 if quorum is min else 0.25):
            return replace(segment, probe_budget=budget)
    return replace(segment, probe_budget=_MIN_BUDGET)


def _share_answered(segment: Segment, queries: CodeWords, budget: float, k: int = 100) -> float:
    """Return the share of queries that the tables answer within the budget."""
    if native is None:
        return 0.0
    output = np.empty((1, k), np.int64), np.empty((1, k), np.int32)
    answered = 0
    for query in queries:  # one at a time, as in a service: a scan for many is cheaper
        answered += native.search(*segment._arrays(query[None]), k, budget, 1, *output)[0]
    return answered / len(queries)


def chunk_values(words: CodeWords, table: int) -> npt.NDArray[np.uint16]:
    """Return bits [16 table, 16 table + 16) of every code, first bit highest."""
    width = words.dtype.itemsize * 8
    column = words[:, table * 16 // width]
    shift = words.dtype.type(width - 16 - table * 16 % width)
    return np.asarray(column >> shift, dtype=np.uint16)


def code_order(words: CodeWords) -> _Array:
    """Return the stable order of the rows by code.

    Half a word and the row number make one 64-bit key, which NumPy sorts with vector instructions:
    several times faster than a stable argsort or lexsort.
    """
    rows = np.arange(len(words), dtype=np.uint32)
    order = rows
    for column in reversed(range(words.shape[1])):
        halves = (0,) if words.dtype.itemsize == 4 else (0, 32)
        for shift in halves:
            key = words[order, column].astype(np.uint64)
            key >>= np.uint64(shift)
            key <<= np.uint64(32)
            low = key.view(np.uint32)[0::2]  # little-endian, as the files and the kernel are
            low[:] = rows
            key.sort()
            order = order[low]
    return order


def to_words(packed: Packed) -> CodeWords:
    """Return packed bytes as machine words that sort like the bytes, padded with zeros."""
    size = packed.shape[1]
    width = 4 if size <= 4 else 8
    if size % width:
        packed = np.pad(packed, ((0, 0), (0, -size % width)))
    return np.ascontiguousarray(packed).view(f">u{width}").astype(f"<u{width}")


def to_packed(words: CodeWords, bits: int) -> Packed:
    swapped = np.ascontiguousarray(words.astype(words.dtype.newbyteorder(">")))
    return np.ascontiguousarray(swapped.view(np.uint8)[:, : bits // 8])


def in_sorted(ids: Ids, known: _Array) -> npt.NDArray[np.bool_]:
    """Return which of `ids` (any shape) are in `known`, which is ascending."""
    if not len(known):
        return np.zeros(ids.shape, np.bool_)
    # In the type of `known`: NumPy would copy all of it to compare two types.
    keys = ids.astype(known.dtype, copy=False)
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray((known[place] == keys) & (keys == ids))


def _sort_hits(query: _Array, ids: Ids, distances: Distances, queries: int) -> HitLists:
    """Return hits sorted by query, then distance, then id."""
    order = np.lexsort((ids, distances, query))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(query, minlength=queries))])
    return HitLists(offsets.astype(np.int64), ids[order], distances[order].astype(np.int32))
