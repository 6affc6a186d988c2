"""Limits on threads, request bodies and connections; what exceeds them is refused, not queued."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

if sys.platform != "win32":
    import resource

_P = ParamSpec("_P")
_T = TypeVar("_T")


class BusyError(Exception):
    """All threads are busy and the queue is full."""


class WorkerPool:
    """A thread pool with a bounded queue.

    A slot becomes free when its thread has finished, not when the client has disconnected: a
    thread cannot be interrupted, and clients that disconnect must not pile up work.
    """

    def __init__(self, name: str, threads: int, queue_size: int) -> None:
        self.name = name
        self.pending = 0
        self._threads = threads
        self._limit = threads + queue_size
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None  # from the first task until `close`

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return work(...), computed on a thread of the pool."""
        with self._lock:
            if self.pending >= self._limit:
                raise BusyError(self.name)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, f"transhash-{self.name}")
            future = self._pool.submit(work, *args, **kwargs)
            self.pending += 1
        future.add_done_callback(self._release)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for running tasks and drop queued ones; `run` starts new threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _release(self, _: Future[_T]) -> None:
        with self._lock:
            self.pending -= 1


class ChangeLock:
    """Serialize changes; repeat a read that overlapped with one.

    Catalog and index change one after the other. In between, an item that is being replaced has
    two codes and would be missing from the results.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a change may consist of several
        self._changes = 0
        self._depth = 0  # of changes in progress

    @contextmanager
    def write(self) -> Iterator[None]:
        with self._lock:
            self._changes += 1
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def consistent_read(self, read: Callable[[], _T]) -> _T:
        """Return read(), as if nothing changed meanwhile."""
        before = self._changes  # read first: a change takes the lock, then counts
        if not self._depth:
            try:
                result = read()
            except Exception:
                if before == self._changes:
                    raise
            else:
                if before == self._changes:
                    return result
        with self._lock:
            return read()


STALL_SECONDS = 10.0  # without a byte, until a request body is refused
SLOT_SECONDS = 5.0  # to wait for a slot; nothing is read meanwhile, so TCP holds the client back
_GRACE_SECONDS = 0.5  # before a body can count as slow
_MIN_BYTES_PER_SECOND = 64 << 10  # on average; a slower body loses its slot when others wait
_FULL_SPEED_BODIES = 2  # each further one slows all down, so that searches still get through
_PAUSE_SECONDS = 0.003
_MAX_DRAIN_BYTES = 32 << 20
_MAX_DRAIN_SECONDS = 8.0


class RequestDrain:
    """Read and discard what refused clients still send, up to a limit.

    A client does not read while it sends; closing its connection would hide the reply. With more
    clients each is read more slowly, so that a crowd does not block the event loop.
    """

    def __init__(self) -> None:
        self._clients = 0

    async def discard(self, receive: Receive, content_length: int = _MAX_DRAIN_BYTES) -> None:
        if not 0 < content_length <= _MAX_DRAIN_BYTES:
            return
        size = 0
        self._clients += 1
        try:
            async with asyncio.timeout(_MAX_DRAIN_SECONDS):
                while size < _MAX_DRAIN_BYTES:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    await asyncio.sleep(_PAUSE_SECONDS * self._clients)
        except TimeoutError:
            return  # the reply is sent now, whether the client reads it or not
        finally:
            self._clients -= 1


class RequestBody:
    """The body of one request, its size so far and its speed."""

    def __init__(self) -> None:
        self.size = 0
        self.is_complete = False
        self._gave_up = False
        self._start = time.monotonic()
        self._timeout: asyncio.Timeout | None = None

    def bytes_per_second(self, now: float) -> float:
        """Return the average speed; infinite for a body that is new, complete or given up."""
        age = now - self._start
        is_measured = age > _GRACE_SECONDS and not self.is_complete and not self._gave_up
        return self.size / age if is_measured else float("inf")

    async def read(self, receive: Receive) -> Message:
        """Return the next message; raise 408 if none arrives or the slot was given up."""
        try:
            if self._gave_up:
                raise TimeoutError
            async with asyncio.timeout(STALL_SECONDS) as self._timeout:
                message = await receive()
        except TimeoutError:
            reason = "The request arrived too slowly. Send it again."
            raise HTTPException(408, reason, {"Connection": "close"}) from None
        finally:
            self._timeout = None
        self.size += len(message.get("body", b""))
        self.is_complete = not message.get("more_body")
        return message

    def yield_slot(self) -> None:
        self._gave_up = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0)


class UploadSlots:
    """A limited number of request bodies, each until its reply.

    A slow body keeps its slot only until another request waits for one, so that stalled uploads
    cannot block others.
    """

    def __init__(self, slots: int, drain: RequestDrain) -> None:
        self._slots = slots
        self._drain = drain
        self._bodies: set[RequestBody] = set()

    async def acquire(self) -> RequestBody | None:
        """Return a body with a slot, or None if none became free in time."""
        deadline = time.monotonic() + SLOT_SECONDS
        while len(self._bodies) >= self._slots:
            now = time.monotonic()
            slowest = min(self._bodies, key=lambda body: body.bytes_per_second(now))
            if slowest.bytes_per_second(now) < _MIN_BYTES_PER_SECOND:
                slowest.yield_slot()
            elif now >= deadline:
                return None
            await asyncio.sleep(0.05)
        body = RequestBody()
        self._bodies.add(body)
        return body

    def release(self, body: RequestBody) -> None:
        self._bodies.discard(body)

    def limited(self, body: RequestBody, receive: Receive, limit: int, too_large: str) -> Receive:
        """Return a `receive` that stops after `limit` bytes, whatever Content-Length says.

        It raises HTTPException, because the framework's parsers let only that through.
        """

        async def receive_limited() -> Message:
            if body.is_complete:
                return await receive()  # waits for the client to disconnect
            message = await body.read(receive)
            if body.size > limit:
                if not body.is_complete:
                    await self._drain.discard(receive)
                raise HTTPException(413, too_large)
            if not body.is_complete:
                incomplete = sum(not other.is_complete for other in self._bodies)
                if incomplete > _FULL_SPEED_BODIES:
                    await asyncio.sleep(_PAUSE_SECONDS * (incomplete - _FULL_SPEED_BODIES))
            return message

        return receive_limited


MAX_CONNECTIONS = 2000
HEAD_SECONDS = 10.0  # from connecting, or from the first byte of a request, to its last header
_RESERVED_FILES = 96  # descriptors for the run's files, spooled uploads and the accept queue
_FULL = b'{"error":"Too many connections. Try again in a second."}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_FULL), _FULL)
)


def max_connections() -> int:
    """Return how many connections the limit on file descriptors allows."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(files - _RESERVED_FILES, files // 4))


def raise_file_limit() -> None:
    """Raise the limit on file descriptors: the usual 1,024 are fewer than the connections."""
    if sys.platform != "win32" and max_connections() < MAX_CONNECTIONS:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = MAX_CONNECTIONS + _RESERVED_FILES
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TimedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 with a time limit for headers and a limit on connections."""

    _deadline: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no reply would be lost if the connection were closed now."""
        is_replying = self.cycle is not None and not self.cycle.response_complete
        return not is_replying or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        is_full = len(self.connections) >= max_connections() and not self._close_longest_idle()
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._start_timer()
        if is_full:
            transport.write(_REFUSAL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_idle:
            self._start_timer()
        else:
            self._stop_timer()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a client that does not read would keep it open
        super().timeout_keep_alive_handler()

    def _start_timer(self) -> None:
        if self._deadline is None:  # not restarted by every byte: a client may send them slowly
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_longest_idle(self) -> bool:
        """Close the connection that has been idle longest; return False if none is idle."""
        idle = [c for c in self.connections if isinstance(c, TimedConnection) and c.is_idle]
        if not idle:
            return False
        longest = min(idle, key=lambda connection: connection._idle_since)
        self.connections.discard(longest)  # at once, so that it is not chosen again
        longest.transport.abort()
        return True
