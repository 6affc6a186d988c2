"""What a search sees: immutable segments, the ids deleted from them, and the newest items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.index.base import NO_IDS, Ids, Ranking, empty_ranking
from transhash.index.grouped.segment import CodeWords, DeletedBits, Segment, build, in_sorted
from transhash.index.kernel import native
from transhash.index.weighted import MAX_COST, BitWeights


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment and the ids that were removed or replaced since it was written."""

    segment: Segment
    deleted: Ids = field(default_factory=lambda: NO_IDS)  # ascending; part of the generation
    newly_deleted: Ids = field(default_factory=lambda: NO_IDS)  # ascending; only in the log
    file: str = ""
    deleted_file: str | None = None
    marked: DeletedBits | None = None  # bitmaps of some of the deleted ids
    unmarked: Ids | None = None  # the other ones; None: all

    def __len__(self) -> int:
        return self.segment.items - self.all_deleted

    @property
    def all_deleted(self) -> int:
        return len(self.deleted) + len(self.newly_deleted)

    @property
    def nbytes(self) -> int:
        deleted: DeletedBits | None = vars(self).get("_deleted_bits", self.marked)
        bitmaps = sum(bits.nbytes for bits in deleted) if deleted else 0
        return self.segment.nbytes + 8 * self.all_deleted + bitmaps

    def has_many_deleted(self, min_deleted: int) -> bool:
        """Return whether a search would pass over more than a sixteenth of the items."""
        return self.all_deleted > max(min_deleted, self.segment.items // 16)

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return self.segment.contains(ids) & ~self._is_deleted(ids)

    def without(self, ids: Ids) -> LiveSegment:
        removed = ids[self.contains(ids)]
        if not len(removed):
            return self
        marked, unmarked = self.marked, self.unmarked
        if "_deleted_bits" in vars(self):  # searched: continue from there
            marked, unmarked = self._deleted_bits, NO_IDS
        return replace(
            self,
            newly_deleted=np.union1d(self.newly_deleted, removed),
            marked=marked,
            unmarked=None if unmarked is None else np.concatenate([unmarked, removed]),
        )

    def expand(self) -> tuple[Ids, CodeWords]:
        ids, words = self.segment.expand()
        if not self.all_deleted:
            return ids, words
        alive = ~self._is_deleted(ids)
        return ids[alive], words[alive]

    def search(
        self,
        words: CodeWords,
        k: int,
        threads: int,
        weights: BitWeights | None = None,
        limits: Ids | None = None,
    ) -> Ranking:
        """Return the k nearest items that are not deleted; those beyond `limits` may be missing."""
        k = min(k, len(self))
        if k and (native is not None or not self.all_deleted):
            deleted = self._deleted_bits if self.all_deleted else None
            return self.segment.search(
                words, k, threads, weights=weights, deleted=deleted, limits=limits
            )
        return self._search_wider(words, k, threads, weights)

    @cached_property
    def _deleted_bits(self) -> DeletedBits:
        ids = self.unmarked
        if ids is None:
            ids = np.concatenate([self.deleted, self.newly_deleted])
        return self.segment.mark_deleted(ids, self.marked)

    def _search_wider(
        self, words: CodeWords, k: int, threads: int, weights: BitWeights | None
    ) -> Ranking:
        """Without the kernel: ask for more items until enough are not deleted."""
        ranking = empty_ranking(len(words), k, weighted=weights is not None)
        open_rows = np.arange(len(words) if k else 0)
        width = min(k + min(self.all_deleted, k // 4 + 16), self.segment.items)
        while len(open_rows):
            row_weights = None if weights is None else weights[open_rows]
            hits = self.segment.search(words[open_rows], width, threads, weights=row_weights)
            alive = (hits.ids >= 0) & ~self._is_deleted(hits.ids)
            first = np.argsort(~alive, axis=1, kind="stable")[:, :k]
            is_hit = np.take_along_axis(alive, first, 1)
            for output, column, missing in zip(ranking, hits, (-1, -1, MAX_COST), strict=True):
                if output is not None and column is not None:
                    values = np.take_along_axis(column, first, 1)
                    output[open_rows, : first.shape[1]] = np.where(is_hit, values, missing)
            if width == self.segment.items:
                break
            open_rows = open_rows[alive.sum(axis=1) < k]
            width = min(width * 4, self.segment.items)
        return ranking

    def _is_deleted(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return in_sorted(ids, self.deleted) | in_sorted(ids, self.newly_deleted)


class State(NamedTuple):
    """What a search sees; replaced as a unit, so every search sees one moment."""

    parts: tuple[LiveSegment, ...]
    delta: tuple[LiveSegment, ...]  # the delta, if it has items

    @property
    def everything(self) -> tuple[LiveSegment, ...]:
        return self.parts + self.delta


class Delta:
    """The items added since the last generation; grows in place, shrinks by copying.

    A search can therefore keep using its view while the next change is made.
    """

    def __init__(self, like: CodeWords) -> None:
        self._ids = NO_IDS
        self._words = np.empty((0, *like.shape[1:]), like.dtype)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def copy(self) -> Delta:
        twin = Delta(self._words)
        twin._ids, twin._words = self._ids.copy(), self._words.copy()
        twin._rows = dict(self._rows)
        return twin

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        rows = self._rows
        return np.fromiter((i in rows for i in ids.tolist()), np.bool_, len(ids))

    def add(self, ids: Ids, words: CodeWords) -> None:
        """Add items whose ids are new."""
        used, needed = len(self._rows), len(self._rows) + len(ids)
        if needed > len(self._ids):
            capacity = max(1024, 2 * needed)
            self._ids = _enlarge(self._ids[:used], capacity)
            self._words = _enlarge(self._words[:used], capacity)
        self._ids[used:needed] = ids
        self._words[used:needed] = words
        self._rows.update(zip(ids.tolist(), range(used, needed)))

    def discard(self, ids: Ids) -> None:
        rows = [self._rows[i] for i in ids.tolist() if i in self._rows]
        if rows:
            keep = np.ones(len(self._rows), np.bool_)
            keep[rows] = False
            self._ids, self._words = (a[: len(keep)][keep] for a in (self._ids, self._words))
            self._rows = {i: row for row, i in enumerate(self._ids.tolist())}

    def items(self) -> tuple[Ids, CodeWords]:
        return self._ids[: len(self._rows)], self._words[: len(self._rows)]

    def segment(self) -> Segment | None:
        ids, words = self.items()
        return Segment(words, None, ids, None, None, None) if len(ids) else None


def _enlarge(array: CodeWords, capacity: int) -> CodeWords:
    larger = np.empty((capacity, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def search_parts(
    parts: Iterable[LiveSegment],
    words: CodeWords,
    k: int,
    threads: int,
    weights: BitWeights | None = None,
) -> Ranking:
    rankings: list[Ranking] = []
    limits = None
    for part in parts:
        ranking = part.search(words, k, threads, weights, limits)
        rankings.append(ranking)
        if ranking.ids.shape[1] == k and len(rankings) == 1:
            # The result has no item beyond the k-th of the first part, which is the largest.
            last = ranking.distances if ranking.costs is None else ranking.costs
            limits = np.where(ranking.ids[:, -1] < 0, MAX_COST, last[:, -1].astype(np.int64))
    if len(rankings) == 1:
        return rankings[0]
    if not rankings:
        return empty_ranking(len(words), 0, weighted=weights is not None)
    ids = np.concatenate([ranking.ids for ranking in rankings], axis=1)
    distances = np.concatenate([ranking.distances for ranking in rankings], axis=1)
    keys = [ids, np.where(distances < 0, np.iinfo(np.int32).max, distances)]
    costs = [ranking.costs for ranking in rankings if ranking.costs is not None]
    if costs:
        keys.append(np.concatenate(costs, axis=1))
    order = np.lexsort(keys, axis=1)[:, :k]
    return Ranking(
        np.take_along_axis(ids, order, 1),
        np.take_along_axis(distances, order, 1),
        np.take_along_axis(keys[2], order, 1) if costs else None,
    )


def expand(parts: Iterable[LiveSegment], like: CodeWords) -> tuple[Ids, CodeWords]:
    """Return (ids, words) of all items; `like` gives the type of the words if there are none."""
    pieces = [part.expand() for part in parts]
    return (
        np.concatenate([NO_IDS, *(ids for ids, _ in pieces)]),
        np.concatenate([like[:0], *(words for _, words in pieces)]),
    )


def merge_from(parts: tuple[LiveSegment, ...], new_items: int, min_deleted: int) -> int:
    """Return the first part to merge with the new items: from there on none is twice the rest.

    Sizes then at least triple from part to part: few parts to search, few merges per item. A part
    with many deleted items is merged in any case.
    """
    first, total = len(parts), new_items
    while first and len(parts[first - 1]) <= 2 * total:
        first -= 1
        total += len(parts[first])
    for number, part in enumerate(parts[:first]):
        if part.has_many_deleted(min_deleted):
            return number
    return first


def files_to_rewrite(parts: tuple[LiveSegment, ...], first: int) -> list[str]:
    """Return the files that `with_segment` reads in order to write their content elsewhere."""
    merged = [name for part in parts[first:] for name in (part.file, part.deleted_file)]
    extended = [part.deleted_file for part in parts[:first] if len(part.newly_deleted)]
    return [name for name in (*merged, *extended) if name]


def with_segment(
    parts: tuple[LiveSegment, ...],
    first: int,
    ids: Ids,
    words: CodeWords,
    bits: int,
    number: int,
    trials: CodeWords,
) -> tuple[LiveSegment, ...]:
    """Return parts [0, first) and one new segment of the other parts and the given items."""
    if first < len(parts):
        old_ids, old_words = expand(parts[first:], words)
        ids, words = np.concatenate([old_ids, ids]), np.concatenate([old_words, words])
        del old_ids, old_words
    result = []
    for place, part in enumerate(parts[:first]):
        deleted, deleted_file = part.deleted, part.deleted_file
        if len(part.newly_deleted):
            deleted = np.union1d(deleted, part.newly_deleted)
            deleted_file = f"dead-{number}-{place}.bin"
        result.append(LiveSegment(part.segment, deleted, file=part.file, deleted_file=deleted_file))
    if len(ids):
        result.append(LiveSegment(build(ids, words, bits, trials), file=f"segment-{number}.bin"))
    return tuple(result)
