"""The gate in front of every route: who may ask, how much, how long, and what goes back with it.

One ASGI class instead of a stack of middlewares, because the order of the checks is the point.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transhash.service.metrics import RequestMetrics

_log = logging.getLogger("transhash.service")

# Scripts and styles only from our own files. Trusted types: the browser itself refuses innerHTML.
POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
UPLOADS = frozenset({"/api/search/image", "/api/items/images"})
_SMALL_BODY = 1 << 20  # JSON
_ENVELOPE = 1 << 16  # what multipart adds around a picture
_DRAIN = 32 << 20
_DRAIN_SECONDS = 8.0
_CLIENTS = 10_000
UPLOADS_AT_ONCE = 4  # bodies being read; one thread decodes, more would only share the loop
UPLOAD_WAIT = 5.0  # seconds for one of those places; nothing is read meanwhile, TCP holds it back


class RateLimit:
    """A bucket a client address: `rate` requests a second, twice that at once."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.burst = max(1.0, 2 * rate)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str, now: float) -> bool:
        tokens, last = self._buckets.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - last) * self.rate)
        self._buckets[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)  # whoever asked longest ago
        return tokens >= 1


class Guard:
    """Wraps the application; refusals are JSON with one sentence, like the application's own."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: RequestMetrics,
        hosts: Sequence[str] = LOOPBACK,
        max_upload: int = 10 << 20,
        rate_limit: float | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.hosts = hosts
        self.max_upload = max_upload
        self.rate = None if rate_limit is None else RateLimit(rate_limit)
        self.timeout = timeout
        self.uploads = 0
        self.draining = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            async with asyncio.timeout(self.timeout):
                await self._checked(scope, receive, reply)
        except TimeoutError:
            _log.warning("%s %s took over %.0f s", scope["method"], scope["path"], self.timeout)
            if not status:
                text = f"no answer within {self.timeout:.0f} seconds; try again later"
                await _refuse(504, text)(scope, receive, reply)
        except Exception:
            # The client gets a sentence, the log the rest.
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                text = "something went wrong in the service; its log says what"
                await _refuse(500, text)(scope, receive, reply)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.observe(scope["method"], route, status, time.perf_counter() - start)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        upload = scope["method"] == "POST" and scope["path"] in UPLOADS
        limit = self.max_upload + _ENVELOPE if upload else _SMALL_BODY
        too_large = (
            f"the picture is larger than the {self.max_upload / 2**20:.3g} MiB accepted here"
            if upload
            else f"the request is larger than {_SMALL_BODY >> 20} MiB; send it in parts"
        )
        if refusal is None and _declared(headers) > limit:
            refusal = _refuse(413, too_large)
        if refusal is None and upload and not await self._place():
            refusal = _refuse(429, "too many pictures are being sent at once; try again", 1)
        if refusal is not None:
            await self._drain(receive, _declared(headers))
            await refusal(scope, receive, send)
            return
        try:
            await self.app(scope, self._counted(receive, limit, too_large), send)
        finally:
            self.uploads -= upload

    async def _place(self) -> bool:
        """Take one of the places for uploads; False if none became free in time."""
        patience = time.monotonic() + UPLOAD_WAIT
        while self.uploads >= UPLOADS_AT_ONCE:
            if time.monotonic() >= patience:
                return False
            await asyncio.sleep(0.05)
        self.uploads += 1
        return True

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        # Another site's page may point its own name at 127.0.0.1 (DNS rebinding): the name tells.
        if "*" not in self.hosts and _host(headers) not in self.hosts:
            return _refuse(421, f"this service answers for {', '.join(self.hosts)} only")
        if scope["method"] != "GET" and headers.get("sec-fetch-site") == "cross-site":
            return _refuse(403, "requests from pages of other sites are refused")
        path = scope["path"]
        counted = path.startswith("/api/") and not path.endswith("/thumbnail")
        client = (scope.get("client") or ("unknown",))[0]
        if self.rate and counted and not self.rate.allows(client, time.monotonic()):
            return _refuse(429, "too many requests; wait a second and try again", 1)
        return None

    def _counted(self, receive: Receive, limit: int, sentence: str) -> Receive:
        """`receive` that stops once more than `limit` bytes have come, whatever was declared.

        An HTTPException, because the parsers of the framework let only that one through.
        """
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    if message.get("more_body"):
                        await self._drain(receive, _DRAIN)
                    raise HTTPException(413, sentence)
            return message

        return counted

    async def _drain(self, receive: Receive, declared: int) -> None:
        """Read and forget what a refused client still sends, within reason.

        A client in the middle of sending does not read; closing on it would hide the answer.
        The more of them there are, the slower each is read: a crowd must not take the loop.
        """
        if not 0 < declared <= _DRAIN:
            return
        seen = 0
        self.draining += 1
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while seen < _DRAIN:
                    message = await receive()
                    seen += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    await asyncio.sleep(0.002 * self.draining)
        except TimeoutError:
            return  # the answer goes out now; whether it is read is up to the client
        finally:
            self.draining -= 1


def _refuse(status: int, sentence: str, retry_after: int | None = None) -> JSONResponse:
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse({"error": sentence}, status, headers)


def _host(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _declared(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0
