"""Rankings by real-valued scores as tie groups: what methods without codes are scored from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.relation import Relation
from transhash.errors import DataError
from transhash.evaluation.histogram import DistanceHistogram

_PAIRS = 2_000_000  # of queries and items at a time: about 200 MB on the way


def ranked_blocks(
    score: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]],
    relation: Relation,
    *,
    from_texts: bool = False,
) -> Iterator[DistanceHistogram]:
    """Tie groups of all queries, some queries at a time, for `Scores.of`.

    `score(rows)` gives (rows, items), larger for what comes first. The relation's images ask, or
    its texts if `from_texts`. Pairs of unknown s_ij are left out of the list.
    """
    queries, items = relation.shape[::-1] if from_texts else relation.shape
    step, everything = max(1, _PAIRS // max(items, 1)), np.arange(items)
    for start in range(0, queries, step):
        rows = np.arange(start, min(start + step, queries))
        if from_texts:
            s, known = relation.block(everything, rows)
            s, known = s.T, None if known is None else known.T
        else:
            s, known = relation.block(rows, everything)
        yield tie_groups(score(rows), s, known)


def tie_groups(
    scores: npt.NDArray[Any], relevant: npt.NDArray[Any], known: npt.NDArray[Any] | None = None
) -> DistanceHistogram:
    """Equal scores as one column, the highest first; all three are (queries, items).

    The columns are not distances, so the table has no radius curve. Short lists end in zeros.
    """
    if scores.shape != relevant.shape:
        raise DataError(
            f"{relevant.shape[0]} queries against {relevant.shape[1]} items, but the scores have "
            f"the shape {scores.shape}"
        )
    if np.isnan(scores).any():
        raise DataError("a score is not a number, so it has no place in a ranking")
    order = np.argsort(-scores, axis=1)
    ranked = np.take_along_axis(scores, order, axis=1)
    column = np.zeros(scores.shape, np.int64)
    np.cumsum(ranked[:, 1:] != ranked[:, :-1], axis=1, out=column[:, 1:])
    shape = len(scores), int(column.max(initial=0)) + 1
    column += np.arange(len(scores))[:, None] * shape[1]

    def count(what: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
        weights = None if what is None else np.take_along_axis(what, order, axis=1).ravel()
        counted = np.bincount(column.ravel(), weights, minlength=shape[0] * shape[1])
        return counted.reshape(shape).astype(np.int64)

    return DistanceHistogram(count(known), count(relevant))
