"""Bounded work: so many threads, so many waiting, and a refusal instead of a longer queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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

    def _leave(self, _: Future[T]) -> None:
        with self._lock:
            self.pending -= 1


class SharedLock:
    """Many searches or one change; a waiting change goes before later searches."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._condition:
            self._writers_waiting += 1
            self._condition.wait_for(lambda: not self._writing and not self._readers)
            self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
