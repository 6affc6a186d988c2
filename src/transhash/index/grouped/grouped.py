"""The default backend: exact Hamming search over distinct codes, on disk or in memory.

Items are stored in a few immutable segments (grouped by code), the newest changes in a small delta
that a log makes durable. A full delta becomes a segment; segments of similar size are merged, so an
add never rebuilds everything. Searches use a snapshot and never wait for writers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import CorruptionError, EngineError, IndexNotFoundError
from transhash.index.base import (
    Ids,
    LocalIndex,
    Packed,
    Ranking,
    check_items,
    check_length,
    check_query,
    check_search,
    check_stored_bits,
    missing_bits,
    reject_existing,
    to_ids,
)
from transhash.index.grouped import log, store
from transhash.index.grouped.segment import (
    MAX_TRIAL_QUERIES,
    CodeWords,
    to_packed,
    to_words,
    with_budget,
)
from transhash.index.grouped.segments import (
    Delta,
    LiveSegment,
    State,
    expand,
    files_to_rewrite,
    merge_from,
    search_parts,
    with_segment,
)
from transhash.index.weighted import BitWeights
from transhash.storage import WriterLock
from transhash.threads import cpu_count

_MAX_TRIAL_BYTES = 1 << 16  # of packed codes, kept in the manifest
_log = logging.getLogger("transhash")
_open_indexes: WeakSet[GroupedIndex] = WeakSet()


class GroupedIndex(LocalIndex):
    """Use `open`; `threads` may be set at any time (1: use one core)."""

    flush_at = 1 << 16  # changes in the log that are turned into a segment

    def __init__(self, bits: int) -> None:
        """Create an index in memory."""
        self._bits = bits = check_length(bits)
        self.threads = cpu_count()
        self._folder: Path | None = None
        self._lock: WriterLock | None = None
        self._log: log.Log | None = None
        self._generation = store.Generation(0, bits, (), "")
        self._stamp: tuple[int, int] = (0, 0)
        self._logged = 0  # changes in the log: also those that cancel each other out
        self._retry_at = 0  # value of `_logged` from which a failed commit is tried again
        self._mutex = threading.RLock()
        _open_indexes.add(self)
        self._delta = self._new_delta()
        self._state = State((), ())

    @classmethod
    def open(
        cls, folder: Path | None, bits: int | None, *, read_only: bool = False
    ) -> GroupedIndex:
        """Open the index in `folder`, or create it; None creates one in memory.

        A read-only index follows the writer: each search sees what was acknowledged before it.
        """
        if folder is None:
            if bits is None:
                raise missing_bits("An index in memory")
            return cls(bits)
        if bits is not None:
            bits = check_length(bits)
        if not store.exists(folder):
            if read_only:
                raise IndexNotFoundError(folder)
            if bits is None:
                raise missing_bits(f"New index {folder}")
        lock = None if read_only else WriterLock(folder)
        try:
            if bits is not None and not store.exists(folder):
                store.create(folder, bits)
            stored = store.read_generation(folder).bits
            check_stored_bits(folder, stored, bits)
            index = cls(stored)
            index._folder, index._lock = folder, lock
            index._load()
            if lock is not None and index._log is not None:
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
        """Bytes of all arrays; of those on disk only the pages in use are in memory."""
        return sum(part.nbytes for part in self._state.everything)

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        with self._mutex:
            self._check_writable()
            reject_existing(array[self._contains(array)])
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
            existing = array[self._contains(array)]
            self._change(log.REMOVE, existing, np.empty((0, self._bits // 8), np.uint8))
        return len(existing)

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        k, weights = check_search(codes, self._bits, k, weights)
        words = to_words(codes.packed)
        return search_parts(self._snapshot().everything, words, k, self.threads, weights)

    def export(self) -> tuple[Ids, Codes]:
        ids, words = expand(self._snapshot().everything, self._delta.items()[1])
        order = np.argsort(ids)
        return ids[order], Codes(to_packed(words[order], self._bits), self._bits)

    def __len__(self) -> int:
        return sum(len(part) for part in self._snapshot().everything)

    def compact(self) -> None:
        """Rebuild the index as one segment without deleted ids, its smallest and fastest form."""
        with self._mutex:
            self._check_writable()
            self._commit(self._state.parts, self._delta, first=0)

    def set_trial_queries(self, queries: Codes) -> None:
        """Store up to 64 codes; they decide how much of a scan the tables of a segment may cost."""
        check_query(queries, self._bits)
        room = _MAX_TRIAL_BYTES // (self._bits // 8)
        packed = queries.packed[: min(MAX_TRIAL_QUERIES, max(1, room))]
        with self._mutex:
            self._check_writable()
            stored = packed.tobytes().hex()
            if stored == self._generation.trial_queries:
                return
            parts = tuple(
                replace(part, segment=with_budget(part.segment, to_words(packed)))
                for part in self._state.parts
            )
            generation = self._generation._replace(
                trial_queries=stored, segments=store.entries_of(parts)
            )
            if self._folder is not None:
                store.write_generation(self._folder, generation)
            self._generation = generation
            self._set(parts)

    def verify(self) -> None:
        """Read every byte on disk and compare checksums; opening checks headers and the log."""
        verified = False
        while self._folder is not None and not verified:
            self._snapshot()
            with self._mutex:
                generation, end = self._generation, self._log.end if self._log else 0
            verified = store.verify(self._folder, generation, end, following=not self._is_writer)

    def wait_until_ready(self) -> None:
        """Return at once, unless the files are gone."""
        if self._is_writer:
            self._check_writable()
        self._snapshot()

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
    def _min_deleted(self) -> int:
        """Deleted items of a part below which it is never rewritten for them."""
        return self.flush_at // 16

    @property
    def _is_writer(self) -> bool:
        return self._lock is not None and self._lock.held

    def _snapshot(self) -> State:
        if self._folder is None:
            return self._state
        if self._log is None:
            raise EngineError(f"{self._folder} was closed. Open it again.")
        if self._is_writer:
            return self._state
        with self._mutex:  # another thread may be loading a generation
            self._follow_writer()
            return self._state

    def _follow_writer(self) -> None:
        """Load what the writer has acknowledged."""
        assert self._folder is not None
        if self._log is not None and self._stamp == store.stamp(self._folder):
            # A writer removes what it could not sync: only a second look proves corruption.
            with contextlib.suppress(CorruptionError):
                if self._log.has_more():
                    self._replay()
                return
        self._load()

    def _check_writable(self) -> None:
        if self._folder is not None:
            if self._log is None:
                raise EngineError(f"{self._folder} was closed. Open it again.")
            if self._lock is None:
                raise EngineError(f"{self._folder} was opened read-only. Open it for writing.")
            self._lock.check()
            self._log.check_exists()

    def _set(self, parts: tuple[LiveSegment, ...]) -> None:
        delta = self._delta.segment()
        self._state = State(parts, () if delta is None else (LiveSegment(delta),))

    def _contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        contained = self._delta.contains(ids)
        for part in self._state.parts:
            contained |= part.contains(ids)
        return contained

    # ---- changes ----

    def _change(self, operation: int, ids: Ids, packed: Packed) -> None:
        """Make a change durable, then visible."""
        if not len(ids):
            return
        if len(ids) >= self.flush_at and operation != log.REMOVE:
            # Straight into a segment: a log of a bulk load would only be written to be read back.
            delta, parts = self._delta, self._state.parts
            if operation == log.UPDATE:
                delta = delta.copy()
                delta.discard(ids)
                parts = tuple(part.without(ids) for part in parts)
            self._commit(parts, delta, (ids, to_words(packed)))
            return
        if self._log is not None:
            self._log.append(operation, ids, packed)
        self._apply(operation, ids, packed)
        parts = self._state.parts
        is_full = self._logged >= self.flush_at or any(
            part.has_many_deleted(self._min_deleted) for part in parts
        )
        if is_full and self._logged >= self._retry_at:
            # The change is safe in the log. It stays there if the disk is full, or if a segment to
            # be merged is corrupt.
            try:
                self._commit(parts, self._delta)
            except EngineError as error:
                self._retry_at = 2 * self._logged
                _log.warning("Changes stay in the index log: %s", error)

    def _apply(self, operation: int, ids: Ids, packed: Packed) -> None:
        self._logged += len(ids)
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
        new_items: tuple[Ids, CodeWords] | None = None,
        first: int | None = None,
    ) -> None:
        """Write a generation in which the delta, new items and merged parts are one segment."""
        ids, words = delta.items()
        if new_items is not None:
            ids = np.concatenate([ids, new_items[0]])
            words = np.concatenate([words, new_items[1]])
        if first is None:
            first = merge_from(parts, len(ids), self._min_deleted)
        if self._folder is not None:  # never copy corrupt data under a new checksum
            store.verify_files(self._folder, files_to_rewrite(parts, first))
        committed = with_segment(
            parts, first, ids, words, self._bits, self._generation.number + 1,
            to_words(self._generation.trials),
        )  # fmt: skip
        if self._folder is not None:
            try:
                generation, committed = store.commit(self._folder, self._generation, committed)
            except EngineError:
                if store.read_generation(self._folder) != self._generation:
                    self.close()  # committed, but perhaps not synced: do not write on top of it
                raise
            assert self._log is not None
            self._log.close()
            self._log = log.Log(self._folder / generation.log, self._bits // 8, writable=True)
            self._generation, self._retry_at = generation, 0
            store.clean(self._folder, generation)
        self._delta, self._logged = Delta(words), 0
        self._set(committed)

    def _load(self) -> None:
        """Read the manifest, map its files and replay its log."""
        assert self._folder is not None
        for attempt in range(100):
            stamp = store.stamp(self._folder)
            generation = store.read_generation(self._folder)
            try:
                parts = store.open_parts(self._folder, generation, self._state.parts)
                path = self._folder / generation.log
                opened = log.Log(path, self._bits // 8, writable=self._is_writer)
                break
            except FileNotFoundError as error:
                # The writer moved on to the next generation while we read this one.
                if attempt == 99 or self._is_writer:
                    raise CorruptionError(f"{error.filename} is missing") from None
        if self._log is not None:
            self._log.close()
        self._log, self._generation, self._stamp = opened, generation, stamp
        self._delta, self._logged = self._new_delta(), 0
        self._set(parts)
        self._replay()

    def _new_delta(self) -> Delta:
        return Delta(to_words(np.empty((0, self._bits // 8), np.uint8)))

    def _replay(self) -> None:
        assert self._log is not None
        for record in self._log.replay():
            self._apply(*record)


def _reset_in_child() -> None:
    """Make a forked child reload its indexes: a thread of the parent may have been changing one."""
    for index in _open_indexes:
        index._mutex, index._stamp = threading.RLock(), (0, 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
