"""What a search looks at: immutable segments, the ids that left them, and the newest items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.index.base import Ids, RadiusResult, Ranking, empty_ranking
from transhash.index.grouped.segment import CodeWords, Segment, build, in_sorted, ordered
from transhash.index.weighted import LAST, BitWeights

NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment and the ids of it that were removed or replaced since it was written."""

    segment: Segment
    deleted: Ids = field(default_factory=lambda: NOTHING)  # ascending; on disk with the generation
    newly_deleted: Ids = field(default_factory=lambda: NOTHING)  # ascending; in the log only
    file: str = ""  # its name in the folder of the index
    dead_file: str | None = None

    def __len__(self) -> int:
        return self.segment.items - self.all_deleted

    @property
    def all_deleted(self) -> int:
        return len(self.deleted) + len(self.newly_deleted)

    def holds(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return self.segment.contains(ids) & ~self._is_gone(ids)

    def without(self, ids: Ids) -> LiveSegment:
        leaving = ids[self.holds(ids)]
        if not len(leaving):
            return self
        return replace(self, newly_deleted=np.union1d(self.newly_deleted, leaving))

    def expand(self) -> tuple[Ids, CodeWords]:
        ids, words = self.segment.expand()
        if not self.all_deleted:
            return ids, words
        alive = ~self._is_gone(ids)
        return ids[alive], words[alive]

    def search(
        self, words: CodeWords, k: int, threads: int, weights: BitWeights | None = None
    ) -> Ranking:
        """The segment's k nearest that are not gone; asks for more until there are enough."""
        k = min(k, len(self))
        if not self.all_deleted and k:
            return self.segment.search(words, k, threads, weights=weights)
        ranking = empty_ranking(len(words), k, weighted=weights is not None)
        open_rows = np.arange(len(words) if k else 0)
        ask = min(k + min(self.all_deleted, k // 4 + 16), self.segment.items)
        while len(open_rows):
            theirs = None if weights is None else weights[open_rows]
            found = self.segment.search(words[open_rows], ask, threads, weights=theirs)
            alive = (found.ids >= 0) & ~self._is_gone(found.ids)
            first = np.argsort(~alive, axis=1, kind="stable")[:, :k]
            width = first.shape[1]
            kept = np.take_along_axis(alive, first, 1)
            for mine, column, nothing in zip(ranking, found, (-1, -1, LAST), strict=True):
                if mine is not None and column is not None:
                    chosen = np.take_along_axis(column, first, 1)
                    mine[open_rows, :width] = np.where(kept, chosen, nothing)
            if ask == self.segment.items:
                break
            open_rows = open_rows[alive.sum(axis=1) < k]
            ask = min(ask * 4, self.segment.items)
        return ranking

    def within(self, words: CodeWords, radius: int, threads: int) -> RadiusResult:
        found = self.segment.within(words, radius, threads)
        if not self.all_deleted:
            return found
        alive = ~self._is_gone(found.ids)
        passed = np.concatenate([[0], np.cumsum(alive)])
        return RadiusResult(passed[found.offsets], found.ids[alive], found.distances[alive])

    def _is_gone(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return in_sorted(ids, self.deleted) | in_sorted(ids, self.newly_deleted)


class State(NamedTuple):
    """What a search sees; replaced as a whole, so every search sees one moment."""

    parts: tuple[LiveSegment, ...]
    delta: tuple[LiveSegment, ...]  # the delta, if it holds anything

    @property
    def everything(self) -> tuple[LiveSegment, ...]:
        return self.parts + self.delta


class Delta:
    """The items since the last generation; grows in place, shrinks by copy.

    So a search may go on with the view it took while the next change is made.
    """

    def __init__(self, like: CodeWords) -> None:
        self._ids = np.empty(0, np.int64)
        self._words = np.empty((0, *like.shape[1:]), like.dtype)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def copy(self) -> Delta:
        twin = Delta(self._words)
        twin._ids, twin._words = self._ids.copy(), self._words.copy()
        twin._rows = dict(self._rows)
        return twin

    def holds(self, ids: Ids) -> npt.NDArray[np.bool_]:
        rows = self._rows
        return np.fromiter((i in rows for i in ids.tolist()), np.bool_, len(ids))

    def add(self, ids: Ids, words: CodeWords) -> None:
        """Items whose ids are not here."""
        used, needed = len(self._rows), len(self._rows) + len(ids)
        if needed > len(self._ids):
            room = max(1024, 2 * needed)
            self._ids = _grown(self._ids[:used], room)
            self._words = _grown(self._words[:used], room)
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


def _grown(array: CodeWords, room: int) -> CodeWords:
    grown = np.empty((room, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def search_parts(
    parts: Iterable[LiveSegment],
    words: CodeWords,
    k: int,
    threads: int,
    weights: BitWeights | None = None,
) -> Ranking:
    found = [part.search(words, k, threads, weights) for part in parts]
    if len(found) == 1:
        return found[0]
    if not found:
        return empty_ranking(len(words), 0, weighted=weights is not None)
    ids = np.concatenate([ranking.ids for ranking in found], axis=1)
    distances = np.concatenate([ranking.distances for ranking in found], axis=1)
    keys = [ids, np.where(distances < 0, np.iinfo(np.int32).max, distances)]
    costs = [ranking.costs for ranking in found if ranking.costs is not None]
    if costs:
        keys.append(np.concatenate(costs, axis=1))
    order = np.lexsort(keys, axis=1)[:, :k]
    return Ranking(
        np.take_along_axis(ids, order, 1),
        np.take_along_axis(distances, order, 1),
        np.take_along_axis(keys[2], order, 1) if costs else None,
    )


def within_parts(
    parts: Iterable[LiveSegment], words: CodeWords, radius: int, threads: int
) -> RadiusResult:
    found = [part.within(words, radius, threads) for part in parts]
    if len(found) == 1:
        return found[0]
    owners = [np.repeat(np.arange(len(words)), np.diff(near.offsets)) for near in found]
    return ordered(
        np.concatenate([NOTHING, *owners]),
        np.concatenate([NOTHING, *(near.ids for near in found)]),
        np.concatenate([NOTHING, *(near.distances for near in found)]),
        len(words),
    )


def expand(parts: Iterable[LiveSegment], like: CodeWords) -> tuple[Ids, CodeWords]:
    """(ids, words) of all items; `like` gives the type of the words where there are none."""
    pieces = [part.expand() for part in parts]
    return (
        np.concatenate([NOTHING, *(ids for ids, _ in pieces)]),
        np.concatenate([like[:0], *(words for _, words in pieces)]),
    )


def merge_from(parts: tuple[LiveSegment, ...], fresh: int) -> int:
    """First of the last parts to merge with `fresh` items: those not twice as large as the rest.

    Sizes then at least triple from part to part: few parts to search, few merges an item.
    """
    first, total = len(parts), fresh
    while first and len(parts[first - 1]) <= 2 * total:
        first -= 1
        total += len(parts[first])
    for place, part in enumerate(parts[:first]):
        if part.all_deleted * 4 > part.segment.items:  # a quarter gone: worth writing anew
            return place
    return first


def files_to_rewrite(parts: tuple[LiveSegment, ...], first: int) -> list[str]:
    """The files that `with_segment` reads to write their content elsewhere."""
    merged = [name for part in parts[first:] for name in (part.file, part.dead_file)]
    grown = [part.dead_file for part in parts[:first] if len(part.newly_deleted)]
    return [name for name in (*merged, *grown) if name]


def with_segment(
    parts: tuple[LiveSegment, ...], first: int, ids: Ids, words: CodeWords, bits: int, number: int
) -> tuple[LiveSegment, ...]:
    """Parts [0, first) and one new segment of the rest and the given items."""
    if first < len(parts):
        old_ids, old_words = expand(parts[first:], words)
        ids, words = np.concatenate([old_ids, ids]), np.concatenate([old_words, words])
        del old_ids, old_words
    kept = [
        LiveSegment(
            part.segment,
            np.union1d(part.deleted, part.newly_deleted)
            if len(part.newly_deleted)
            else part.deleted,
            file=part.file,
            dead_file=f"dead-{number}-{place}.bin" if len(part.newly_deleted) else part.dead_file,
        )
        for place, part in enumerate(parts[:first])
    ]
    if len(ids):
        kept.append(LiveSegment(build(ids, words, bits), file=f"segment-{number}.bin"))
    return tuple(kept)
