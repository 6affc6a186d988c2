"""serve_run(run): open the run, listen, say where."""

from __future__ import annotations

import ipaddress
import logging
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from transhash.errors import EngineError
from transhash.runs.search import SearchEngine
from transhash.service.app import create_app
from transhash.service.guard import LOOPBACK

_log = logging.getLogger("transhash.service")


def serve_run(
    run: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    index_url: str | None = None,
    writable: bool = False,
    api_key: str | None = None,
    rate_limit: float | None = None,
    open_browser: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a run until interrupted; `on_ready` gets the address once it answers.

    On a loopback address only loopback names are answered. Listening on another address is the
    decision to be reached by others, under whatever name.
    """
    sock = _listen(host, port)
    address = f"http://{_printable(host)}:{sock.getsockname()[1]}/"
    try:
        engine = SearchEngine.open(run, index_url, writable=writable)
        try:
            app = create_app(
                engine,
                writable=writable,
                api_key=api_key,
                rate_limit=rate_limit,
                allowed_hosts=LOOPBACK if is_loopback(host) else ("*",),
            )
            config = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,  # what people search for is theirs
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=5,
            )
            with suppress(KeyboardInterrupt):  # uvicorn stops first, then raises it again
                _Server(config, address, open_browser, on_ready).run(sockets=[sock])
        finally:
            engine.close()
    finally:
        sock.close()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        address: str,
        open_browser: bool,
        on_ready: Callable[[str], None] | None,
    ) -> None:
        super().__init__(config)
        self._address = address
        self._open_browser = open_browser
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info("serving at %s", self._address)
        if self._on_ready is not None:
            self._on_ready(self._address)
        if self._open_browser:
            webbrowser.open(self._address)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, before the model is loaded: a taken port is said at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise EngineError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise EngineError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another with --port"
        ) from None
    return sock


def _printable(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
