"""The default engine: exact Hamming search over distinct codes, on disk or in memory.

Items live in a few immutable segments (grouped by code), newest changes in a small delta that a
log makes durable. A full delta becomes a segment; segments of like size are merged, so an add
never rebuilds everything. Searches take the state of the moment and are never blocked by writers.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes, check_bits
from transhash.errors import DataError, EngineError, NoIndexError
from transhash.index.base import (
    Ids,
    Neighbours,
    Ranking,
    as_ids,
    check_count,
    check_items,
    check_query,
    check_radius,
)
from transhash.index.grouped import log, store
from transhash.index.grouped.parts import (
    Array,
    Delta,
    Part,
    expand,
    merge_from,
    search_parts,
    with_segment,
    within_parts,
)
from transhash.index.grouped.segment import to_packed, to_words
from transhash.index.kernel import core_count
from transhash.storage import WriterLock


class State(NamedTuple):
    """What a search sees; replaced as a whole, so every search sees one moment."""

    parts: tuple[Part, ...]
    newest: tuple[Part, ...]  # the delta as a part, if it holds anything


class GroupedIndex:
    """See `open`; `threads` may be set at any time (1: leave the other cores alone)."""

    engine = "grouped"
    flush_at = 1 << 16  # changes kept in the log before they become a segment

    def __init__(self, bits: int) -> None:
        """An index in memory; `open` makes those on disk."""
        check_bits(bits)
        self.threads = core_count()
        self._bits = bits
        self._folder: Path | None = None
        self._lock: WriterLock | None = None
        self._log: log.Log | None = None
        self._generation = store.Generation(0, bits, (), "")
        self._seen: tuple[int, int] = (0, 0)
        self._mutex = threading.RLock()
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
        exists = (folder / store.MANIFEST).exists()
        if not exists and read_only:
            raise NoIndexError(folder)
        if not exists and bits is None:
            raise DataError(f"a new index at {folder} needs its code length; pass bits=")
        if not exists:
            check_bits(bits or 0)
        lock = None if read_only else WriterLock(folder)
        try:
            if not (folder / store.MANIFEST).exists():
                store.create(folder, bits or 0)
            stored = store.read_generation(folder).bits
            if bits not in (None, stored):
                raise EngineError(f"{folder} holds {stored}-bit codes, not {bits}-bit ones")
            index = cls(stored)
            index._folder, index._lock = folder, lock
            index._load()
            if index._log is not None and lock is not None:
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
        state = self._state
        return sum(part.segment.nbytes + 8 * part.gone for part in state.parts + state.newest)

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        with self._mutex:
            self._check_writable()
            for holds in (self._delta.holds, *(part.holds for part in self._state.parts)):
                known = array[holds(array)]
                if len(known):
                    raise EngineError(
                        f"id {known[0]} is already in the index; use update to replace it"
                    )
            self._change(log.ADD, array, codes.packed)

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        with self._mutex:
            self._check_writable()
            self._change(log.UPDATE, array, codes.packed)

    def remove(self, ids: npt.ArrayLike) -> int:
        array = np.unique(as_ids(ids))
        with self._mutex:
            self._check_writable()
            here = self._delta.holds(array)
            for part in self._state.parts:
                here |= part.holds(array)
            self._change(log.REMOVE, array[here], np.empty((0, self._bits // 8), np.uint8))
        return int(here.sum())

    def search(self, codes: Codes, k: int) -> Ranking:
        check_query(codes, self._bits)
        check_count(k)
        state = self._now()
        return search_parts(state.parts + state.newest, to_words(codes.packed), k, self.threads)

    def search_radius(self, codes: Codes, radius: int) -> Neighbours:
        check_query(codes, self._bits)
        check_radius(radius)
        state = self._now()
        words = to_words(codes.packed)
        return within_parts(state.parts + state.newest, words, radius, self.threads)

    def export(self) -> tuple[Ids, Codes]:
        state = self._now()
        ids, words = expand(state.parts + state.newest, self._delta.items()[1])
        order = np.argsort(ids)
        return ids[order], Codes(to_packed(words[order], self._bits), self._bits)

    def __len__(self) -> int:
        state = self._now()
        return sum(len(part) for part in state.parts + state.newest)

    def compact(self) -> None:
        """One segment and no removed ids: the smallest and fastest form. Costs a rebuild."""
        with self._mutex:
            self._check_writable()
            self._commit(self._state.parts, self._delta, first=0)

    def verify(self) -> None:
        """Reads every byte on disk and compares checksums; opening checks headers and sizes."""
        if self._folder is not None:
            store.verify(self._folder, self._generation)

    def refresh(self) -> None:
        """Takes in what the writer has acknowledged; a read-only index does so by itself."""
        if self._folder is None or self._lock is not None:
            return
        with self._mutex:
            if self._log is not None and self._seen == _stamp(self._folder):
                if self._log.has_more():
                    self._replay()
            else:
                self._load()

    def close(self) -> None:
        with self._mutex:
            if self._log is not None:
                self._log.close()
            if self._lock is not None:
                self._lock.release()
            self._log = self._lock = None
            self._state = State((), ())

    # ---- state ----

    def _now(self) -> State:
        if self._folder is not None:
            if self._log is None:
                raise EngineError(f"the index at {self._folder} was closed; open it again")
            if self._lock is None:
                with self._mutex:  # another thread may be half through taking in a generation
                    self.refresh()
                    return self._state
        return self._state

    def _check_writable(self) -> None:
        if self._folder is not None and self._log is None:
            raise EngineError(f"the index at {self._folder} was closed; open it again")
        if self._folder is not None and self._lock is None:
            raise EngineError(f"the index at {self._folder} was opened read-only")

    def _set(self, parts: tuple[Part, ...]) -> None:
        newest = self._delta.segment()
        self._state = State(parts, () if newest is None else (Part(newest),))

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
        if len(self._delta) + sum(len(p.recent) for p in self._state.parts) >= self.flush_at:
            # The change is safe in the log; without space for a segment it simply stays there.
            with contextlib.suppress(EngineError):
                self._commit(self._state.parts, self._delta)

    def _apply(self, operation: int, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        parts = self._state.parts
        if operation != log.ADD:
            self._delta.discard(ids)
            parts = tuple(part.without(ids) for part in parts)
        if operation != log.REMOVE:
            self._delta.put(ids, to_words(packed))
        self._set(parts)

    def _commit(
        self,
        parts: tuple[Part, ...],
        delta: Delta,
        more: tuple[Ids, Array] | None = None,
        first: int | None = None,
    ) -> None:
        """A new generation: the delta, `more` and the parts worth merging become one segment."""
        ids, words = delta.items()
        if more is not None:
            ids, words = np.concatenate([ids, more[0]]), np.concatenate([words, more[1]])
        first = merge_from(parts, len(ids)) if first is None else first
        committed = with_segment(parts, first, ids, words, self._bits, self._generation.number + 1)
        if self._folder is not None:
            generation, committed = store.commit(self._folder, self._generation, committed)
            if self._log is not None:
                self._log.close()
            self._log = log.Log(self._folder / generation.log, self._bits // 8, writable=True)
            self._generation = generation
            store.clean(self._folder, generation)
        self._delta = Delta(words)
        self._set(committed)

    def _load(self) -> None:
        """Reads the manifest, maps its files, replays its log."""
        assert self._folder is not None
        for attempt in range(100):
            seen = _stamp(self._folder)
            generation = store.read_generation(self._folder)
            try:
                parts = store.open_parts(self._folder, generation, self._state.parts)
                path = self._folder / generation.log
                opened = log.Log(path, self._bits // 8, writable=self._lock is not None)
                break
            except FileNotFoundError as error:
                # The writer moved on to the next generation while we read this one.
                if attempt == 99 or self._lock is not None:
                    raise EngineError(
                        f"{error.filename} is missing; restore it from a copy or rebuild the index"
                    ) from None
        if self._log is not None:
            self._log.close()
        self._log, self._generation, self._seen = opened, generation, seen
        self._delta = Delta(to_words(np.empty((0, self._bits // 8), np.uint8)))
        self._set(parts)
        self._replay()

    def _replay(self) -> None:
        assert self._log is not None
        with contextlib.closing(self._log.replay()) as records:
            for record in records:
                self._apply(record.operation, record.ids, record.packed)


def _stamp(folder: Path) -> tuple[int, int]:
    """Changes whenever a generation is committed."""
    stat = (folder / store.MANIFEST).stat()
    return stat.st_ino, stat.st_mtime_ns
