"""Guard: checks every request before it reaches a route, and sets security headers.

One ASGI class instead of a stack of middlewares, because the order of the checks matters.
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
from dataclasses import dataclass
from typing import Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transhash.errors import DataError
from transhash.service.diagnostics import RequestMetrics
from transhash.service.limits import RequestDrain, UploadSlots

_log = logging.getLogger("transhash.service")

# Scripts and styles only from our own files. Trusted types make the browser refuse innerHTML.
_CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_SECURITY_HEADERS = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UPLOAD_PATHS = frozenset({"/api/search/image", "/api/items/images"})
_MAX_JSON_BYTES = 1 << 20
_MULTIPART_BYTES = 1 << 16  # what multipart encoding adds to an image
_MAX_CLIENTS = 10_000
MAX_UPLOADS = 8  # at once; one thread decodes, so more would only slow each other down
_MAX_OTHER_BODIES = 64
_STOPPING = "The server is stopping. Try again later."
_WRITE_PATHS = (
    "/api/items/",
    "/api/votes",
    "/api/sync",
)  # where a request other than GET changes something
_PUBLIC_PATHS = frozenset({"/health", "/ready"})  # for monitoring, without a key


class RateLimit:
    """Token bucket per client or key: `rate` requests per second, bursts of twice as many."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.burst = max(1.0, 2 * rate)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str, now: float) -> bool:
        tokens, last = self._buckets.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - last) * self.rate)
        self._buckets[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)  # the least recent client
        return tokens >= 1


KeyName = Literal["read", "write"]


@dataclass(frozen=True)
class ApiKeys:
    """Write key for changes and reading; read key for reading only. Reads may need no key."""

    read: str | None = None
    write: str | None = None
    protect_reads: bool = False

    def __post_init__(self) -> None:
        if self.read is not None and self.read == self.write:
            raise DataError("Read key and write key are the same. Use two different keys.")

    def name(self, headers: Headers, *, allow_password: bool) -> KeyName | None:
        """Return which key a request has; None if it has none or a wrong one."""
        # Header bytes are decoded as Latin-1. Back to bytes: a key may have any character.
        values = [headers.get("x-api-key", "").encode("latin-1", "replace")]
        values += [_password(headers)] if allow_password else []
        if self._is_one(self.write, values):
            return "write"
        return "read" if self._is_one(self.read, values) else None

    def _is_one(self, key: str | None, values: Sequence[bytes]) -> bool:
        """Compare in a time that is the same for every wrong value."""
        matches = [hmac.compare_digest(value, (key or "").encode()) for value in values]
        return bool(key) and any(matches)


def is_change(method: str, path: str) -> bool:
    """Return whether a request changes the run, which needs the write key."""
    return method not in ("GET", "HEAD") and path.startswith(_WRITE_PATHS)


