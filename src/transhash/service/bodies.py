"""Requests that bring something along: so many at once, and the slow make way."""

from __future__ import annotations

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

STALL_SECONDS = 10.0  # without a byte
PLACE_SECONDS = 5.0  # to wait for a place; nothing is read meanwhile, TCP holds it back
_GRACE = 0.5  # seconds before a body can be slow
_SLOW = 64 << 10  # bytes a second, on average; a slower body gives way when its place is wanted
_MOVING = 2  # bodies read at full speed; each further one slows all, so that questions get through
_PAUSE = 0.003
_DRAIN = 32 << 20
_DRAIN_SECONDS = 8.0


class Sink:
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


class Body:
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

    def give_way(self) -> None:
        self._late = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0)


class Places:
    """Room for `most` bodies, each until its answer.

    One that hardly moves keeps its place only until somebody else wants it: half-sent uploads
    cannot keep whole ones out.
    """

    def __init__(self, most: int, sink: Sink) -> None:
        self.most = most
        self._sink = sink
        self._bodies: set[Body] = set()

    async def enter(self) -> Body | None:
        """A body with a place; None if none became free in time."""
        patience = time.monotonic() + PLACE_SECONDS
        while len(self._bodies) >= self.most:
            now = time.monotonic()
            slowest = min(self._bodies, key=lambda body: body.rate(now))
            if slowest.rate(now) < _SLOW:
                slowest.give_way()
            elif now >= patience:
                return None
            await asyncio.sleep(0.05)
        body = Body()
        self._bodies.add(body)
        return body

    def leave(self, body: Body) -> None:
        self._bodies.discard(body)

    async def pause(self) -> None:
        """Between two pieces of a body, the longer the more of them are coming."""
        moving = sum(not body.whole for body in self._bodies)
        if moving > _MOVING:
            await asyncio.sleep(_PAUSE * (moving - _MOVING))

    def counted(self, body: Body, receive: Receive, limit: int, too_large: str) -> Receive:
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
