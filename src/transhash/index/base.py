"""What a search engine promises: exact Hamming ranking, or by weighted bits; ties by id."""

from __future__ import annotations

import operator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from transhash.codes import MAX_BITS, Codes, check_bits
from transhash.errors import DataError, EngineError
from transhash.index.weighted import LAST, BitWeights, Costs, check_weights, costs_of
from transhash.progress import Track, no_progress

Ids = npt.NDArray[np.int64]
Distances = npt.NDArray[np.int32]

_BLOCK = 100_000  # items of one update while ingesting: what an interruption repeats


class Ranking(NamedTuple):
    """The k nearest items of each query, nearest first, equal distances by ascending id.

    Where an index holds fewer than k items, there are as many columns as items. With weights the
    cheapest come first, equal costs by Hamming distance, then by ascending id.
    """

    ids: Ids  # (queries, min(k, items)); -1 where an approximate engine found fewer
    distances: Distances  # Hamming, (queries, min(k, items)); -1 likewise
    costs: Costs | None = None  # what the differing bits weigh; LAST where there is no item


class RadiusResult(NamedTuple):
    """All items within a radius, query after query: query q owns [offsets[q], offsets[q+1])."""

    offsets: Ids  # (queries + 1,)
    ids: Ids  # by distance, then by id
    distances: Distances


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

    def ingest(self, ids: npt.ArrayLike, codes: Codes, track: Track = no_progress) -> int:
        """Store what is lacking or held with another code; returns how many items that were.

        So an interrupted call goes on where it stopped when it is made again.
        """

    def wait_until_ready(self) -> None:
        """Until searches use all that was stored in the way they always will."""

    def candidates(self, k: int) -> int | None:
        """How many of the nearest weights re-rank when k are wanted; None: they rank all."""

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        """The k nearest; by the sum of the weights of differing bits where weights are given."""

    def search_radius(self, codes: Codes, radius: int) -> RadiusResult: ...

    def export(self) -> tuple[Ids, Codes]:
        """Every item, by ascending id."""

    def verify(self) -> None:
        """Read all that is stored; damage is an EngineError that names what is damaged."""

    def __len__(self) -> int: ...

    def close(self) -> None: ...


class LocalIndex:
    """What the engines of this machine share: they know at once what they hold."""

    def candidates(self, k: int) -> int | None:
        return None

    def ingest(self: Index, ids: npt.ArrayLike, codes: Codes, track: Track = no_progress) -> int:
        array = check_items(ids, codes, self.bits)
        held, stored = self.export()
        sent = 0
        for start in track(range(0, len(array), _BLOCK), "sending codes"):
            part, packed = array[start : start + _BLOCK], codes[start : start + _BLOCK]
            lacking = np.ones(len(part), np.bool_)
            if len(held):
                place = np.minimum(np.searchsorted(held, part), len(held) - 1)
                same = (stored.packed[place] == packed.packed).all(axis=1)
                lacking = (held[place] != part) | ~same
            self.update(part[lacking], packed[lacking])
            sent += int(lacking.sum())
        return sent

    def wait_until_ready(self) -> None:
        """They are."""


def to_ids(ids: npt.ArrayLike) -> Ids:
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
    array = to_ids(ids)
    if len(array) != len(codes):
        raise DataError(f"{len(array)} ids were given for {len(codes)} codes; give one id a code")
    if len(array) > 1 and not (np.diff(array) > 0).all() and len(np.unique(array)) != len(array):
        raise DataError("the same id occurs twice in one call; give each item its own id")
    check_query(codes, bits)
    return array


def reject_existing(known: Ids) -> None:
    """Refuses an `add` of which these ids are in the index already."""
    if len(known):
        raise EngineError(f"id {known[0]} is already in the index; use update to replace it")


def check_query(codes: Codes, bits: int) -> None:
    if codes.bits != bits:
        raise EngineError(
            f"this index holds {bits}-bit codes, got {codes.bits}-bit ones; "
            "encode with the model the index was built with"
        )


def check_search(
    codes: Codes, bits: int, k: int, weights: BitWeights | None
) -> tuple[int, BitWeights | None]:
    """k and the weights as they are used, after checking that the index can be asked for them."""
    check_query(codes, bits)
    return check_count(k), None if weights is None else check_weights(weights, len(codes), bits)


def check_length(bits: int) -> int:
    """A code length that every engine can search, as a plain int."""
    bits = _whole(bits, "the code length")
    check_bits(bits)
    if bits > MAX_BITS:
        raise DataError(f"an index takes codes of up to {MAX_BITS:,} bits, got {bits:,}")
    return bits


def check_count(k: int) -> int:
    """k as a plain int."""
    k = _whole(k, "k, the number of neighbours,")
    if k < 1:
        raise DataError(f"k, the number of neighbours, must be 1 or more, got {k}")
    return k


def check_radius(radius: int) -> int:
    """The radius as a plain int."""
    radius = _whole(radius, "the radius")
    if radius < 0:
        raise DataError(f"the radius must be 0 or more, got {radius}")
    return radius


def _whole(number: int, name: str) -> int:
    try:
        return operator.index(number)  # NumPy's integers, too
    except TypeError:
        raise DataError(f"{name} must be a whole number, got {number!r}") from None


def empty_ranking(queries: int, k: int, *, weighted: bool = False) -> Ranking:
    costs = np.full((queries, k), LAST, np.int64) if weighted else None
    return Ranking(np.full((queries, k), -1, np.int64), np.full((queries, k), -1, np.int32), costs)


def rerank_pool(k: int) -> int:
    """How many of the nearest an engine without weighted search re-ranks to give k."""
    return 4 * k + 100


def rerank(
    found: RadiusResult, packed: npt.NDArray[np.uint8], queries: Codes, weights: BitWeights, k: int
) -> Ranking:
    """The k cheapest of each query's candidates, equal costs by Hamming distance, then by id.

    `packed` are the candidates' codes, row by row.
    """
    parts = [np.empty(0, np.int64)]
    for query, of_bits, start, end in zip(
        queries.packed, weights, found.offsets, found.offsets[1:], strict=False
    ):
        parts.append(costs_of(query, packed[start:end], of_bits))
    costs = np.concatenate(parts)
    owner = np.repeat(np.arange(len(found.offsets) - 1), np.diff(found.offsets))
    order = np.lexsort((found.ids, found.distances, costs, owner))
    ranking = pad_rows(found.offsets, found.ids[order], found.distances[order], k)
    costs = pad_rows(found.offsets, costs[order], found.distances[order], k).ids
    return ranking._replace(costs=np.where(ranking.ids < 0, LAST, costs))


def pad_rows(offsets: Ids, ids: Ids, distances: Distances, k: int) -> Ranking:
    """The first k of each query's list as a matrix as wide as the longest, -1 beyond an end."""
    sizes = np.diff(offsets)
    place = np.arange(len(ids)) - np.repeat(offsets[:-1], sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    kept = place < k
    ranking = empty_ranking(len(sizes), min(k, int(sizes.max(initial=0))))
    ranking.ids[owner[kept], place[kept]] = ids[kept]
    ranking.distances[owner[kept], place[kept]] = distances[kept]
    return ranking
