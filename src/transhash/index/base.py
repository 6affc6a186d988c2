"""The contract of an index: exact Hamming ranking, optionally by weighted bits, ties by id."""

from __future__ import annotations

import operator
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from transhash.codes import MAX_BITS, Codes, check_bits
from transhash.errors import DataError, EngineError, check_type
from transhash.index.weighted import MAX_COST, BitWeights, Costs, check_weights, costs_to_items
from transhash.progress import Track, no_progress

Ids = npt.NDArray[np.int64]
Distances = npt.NDArray[np.int32]
Packed = npt.NDArray[np.uint8]

NO_IDS = np.empty(0, np.int64)
_CHUNK_ROWS = 100_000  # items per update of `ingest`: an interrupted one repeats at most this many


class Ranking(NamedTuple):
    """The k nearest items of each query, nearest first, equal distances by ascending id.

    There are fewer than k columns if the index has fewer items. With weights the items of smallest
    cost come first, equal costs by Hamming distance, then by ascending id.
    """

    ids: Ids  # (queries, min(k, items)); -1 where an approximate index returned fewer
    distances: Distances  # Hamming, (queries, min(k, items)); -1 likewise
    costs: Costs | None = None  # sums of weights of differing bits; MAX_COST without an item


class HitLists(NamedTuple):
    """Hits of all queries in one array: query q has [offsets[q], offsets[q + 1])."""

    offsets: Ids  # (queries + 1,)
    ids: Ids  # of each query by distance, then by id
    distances: Distances


