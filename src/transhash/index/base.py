"""What a search engine promises: exact Hamming ranking, ties by ascending id."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import DataError, EngineError

Ids = npt.NDArray[np.int64]


class Ranking(NamedTuple):
    """The k nearest items of each query, nearest first, equal distances by ascending id."""

    ids: Ids  # (queries, k); -1 where fewer than k items exist
    distances: npt.NDArray[np.int32]  # (queries, k); -1 where fewer than k items exist


class Neighbours(NamedTuple):
    """All items within a radius, query after query: query q owns [offsets[q], offsets[q+1])."""

    offsets: Ids  # (queries + 1,)
    ids: Ids  # by distance, then by id
    distances: npt.NDArray[np.int32]


class Index(Protocol):
    """Items are (id, code); ids are integers >= 0, unique within an index."""

    @property
    def bits(self) -> int: ...

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        """Store new items; an id that is already there is refused before anything is stored."""

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        """Store items, replacing the codes of ids that are already there."""

    def remove(self, ids: npt.ArrayLike) -> int:
        """Forget items; returns how many of the ids were there."""

    def search(self, codes: Codes, k: int) -> Ranking: ...

    def search_radius(self, codes: Codes, radius: int) -> Neighbours: ...

    def export(self) -> tuple[Ids, Codes]:
        """Every item, by ascending id."""

    def __len__(self) -> int: ...

    def close(self) -> None: ...


def as_ids(ids: npt.ArrayLike) -> Ids:
    """`ids` as a vector of int64; anything but integers >= 0 is refused."""
    array = np.atleast_1d(np.asarray(ids))
    if array.size and array.dtype.kind not in "iu":
        raise DataError(f"ids must be integers, got {array.dtype}")
    if array.ndim != 1:
        raise DataError(f"ids must be a vector, got shape {array.shape}")
    if array.size and array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"ids must be below 2**63, got {array.max()}")
    array = array.astype(np.int64)
    if array.size and array.min() < 0:
        raise DataError(f"ids must be 0 or more, got {array.min()}")
    return array


def check_items(ids: npt.ArrayLike, codes: Codes, bits: int) -> Ids:
    """`ids` as int64 after checking that they can be stored in an index of `bits` bits."""
    array = as_ids(ids)
    if len(array) != len(codes):
        raise DataError(f"{len(array)} ids were given for {len(codes)} codes; give one id a code")
    if len(array) > 1 and not (np.diff(array) > 0).all() and len(np.unique(array)) != len(array):
        raise DataError("the same id occurs twice in one call; give each item its own id")
    check_query(codes, bits)
    return array


def check_query(codes: Codes, bits: int) -> None:
    if codes.bits != bits:
        raise EngineError(
            f"this index holds {bits}-bit codes, got {codes.bits}-bit ones; "
            "encode with the model the index was built with"
        )


def check_count(k: int) -> None:
    if k < 1:
        raise DataError(f"k, the number of neighbours, must be 1 or more, got {k}")


def check_radius(radius: int) -> None:
    if radius < 0:
        raise DataError(f"the radius must be 0 or more, got {radius}")


def pad_rows(offsets: Ids, ids: Ids, distances: npt.NDArray[np.int32], k: int) -> Ranking:
    """The first k of each query's list as a matrix, -1 where the list is shorter."""
    place = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    kept = place < k
    ranking = Ranking(
        np.full((len(offsets) - 1, k), -1, np.int64), np.full((len(offsets) - 1, k), -1, np.int32)
    )
    ranking.ids[owner[kept], place[kept]] = ids[kept]
    ranking.distances[owner[kept], place[kept]] = distances[kept]
    return ranking
