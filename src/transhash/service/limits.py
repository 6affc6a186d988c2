"""Bounded work: so many threads, so many waiting, and a refusal instead of a longer queue."""

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

_P = ParamSpec("_P")
_T = TypeVar("_T")


class BusyError(Exception):
    """All threads work and the queue is full; the client should come back."""


class WorkerPool:
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


class ChangeLock:
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


# Requests that bring something along: so many at once, and the slow make way.

STALL_SECONDS = 10.0  # without a byte
PLACE_SECONDS = 5.0  # to wait for a place; nothing is read meanwhile, TCP holds it back
_GRACE = 0.5  # seconds before a body can be slow
_SLOW = 64 << 10  # bytes a second, on average; a slower body gives way when its place is wanted
_MOVING = 2  # bodies read at full speed; each further one slows all, so that questions get through
_PAUSE = 0.003
_DRAIN = 32 << 20
_DRAIN_SECONDS = 8.0


class RequestDrain:
    """Reads and forgets what refused clients still send, within reason.

    A client in the middle of sending does not read; closing on it would hide the answer.
    The more of them there are, the slower each is read: a crowd must not take the loop.
    """

    def __init__(self) -> None:
        self._clients = 0

    async def drain(self, receive: Receive, declared: int = _DRAIN) -> None:
        if not 0 < declared <= _DRAIN:
            return
        seen = 0
        self._clients += 1
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while seen < _DRAIN:
                    message = await receive()
                    seen += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    await asyncio.sleep(_PAUSE * self._clients)
        except TimeoutError:
            return  # the answer goes out now; whether it is read is up to the client
        finally:
            self._clients -= 1


class RequestBody:
    """What one request brings, and how it is coming along."""

    def __init__(self) -> None:
        self.size = 0
        self.whole = False
        self._late = False
        self._begun = time.monotonic()
        self._waiting: asyncio.Timeout | None = None

    def rate(self, now: float) -> float:
        """Bytes a second; infinite where it says nothing: just begun, all there, given up."""
        age = now - self._begun
        judged = age > _GRACE and not self.whole and not self._late
        return self.size / age if judged else float("inf")

    async def next(self, receive: Receive) -> Message:
        """The next message; a refusal where none comes or others should have the place."""
        try:
            if self._late:
                raise TimeoutError
            async with asyncio.timeout(STALL_SECONDS) as self._waiting:
                message = await receive()
        except TimeoutError:
            sentence = "the request arrived too slowly; send it again"
            raise HTTPException(408, sentence, {"Connection": "close"}) from None
        finally:
            self._waiting = None
        self.size += len(message.get("body", b""))
        self.whole = not message.get("more_body")
        return message

    def yield_slot(self) -> None:
        self._late = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0)


class UploadSlots:
    """Room for `most` bodies, each until its answer.

    One that hardly moves keeps its place only until somebody else wants it: half-sent uploads
    cannot keep whole ones out.
    """

    def __init__(self, most: int, sink: RequestDrain) -> None:
        self.most = most
        self._sink = sink
        self._bodies: set[RequestBody] = set()

    async def enter(self) -> RequestBody | None:
        """A body with a place; None if none became free in time."""
        probe_budget = time.monotonic() + PLACE_SECONDS
        while len(self._bodies) >= self.most:
            now = time.monotonic()
            slowest = min(self._bodies, key=lambda body: body.rate(now))
            if slowest.rate(now) < _SLOW:
                slowest.yield_slot()
            elif now >= probe_budget:
                return None
            await asyncio.sleep(0.05)
        body = RequestBody()
        self._bodies.add(body)
        return body

    def leave(self, body: RequestBody) -> None:
        self._bodies.discard(body)

    async def pause(self) -> None:
        """Between two pieces of a body, the longer the more of them are coming."""
        moving = sum(not body.whole for body in self._bodies)
        if moving > _MOVING:
            await asyncio.sleep(_PAUSE * (moving - _MOVING))

    def counted(self, body: RequestBody, receive: Receive, limit: int, too_large: str) -> Receive:
        """`receive` that stops once more than `limit` bytes have come, whatever was declared.

        HTTPExceptions, because the parsers of the framework let only those through.
        """

        async def counted() -> Message:
            if body.whole:
                return await receive()  # waits for the client to hang up
            message = await body.next(receive)
            if body.size > limit:
                if not body.whole:
                    await self._sink.drain(receive)
                raise HTTPException(413, too_large)
            if not body.whole:
                await self.pause()
            return message

        return counted


# A client's connection: it has to ask in time, and gives way when others want to get in.

if sys.platform != "win32":
    import resource

MOST_CONNECTIONS = 2000
HEAD_SECONDS = 10.0  # from the first byte of a request, or from connecting, to its whole head
_OTHER_FILES = 96  # descriptors for the run's files, pictures that wait, and the accept queue
_FULL = b'{"error":"too many connections; try again"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_FULL), _FULL)
)


def max_connections() -> int:
    """As many as there are file descriptors for."""
    files = _files()[0]
    return min(MOST_CONNECTIONS, max(files - _OTHER_FILES, files // 4))


def allow_more_files() -> None:
    """Take what the system grants: the usual 1,024 descriptors are fewer than the connections."""
    files, most = _files()
    wanted = min(most, MOST_CONNECTIONS + _OTHER_FILES)
    if sys.platform != "win32" and files < wanted:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _files() -> tuple[int, int]:
    """File descriptors this process may have, and may allow itself."""
    unlimited = 1 << 20
    if sys.platform == "win32":
        return unlimited, unlimited
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return unlimited if soft == endless else soft, unlimited if hard == endless else hard


class TimedConnection(H11Protocol):
    """uvicorn's HTTP/1.1, which waits for a first request forever and for as many as come."""

    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0

    @property
    def idle(self) -> bool:
        """Nobody would miss an answer if it were cut now."""
        encode_queries = self.cycle is not None and not self.cycle.response_complete
        return not encode_queries or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        full = len(self.connections) >= max_connections() and not self._make_room()
        super().connection_made(transport)
        self._since = self.loop.time()
        self._await_head()
        if full:
            transport.write(_REFUSAL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.idle:
            self._await_head()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a client that does not read would keep it open
        super().timeout_keep_alive_handler()

    def _await_head(self) -> None:
        if self._deadline is None:  # not anew with every byte: those may drip
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> bool:
        """Cut off whoever has been idle longest; False if all are being answered."""
        others = [c for c in self.connections if isinstance(c, TimedConnection) and c.idle]
        if not others:
            return False
        longest = min(others, key=lambda connection: connection._since)
        self.connections.discard(longest)  # at once: the next newcomer must not choose it again
        longest.transport.abort()
        return True
