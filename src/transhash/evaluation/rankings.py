"""Rankings by scores as tie groups: of methods without codes, and of codes whose bits weigh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, Relation
from transhash.errors import DataError
from transhash.evaluation.histogram import DistanceHistogram
from transhash.index.weighted import LAST, BitWeights, weighted_costs

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


def weighted_blocks(
    queries: Codes,
    database: Codes,
    weights: BitWeights,
    query_labels: npt.ArrayLike,
    database_labels: npt.ArrayLike,
) -> Iterator[DistanceHistogram]:
    """Tie groups of ranking by what differing bits weigh; relevant means sharing a label."""
    relation = LabelRelation(np.asarray(query_labels), np.asarray(database_labels))
    if relation.shape != (len(queries), len(database)):
        raise DataError(
            f"{len(queries)} queries against {len(database)} items, but the labels are of "
            f"{relation.shape[0]} and {relation.shape[1]}"
        )
    return ranked_blocks(
        lambda rows: -weighted_costs(queries[rows], database, weights[rows]), relation
    )


def answered_costs(
    rows: npt.NDArray[np.int64],
    costs: npt.NDArray[np.int64],
    query_labels: npt.ArrayLike,
    database_labels: npt.ArrayLike,
) -> DistanceHistogram:
    """Tie groups of what an engine answered: database rows, -1 for none, and costs, cheapest first.

    Items that it left out come last, as one group.
    """
    labels = np.asarray(database_labels, np.float32)
    related = np.asarray(query_labels, np.float32) @ labels.T > 0  # (queries, items)
    scores = np.full(related.shape, -LAST)
    asked, place = np.nonzero(rows >= 0)
    scores[asked, rows[asked, place]] = -costs[asked, place]
    return tie_groups(scores, related)


def tie_groups(
    scores: npt.NDArray[Any], relevant: npt.NDArray[Any], known: npt.NDArray[Any] | None = None
) -> DistanceHistogram:
    """Equal scores as one column, the highest first; all three are (queries, items).

    The columns are not distances, so the table has no radius curve. Short rows end in zeros.
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
    group = _numbered(ranked[:, 1:] != ranked[:, :-1])
    hits = _summed(group, np.take_along_axis(relevant, order, axis=1))
    if known is None:
        items = _summed(group, None)
    else:
        items = _summed(group, np.take_along_axis(known, order, axis=1))
    # What lies between two groups with something relevant changes no score by its order, so it
    # becomes one group: thousands of columns shrink to twice the relevant items.
    group = _numbered((hits[:, 1:] > 0) | (hits[:, :-1] > 0))
    return DistanceHistogram(_summed(group, items), _summed(group, hits))


def _numbered(begins: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The group of each column of a row, given which columns but the first begin a new one."""
    group = np.zeros((len(begins), begins.shape[1] + 1), np.int64)
    np.cumsum(begins, axis=1, out=group[:, 1:])
    return group


def _summed(group: npt.NDArray[np.int64], values: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Sums of the values (None: ones) of each group, (rows, groups)."""
    rows, width = len(group), int(group.max(initial=0)) + 1
    place = (group + np.arange(rows)[:, None] * width).ravel()
    weights = None if values is None else values.ravel()
    return np.bincount(place, weights, rows * width).reshape(rows, width).astype(np.int64)
