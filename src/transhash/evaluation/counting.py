"""How many items, and how many relevant ones, lie at each Hamming distance of every query.

Average precision needs these counts and no order, so nothing is sorted and no queries x items
matrix is held. The native kernel counts on all cores; without it NumPy counts one query after
the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.evaluation.average_precision import Counts
from transhash.index.kernel import core_count, native

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