class Index(Protocol):
    """A set of (id, code) items; ids are unique integers >= 0. Also a context manager."""

    @property
    def bits(self) -> int: ...

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        """Store new items; if any id already exists, raise and store nothing."""

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        """Store items, replacing the codes of ids that already exist."""

    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove items and return how many of the ids existed."""

    def ingest(self, ids: npt.ArrayLike, codes: Codes, track: Track = no_progress) -> int:
        """Store the items that are missing or have a different code; return how many those were.

        An interrupted call can therefore be repeated and continues where it stopped.
        """

    def set_trial_queries(self, queries: Codes) -> None:
        """Store codes of typical queries, which an index may try to choose how it searches.

        Results never depend on them.
        """

    def wait_until_ready(self) -> None:
        """Block until searches use everything that was stored."""

    def candidates(self, k: int) -> int | None:
        """Return how many nearest items a weighted search for k reranks; None if all."""

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        """Return the k nearest items, or with weights those of smallest cost."""

    def export(self) -> tuple[Ids, Codes]:
        """Return every item, by ascending id."""

    def verify(self) -> None:
        """Read everything that is stored; raise an EngineError that names what is corrupt."""

    def __len__(self) -> int: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalIndex(Index):
    """Defaults of the backends that run in this process."""

    def candidates(self, k: int) -> int | None:
        return None

    def ingest(self, ids: npt.ArrayLike, codes: Codes, track: Track = no_progress) -> int:
        new_ids = check_items(ids, codes, self.bits)
        stored_ids, stored = self.export()
        sent = 0
        for start in track(range(0, len(new_ids), _CHUNK_ROWS), "sending codes"):
            rows = slice(start, start + _CHUNK_ROWS)
            part, part_codes = new_ids[rows], codes[rows]
            changed = np.ones(len(part), np.bool_)
            if len(stored_ids):
                place = np.minimum(np.searchsorted(stored_ids, part), len(stored_ids) - 1)
                same_code = (stored.packed[place] == part_codes.packed).all(axis=1)
                changed = (stored_ids[place] != part) | ~same_code
            self.update(part[changed], part_codes[changed])
            sent += int(changed.sum())
        return sent

    def wait_until_ready(self) -> None:
        pass


def to_ids(ids: npt.ArrayLike) -> Ids:
    """Return `ids` as a vector of int64; anything but integers >= 0 is an error."""
    array = np.atleast_1d(np.asarray(ids))
    if array.size and array.dtype.kind not in "iu":
        raise DataError(f"Ids must be integers, got {array.dtype}.")
    if array.ndim != 1:
        raise DataError(f"Ids must be a vector, got shape {array.shape}.")
    if array.size and array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"Ids must be below 2**63, got {array.max()}.")
    array = array.astype(np.int64)
    if array.size and array.min() < 0:
        raise DataError(f"Ids must be 0 or more, got {array.min()}.")
    return array


def check_items(ids: npt.ArrayLike, codes: Codes, bits: int) -> Ids:
    """Return `ids` as int64 after checking that an index of `bits` bits can store the items."""
    check_query(codes, bits)
    array = to_ids(ids)
    if len(array) != len(codes):
        raise DataError(f"Got {len(array)} ids for {len(codes)} codes. Pass one id per code.")
    if len(array) > 1 and not (np.diff(array) > 0).all() and len(np.unique(array)) != len(array):
        raise DataError("An id occurs twice in one call. Pass each id once.")
    return array


def reject_existing(existing: Ids) -> None:
    """Raise if any id passed to `add` is already in the index."""
    if len(existing):
        raise EngineError(f"Id {existing[0]} is already in the index. Use update to replace it.")


def check_query(codes: Codes, bits: int) -> None:
    check_type(codes, Codes, "The codes", "transhash.Codes")
    if codes.bits != bits:
        raise EngineError(
            f"The index has {bits}-bit codes but got {codes.bits}-bit codes. "
            "Use the model the index was built with."
        )


def check_stored_bits(location: object, stored: int, requested: int | None) -> None:
    if requested not in (None, stored):
        raise EngineError(
            f"{location} has {stored}-bit codes, not {requested}-bit codes. "
            "Use the model the index was built with."
        )


def missing_bits(location: object) -> DataError:
    return DataError(f"{location} needs a code length. Pass bits=.")


def check_search(
    codes: Codes, bits: int, k: int, weights: BitWeights | None
) -> tuple[int, BitWeights | None]:
    """Return k and the weights in the form the backends use, after checking the query."""
    check_query(codes, bits)
    k = _to_int(k, "k")
    if k < 1:
        raise DataError(f"k must be 1 or more, got {k}.")
    return k, None if weights is None else check_weights(weights, len(codes), bits)


def check_length(bits: int) -> int:
    """Return a code length that every backend can search, as a plain int."""
    bits = _to_int(bits, "The code length")
    check_bits(bits)
    if bits > MAX_BITS:
        raise DataError(f"An index takes codes of at most {MAX_BITS:,} bits, got {bits:,}.")
    return bits


def _to_int(number: int, name: str) -> int:
    try:
        return operator.index(number)  # accepts NumPy integers
    except TypeError:
        raise DataError(f"{name} must be an integer, got {number!r}.") from None


def empty_ranking(queries: int, k: int, *, weighted: bool = False) -> Ranking:
    costs = np.full((queries, k), MAX_COST, np.int64) if weighted else None
    return Ranking(np.full((queries, k), -1, np.int64), np.full((queries, k), -1, np.int32), costs)


def rerank_pool(k: int) -> int:
    """Return how many nearest items a backend without weighted search reranks to return k."""
    return 4 * k + 100


def rerank(hits: HitLists, packed: Packed, queries: Codes, weights: BitWeights, k: int) -> Ranking:
    """Return the k hits of smallest cost, equal costs by Hamming distance, then by id.

    `packed` has the code of each hit.
    """
    parts = [NO_IDS]
    for query, query_weights, start, end in zip(
        queries.packed, weights, hits.offsets, hits.offsets[1:], strict=False
    ):
        parts.append(costs_to_items(query, packed[start:end], query_weights))
    costs = np.concatenate(parts)
    query_of_hit = np.repeat(np.arange(len(hits.offsets) - 1), np.diff(hits.offsets))
    order = np.lexsort((hits.ids, hits.distances, costs, query_of_hit))
    ranking = pad_rows(hits.offsets, hits.ids[order], hits.distances[order], k)
    costs = pad_rows(hits.offsets, costs[order], hits.distances[order], k).ids
    return ranking._replace(costs=np.where(ranking.ids < 0, MAX_COST, costs))


def pad_rows(offsets: Ids, ids: Ids, distances: Distances, k: int) -> Ranking:
    """Return the first k hits of each query as a matrix, padded with -1 to the longest list."""
    sizes = np.diff(offsets)
    rank = np.arange(len(ids)) - np.repeat(offsets[:-1], sizes)
    query = np.repeat(np.arange(len(sizes)), sizes)
    top = rank < k
    ranking = empty_ranking(len(sizes), min(k, int(sizes.max(initial=0))))
    ranking.ids[query[top], rank[top]] = ids[top]
    ranking.distances[query[top], rank[top]] = distances[top]
    return ranking
