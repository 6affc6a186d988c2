"""What Milvus answered: cut to a range of distances, put in order, joined with its codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from transhash.index.base import Distances, Ids, Neighbours

Found = tuple[Ids, Distances]  # ids and distances of one query


def cut(found: Found, inner: int, radius: int) -> Found:
    kept = (found[1] >= inner) & (found[1] <= radius)
    return found[0][kept], found[1][kept]


def in_order(found: Found, wanted: int | None) -> Found:
    ids, distances = found
    order = np.lexsort((ids, distances))[:wanted]
    return ids[order], distances[order]


def with_rows(
    found: Neighbours, known: Ids, packed: npt.NDArray[np.uint8]
) -> tuple[Neighbours, npt.NDArray[np.uint8]]:
    """What was found of the `known` ids, which ascend, and for each its row of `packed`."""
    if not len(known):
        nothing = np.zeros_like(found.offsets)
        return Neighbours(nothing, found.ids[:0], found.distances[:0]), packed
    place = np.minimum(np.searchsorted(known, found.ids), len(known) - 1)
    here = known[place] == found.ids
    passed = np.concatenate([[0], np.cumsum(here)])
    kept = Neighbours(passed[found.offsets], found.ids[here], found.distances[here])
    return kept, packed[place[here]]
