"""The default engine: exact Hamming search over distinct codes, on disk or in memory.

Items live in a few immutable segments (grouped by code), newest changes in a small delta that a
log makes durable. A full delta becomes a segment; segments of like size are merged, so an add
never rebuilds everything. Searches take the state of the moment and are never blocked by writers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import CorruptionError, DataError, EngineError, IndexNotFoundError
from transhash.index.base import (
    Ids,
    LocalIndex,
    RadiusResult,
    Ranking,
    check_items,
    check_length,
    check_query,
    check_radius,
    check_search,
    reject_existing,
    to_ids,
)
from transhash.index.grouped import log, store
from transhash.index.grouped.segment import CodeWords, to_packed, to_words
from transhash.index.grouped.segments import (
    Delta,
    LiveSegment,
    State,
    expand,
    files_to_rewrite,
    merge_from,
    search_parts,
    with_segment,
    within_parts,
)
from transhash.index.kernel import core_count
from transhash.index.weighted import BitWeights
from transhash.storage import WriterLock

_log = logging.getLogger("transhash")
_opened: WeakSet[GroupedIndex] = WeakSet()


class GroupedIndex(LocalIndex):
    """See `open`; `threads` may be set at any time (1: leave the other cores alone)."""

    engine = "grouped"
    flush_at = 1 << 16  # changes kept in the log before they become a segment

    def __init__(self, bits: int) -> None:
        """An index in memory; `open` makes those on disk."""
        self._bits = bits = check_length(bits)
        self.threads = core_count()
        self._folder: Path | None = None
        self._lock: WriterLock | None = None
        self._log: log.Log | None = None
        self._generation = store.Generation(0, bits, (), "")
        self._seen: tuple[int, int] = (0, 0)
        self._retry_at = 0  # changes in the log before a segment that failed is tried again
        self._mutex = threading.RLock()
        _opened.add(self)
        self._delta = Delta(to_words(np.empty((0, bits // 8), np.uint8)))
        self._state = State((), ())

    @classmethod
    def open(
        cls, folder: Path | None, bits: int | None, *, read_only: bool = False
    ) -> GroupedIndex:
        """The index in `folder`, made if there is none; None keeps it in memory.

        A read-only index follows the writer: each search sees what was acknowledged before it.
        """
        if folder is None:
            if bits is None:
                raise DataError("an index in memory needs its code length; pass bits=")
            return cls(bits)
        if bits is not None:
            bits = check_length(bits)
        if not store.exists(folder):
            if read_only:
                raise IndexNotFoundError(folder)
            if bits is None:
                raise DataError(f"a new index at {folder} needs its code length; pass bits=")
        lock = None if read_only else WriterLock(folder)
        try:
            if bits is not None and not store.exists(folder):
                store.create(folder, bits)
            stored = store.read_generation(folder).bits
            if bits not in (None, stored):
                raise EngineError(f"{folder} holds {stored}-bit codes, not {bits}-bit ones")
            index = cls(stored)
            index._folder, index._lock = folder, lock
            index._load()
            if lock is not None and index._log is not None:
                if index._log.version == 1:  # left behind, so that the next change can be told
                    parts = index._state.parts
                    index._commit(parts, index._delta, first=len(parts))
                index._log.drop_torn_end()
                store.clean(folder, index._generation)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return index

    @property
    def bits(self) -> int:
        return self._bits

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; those on disk are in memory only as far as they are used."""
        return sum(part.segment.nbytes + 8 * part.all_deleted for part in self._state.everything)

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        with self._mutex:
            self._check_writable()
            reject_existing(array[self._holds(array)])
            self._change(log.ADD, array, codes.packed)

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        with self._mutex:
            self._check_writable()
            self._change(log.UPDATE, array, codes.packed)

    def remove(self, ids: npt.ArrayLike) -> int:
        array = np.unique(to_ids(ids))
        with self._mutex:
            self._check_writable()
            here = self._holds(array)
            self._change(log.REMOVE, array[here], np.empty((0, self._bits // 8), np.uint8))
        return int(here.sum())

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        k, weights = check_search(codes, self._bits, k, weights)
        words = to_words(codes.packed)
        return search_parts(self._now().everything, words, k, self.threads, weights)

    def search_radius(self, codes: Codes, radius: int) -> RadiusResult:
        check_query(codes, self._bits)
        radius = check_radius(radius)
        words = to_words(codes.packed)
        return within_parts(self._now().everything, words, radius, self.threads)

    def export(self) -> tuple[Ids, Codes]:
        ids, words = expand(self._now().everything, self._delta.items()[1])
        order = np.argsort(ids)
        return ids[order], Codes(to_packed(words[order], self._bits), self._bits)

    def __len__(self) -> int:
        return sum(len(part) for part in self._now().everything)

    def compact(self) -> None:
        """One segment and no removed ids: the smallest and fastest form. Costs a rebuild."""
        with self._mutex:
            self._check_writable()
            self._commit(self._state.parts, self._delta, first=0)

    def verify(self) -> None:
        """Reads every byte on disk and compares checksums; opening checks headers and the log."""
        whole = False
        while self._folder is not None and not whole:
            self._now()
            with self._mutex:
                generation, end = self._generation, self._log.end if self._log else 0
            whole = store.verify(self._folder, generation, end, following=not self._writing)

    def refresh(self) -> None:
        """Takes in what the writer has acknowledged; a read-only index does so by itself."""
        if self._folder is None or self._writing:
            return
        with self._mutex:
            if self._log is not None and self._seen == store.stamp(self._folder):
                # A writer takes back what it could not sync: only a second look proves damage.
                with contextlib.suppress(CorruptionError):
                    if self._log.has_more():
                        self._replay()
                    return
            self._load()

    def wait_until_ready(self) -> None:
        """At once, unless its files are gone."""
        if self._writing:
            self._check_writable()
        self._now()

    def close(self) -> None:
        with self._mutex:
            if self._log is not None:
                self._log.close()
            if self._lock is not None:
                self._lock.release()
            self._log = None
            self._state = State((), ())

    # ---- state ----

    @property
    def _writing(self) -> bool:
        return self._lock is not None and self._lock.held

    def _now(self) -> State:
        if self._folder is None:
            return self._state
        if self._log is None:
            raise EngineError(f"the index at {self._folder} was closed; open it again")
        if self._writing:
            return self._state
        with self._mutex:  # another thread may be half through taking in a generation
            self.refresh()
            return self._state

    def _check_writable(self) -> None:
        if self._folder is not None:
            if self._log is None:
                raise EngineError(f"the index at {self._folder} was closed; open it again")
            if self._lock is None:
                raise EngineError(f"the index at {self._folder} was opened read-only")
            self._lock.check()
            self._log.check_there()

    def _set(self, parts: tuple[LiveSegment, ...]) -> None:
        delta = self._delta.segment()
        self._state = State(parts, () if delta is None else (LiveSegment(delta),))

    def _holds(self, ids: Ids) -> npt.NDArray[np.bool_]:
        here = self._delta.holds(ids)
        for part in self._state.parts:
            here |= part.holds(ids)
        return here

    # ---- changes ----

    def _change(self, operation: int, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        """Durable first, visible second."""
        if not len(ids):
            return
        if len(ids) >= self.flush_at and operation != log.REMOVE:
            # Straight into a segment: a log of a bulk load would be written only to be read back.
            delta = self._delta
            parts = self._state.parts
            if operation == log.UPDATE:
                delta = delta.copy()
                delta.discard(ids)
                parts = tuple(part.without(ids) for part in parts)
            self._commit(parts, delta, (ids, to_words(packed)))
            return
        if self._log is not None:
            self._log.append(operation, ids, packed)
        self._apply(operation, ids, packed)
        changes = len(self._delta) + sum(len(part.newly_deleted) for part in self._state.parts)
        if changes >= max(self.flush_at, self._retry_at):
            # The change is safe in the log: without space for a segment, or with damage in those
            # that would be merged, it simply stays there.
            try:
                self._commit(self._state.parts, self._delta)
            except EngineError as error:
                self._retry_at = 2 * changes
                _log.warning("changes stay in the log: %s", error)

    def _apply(self, operation: int, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        parts = self._state.parts
        if operation != log.ADD:
            self._delta.discard(ids)
            parts = tuple(part.without(ids) for part in parts)
        if operation != log.REMOVE:
            self._delta.add(ids, to_words(packed))
        self._set(parts)

    def _commit(
        self,
        parts: tuple[LiveSegment, ...],
        delta: Delta,
        more: tuple[Ids, CodeWords] | None = None,
        first: int | None = None,
    ) -> None:
        """A new generation: the delta, `more` and the parts worth merging become one segment."""
        ids, words = delta.items()
        if more is not None:
            ids, words = np.concatenate([ids, more[0]]), np.concatenate([words, more[1]])
        first = merge_from(parts, len(ids)) if first is None else first
        if self._folder is not None:  # what is read is checked, else damage would look like data
            store.verify_files(self._folder, files_to_rewrite(parts, first))
        committed = with_segment(parts, first, ids, words, self._bits, self._generation.number + 1)
        if self._folder is not None:
            try:
                generation, committed = store.commit(self._folder, self._generation, committed)
            except EngineError:
                if store.read_generation(self._folder) != self._generation:
                    self.close()  # committed, but perhaps not for good: not to be written past
                raise
            assert self._log is not None
            self._log.close()
            self._log = log.Log(self._folder / generation.log, self._bits // 8, writable=True)
            self._generation, self._retry_at = generation, 0
            store.clean(self._folder, generation)
        self._delta = Delta(words)
        self._set(committed)

    def _load(self) -> None:
        """Reads the manifest, maps its files, replays its log."""
        assert self._folder is not None
        for attempt in range(100):
            seen = store.stamp(self._folder)
            generation = store.read_generation(self._folder)
            try:
                parts = store.open_parts(self._folder, generation, self._state.parts)
                path = self._folder / generation.log
                opened = log.Log(path, self._bits // 8, writable=self._writing)
                break
            except FileNotFoundError as error:
                # The writer moved on to the next generation while we read this one.
                if attempt == 99 or self._writing:
                    raise CorruptionError(f"{error.filename} is missing") from None
        if self._log is not None:
            self._log.close()
        self._log, self._generation, self._seen = opened, generation, seen
        self._delta = Delta(to_words(np.empty((0, self._bits // 8), np.uint8)))
        self._set(parts)
        self._replay()

    def _replay(self) -> None:
        assert self._log is not None
        for record in self._log.replay():
            self._apply(*record)


def _start_over_in_child() -> None:
    """A forked child reads its indexes anew: a thread of the parent may have been changing one."""
    for index in _opened:
        index._mutex, index._seen = threading.RLock(), (0, 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over_in_child)
