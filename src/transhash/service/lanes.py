"""Bounded work: so many threads, so many waiting, and a refusal instead of a longer queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class BusyError(Exception):
    """All threads work and the queue is full; the client should come back."""


class Lane:
    """A thread pool with a queue of limited length.

    A slot is given back when the thread is done, not when the client has gone away: a thread
    cannot be interrupted, and clients that hang up must not pile up work.
    """

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self.name = name
        self.limit = threads + waiting
        self.pending = 0
        self._threads = threads
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None  # from the first work to `close`

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """work(...) on one of the lane's threads."""
        with self._lock:
            if self.pending >= self.limit:
                raise BusyError(self.name)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, f"transhash-{self.name}")
            future = self._pool.submit(work, *args, **kwargs)
            self.pending += 1
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for what runs, drop what waits; a service that starts again starts new threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _leave(self, _: Future[_T]) -> None:
        with self._lock:
            self.pending -= 1


class Changes:
    """One change at a time; a search that met one is done again behind it.

    The catalog and the index change one after the other: in between an item that is being
    replaced has two codes and would be left out of the results.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self._begun += 1
            yield

    def apart(self, search: Callable[[], _T]) -> _T:
        """search(), as it is when nothing changes meanwhile."""
        begun = self._begun  # read before the lock is looked at: a change takes it, then counts
        if not self._lock.locked():
            try:
                found = search()
            except Exception:
                if begun == self._begun:
                    raise
            else:
                if begun == self._begun:
                    return found
        with self._lock:
            return search()