class ActiveRequests:
    """The deadlines of requests in progress; stopping the service shortens them."""

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
    """ASGI middleware that checks host, origin, rate, key and size, and limits the time."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: RequestMetrics,
        active_requests: ActiveRequests,
        hosts: Sequence[str] = LOOPBACK,
        keys: ApiKeys | None = None,
        max_upload: int = 10 << 20,
        rate_limit: float | None = None,
        key_rate_limit: float | None = None,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.active_requests = active_requests
        self.hosts = hosts
        self.keys = keys
        self.max_upload = max_upload
        self.rate_limit = None if rate_limit is None else RateLimit(rate_limit)
        self.key_rate_limit = None if key_rate_limit is None else RateLimit(key_rate_limit)
        self.drain = RequestDrain()
        self.uploads = UploadSlots(MAX_UPLOADS, self.drain)
        self.other_bodies = UploadSlots(_MAX_OTHER_BODIES, self.drain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        active, status = self.active_requests, 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(_SECURITY_HEADERS)
                # Queries are private, and a cached reply would report an old search time.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)
            if message.get("more_body") and not active.stopping:
                # A long download is not late as long as the client reads it.
                deadline.reschedule(asyncio.get_running_loop().time() + active.seconds)

        try:
            async with asyncio.timeout(active.seconds) as deadline:
                with active.hold(deadline):
                    await self._check_and_forward(scope, receive, reply)
        except TimeoutError:
            seconds = time.perf_counter() - start
            _log.warning("%s %s timed out after %.0f s", scope["method"], scope["path"], seconds)
            if not status:
                late = f"No reply within {active.seconds:.0f} seconds. Try again later."
                refusal = _refuse(503, _STOPPING, 1) if active.stopping else _refuse(504, late)
                await refusal(scope, receive, reply)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                message = "Internal server error. See the server log for the reason."
                await _refuse(500, message)(scope, receive, reply)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.observe(scope["method"], route, status, time.perf_counter() - start)

    async def _check_and_forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        is_upload = scope["method"] == "POST" and scope["path"] in _UPLOAD_PATHS
        limit = self.max_upload + _MULTIPART_BYTES if is_upload else _MAX_JSON_BYTES
        too_large = (
            f"The image is larger than {self.max_upload / 2**20:.3g} MiB. Send a smaller one."
            if is_upload
            else f"The request is larger than {_MAX_JSON_BYTES >> 20} MiB. Send it in parts."
        )
        size = _content_length(headers)
        if refusal is None and size > limit:
            refusal = _refuse(413, too_large)
        if refusal is None and not size and "transfer-encoding" not in headers:
            await self.app(scope, receive, send)
            return
        slots = self.uploads if is_upload else self.other_bodies
        body = await slots.acquire() if refusal is None else None
        if body is None:
            await self.drain.discard(receive, size)
            refusal = refusal or _refuse(429, "Too many uploads at once. Try again later.", 1)
            await refusal(scope, receive, send)
            return
        try:
            await self.app(scope, slots.limited(body, receive, limit, too_large), send)
        finally:
            slots.release(body)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        method, path = scope["method"], scope["path"]
        if self.active_requests.stopping:
            return _refuse(503, _STOPPING, 1)
        # Another site may resolve its own name to 127.0.0.1 (DNS rebinding): check the host name.
        if "*" not in self.hosts and _host(headers) not in self.hosts:
            return _refuse(421, f"Unknown host name. Use one of: {', '.join(self.hosts)}.")
        if method != "GET" and headers.get("sec-fetch-site") == "cross-site":
            return _refuse(403, "Requests from other sites are not allowed. Use the search page.")
        is_limited = path.startswith("/api/") and not path.endswith("/thumbnail")
        client = (scope.get("client") or ("unknown",))[0]
        if self.rate_limit and is_limited and not self.rate_limit.allows(client, time.monotonic()):
            return _refuse(429, "Too many requests. Try again in a second.", 1)
        return None if self.keys is None else self._key_refusal(self.keys, method, path, headers)

    def _key_refusal(
        self, keys: ApiKeys, method: str, path: str, headers: Headers
    ) -> JSONResponse | None:
        changes = is_change(method, path)
        # A password is not enough for a change: browsers send it for other sites as well.
        name = keys.name(headers, allow_password=not changes)
        if changes and name == "read":
            return _refuse(401, "The read key allows no changes. Send the write key in X-API-Key.")
        if name is None and (changes or (keys.protect_reads and path not in _PUBLIC_PATHS)):
            refusal = _refuse(401, "Missing or wrong API key. Send it in the header X-API-Key.")
            if keys.protect_reads and method == "GET":  # browsers then ask for a password
                refusal.headers["WWW-Authenticate"] = 'Basic realm="transhash", charset="UTF-8"'
            return refusal
        limit = self.key_rate_limit if path.startswith("/api/") else None
        if name and limit and not limit.allows(name, time.monotonic()):
            return _refuse(429, f"Too many requests with the {name} key. Try again in a second.", 1)
        return None


def _refuse(status: int, message: str, retry_after: int | None = None) -> JSONResponse:
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse({"error": message}, status, headers)


def _password(headers: Headers) -> bytes:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    try:
        credentials = base64.b64decode(value, validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return b""
    return credentials.partition(b":")[2]


def _host(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _content_length(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0
