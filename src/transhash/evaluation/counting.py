"""How many items, and how many relevant ones, lie at each Hamming distance of every query.

Average precision needs these counts and no order, so nothing is sorted and no queries x items
matrix is held. NumPy counts one query at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.evaluation.average_precision import Counts

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
    holders = np.packbits(database_labels.T, axis=1)  # (classes, items / 8)
    size = len(database_codes)

    def truth(query: int) -> tuple[_Truth, None]:
        union = np.bitwise_or.reduce(holders[query_labels[query]], axis=0)
        return np.unpackbits(union, count=size).view(np.bool_), None

    return _count_with_numpy(query_codes, database_codes, truth)


def count_relation(
    query_codes: _Bytes,
    database_codes: _Bytes,
    relevant: _Truth,
    known: _Truth | None = None,
    workers: int | None = None,
) -> tuple[Counts, Counts]:
    """items[q, d] and relevant[q, d] among the known pairs, given row by row (queries, items)."""

    def truth(query: int) -> tuple[_Truth, _Truth | None]:
        return relevant[query], None if known is None else known[query]

    return _count_with_numpy(query_codes, database_codes, truth)


def _count_with_numpy(
    query_codes: _Bytes,
    database_codes: _Bytes,
    truth: Callable[[int], tuple[_Truth, _Truth | None]],
) -> tuple[Counts, Counts]:
    """`truth` gives the relevant and, unless all are, the known items of one query."""
    groups = query_codes.shape[1] * 8 + 1
    queries, columns = _words(query_codes), np.ascontiguousarray(_words(database_codes).T)
    counts = np.zeros((len(queries), 2, groups), dtype=np.int64)
    for query, words in enumerate(queries):
        relevant, known = truth(query)
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
