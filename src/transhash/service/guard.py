"""The gate in front of every route: who may ask, how much, how long, and what goes back with it.

One ASGI class instead of a stack of middlewares, because the order of the checks is the point.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transhash.service.diagnostics import RequestMetrics
from transhash.service.limits import RequestDrain, UploadSlots

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
_CLIENTS = 10_000
UPLOADS_AT_ONCE = 8  # one thread decodes; more would only share the loop
_OTHERS_AT_ONCE = 64
_STOPPING = "the service is stopping; try again later"
_WRITE_PATHS = ("/api/items/", "/api/votes")  # what a request other than GET changes
_PUBLIC_PATHS = frozenset({"/health", "/ready"})  # to those who watch the service, without a key


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


class ApiKey:
    """Who may change things, and with `to_read` who may see them."""

    def __init__(self, key: str, *, to_read: bool = False) -> None:
        self._key = key.encode()
        self.to_read = to_read

    def authorizes(self, method: str, path: str, headers: Headers) -> bool:
        # Header bytes arrive read as Latin-1; back to bytes, a key may hold any character.
        given = headers.get("x-api-key", "").encode("latin-1", "replace")
        if method not in ("GET", "HEAD") and path.startswith(_WRITE_PATHS):
            return self._is(given)  # not by password: browsers send that along for other sites
        return (
            not self.to_read
            or path in _PUBLIC_PATHS
            or self._is(given)
            or self._is(_password(headers))
        )

    def _is(self, given: bytes) -> bool:
        # Takes the same time wherever the first difference is.
        return hmac.compare_digest(given, self._key)


class ActiveRequests:
    """The requests being answered, each with the time it has; a stopping service shortens it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.stopping = False
        self._deadlines: set[asyncio.Timeout] = set()

    @contextmanager
    def hold(self, deadline: asyncio.Timeout) -> Iterator[None]:
        self._deadlines.add(deadline)
        try:
            yield
        finally:
            self._deadlines.discard(deadline)

    def stop(self, seconds: float) -> None:
        self.stopping = True
        end = asyncio.get_running_loop().time() + seconds
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(min(deadline.when() or end, end))


class Guard:
    """Wraps the application; refusals are JSON with one sentence, like the application's own."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: RequestMetrics,
        in_work: ActiveRequests,
        hosts: Sequence[str] = LOOPBACK,
        key: ApiKey | None = None,
        max_upload: int = 10 << 20,
        rate_limit: float | None = None,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.in_work = in_work
        self.hosts = hosts
        self.key = key
        self.max_upload = max_upload
        self.rate = None if rate_limit is None else RateLimit(rate_limit)
        self.sink = RequestDrain()
        self.uploads = UploadSlots(UPLOADS_AT_ONCE, self.sink)
        self.others = UploadSlots(_OTHERS_AT_ONCE, self.sink)

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
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                # What people search for is kept by nobody, and no reply tells an old time.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)
            if message.get("more_body") and not self.in_work.stopping:
                # A file on its way: as long as pieces are taken it is not late.
                deadline.reschedule(asyncio.get_running_loop().time() + self.in_work.seconds)

        try:
            async with asyncio.timeout(self.in_work.seconds) as deadline:
                with self.in_work.hold(deadline):
                    await self._checked(scope, receive, reply)
        except TimeoutError:
            seconds, stopping = time.perf_counter() - start, self.in_work.stopping
            _log.warning("%s %s took over %.0f s", scope["method"], scope["path"], seconds)
            if not status:
                late = f"no answer within {self.in_work.seconds:.0f} seconds; try again later"
                refusal = _refuse(503, _STOPPING, 1) if stopping else _refuse(504, late)
                await refusal(scope, receive, reply)
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
        if refusal is None and not _declared(headers) and "transfer-encoding" not in headers:
            await self.app(scope, receive, send)
            return
        places = self.uploads if upload else self.others
        body = await places.enter() if refusal is None else None
        if body is None:
            await self.sink.drain(receive, _declared(headers))
            refusal = refusal or _refuse(429, "too many are sending at once; try again", 1)
            await refusal(scope, receive, send)
            return
        try:
            await self.app(scope, places.counted(body, receive, limit, too_large), send)
        finally:
            places.leave(body)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        method, path = scope["method"], scope["path"]
        if self.in_work.stopping:
            return _refuse(503, _STOPPING, 1)
        # Another site's page may point its own name at 127.0.0.1 (DNS rebinding): the name tells.
        if "*" not in self.hosts and _host(headers) not in self.hosts:
            return _refuse(421, f"this service answers for {', '.join(self.hosts)} only")
        if method != "GET" and headers.get("sec-fetch-site") == "cross-site":
            return _refuse(403, "requests from pages of other sites are refused")
        counted = path.startswith("/api/") and not path.endswith("/thumbnail")
        client = (scope.get("client") or ("unknown",))[0]
        if self.rate and counted and not self.rate.allows(client, time.monotonic()):
            return _refuse(429, "too many requests; wait a second and try again", 1)
        if self.key is not None and not self.key.authorizes(method, path, headers):
            refusal = _refuse(401, "this needs the right key in the header X-API-Key")
            if self.key.to_read and method == "GET":  # browsers ask for a password then
                refusal.headers["WWW-Authenticate"] = 'Basic realm="transhash", charset="UTF-8"'
            return refusal
        return None


def _refuse(status: int, sentence: str, retry_after: int | None = None) -> JSONResponse:
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse({"error": sentence}, status, headers)


def _password(headers: Headers) -> bytes:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    try:
        decoded = base64.b64decode(value, validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return b""
    return decoded.partition(b":")[2]


def _host(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _declared(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0
