"""A sequence of changes that can be applied to an index and to a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.index import Index
from transhash.index.grouped.grouped import GroupedIndex

BITS = 32
Items = dict[int, bytes]


class SmallIndex(GroupedIndex):
    flush_at = 60  # a new generation every few changes


def change(step: int) -> tuple[str, np.ndarray[Any, Any], Codes]:
    """Return the step-th change: method, ids, codes."""
    generator = np.random.default_rng(step)
    method = ["add", "add", "update", "remove"][step % 4]
    count = int(generator.integers(1, 30)) if step % 9 else 90  # some go straight to a segment
    fresh = step * 100 + np.arange(count)
    known = generator.choice((step + 1) * 100, count, replace=False)
    packed = generator.integers(0, 256, (count, BITS // 8), dtype=np.uint8)
    return method, fresh if method == "add" else known, Codes(packed, BITS)


def apply(target: Index | Items, step: int) -> None:
    method, ids, codes = change(step)
    if isinstance(target, dict):
        if method == "remove":
            for i in ids.tolist():
                target.pop(i, None)
        else:
            target.update(zip(ids.tolist(), map(bytes, codes.packed)))
    elif method == "remove":
        target.remove(ids)
    else:
        getattr(target, method)(ids, codes)


def items_of(index: Index) -> Items:
    ids, codes = index.export()
    return dict(zip(ids.tolist(), map(bytes, codes.packed)))
