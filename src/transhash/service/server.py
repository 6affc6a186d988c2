"""serve_run(run): open a run folder and serve it until interrupted."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from transhash.errors import EngineError
from transhash.model.files import require_run
from transhash.progress import no_output
from transhash.search.engine import SearchEngine
from transhash.service.app import create_app
from transhash.service.guard import LOOPBACK, ActiveRequests
from transhash.service.limits import TimedConnection, raise_file_limit
from transhash.storage import read_json

_log = logging.getLogger("transhash.service")
_ACCEPT_BATCH = 16  # connections accepted at once, after room was made for them
_ACCEPT_QUEUE = 1024  # connections that wait in the system until then
_STOP_SECONDS = 4


def serve_run(
    run: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    index_url: str | None = None,
    writable: bool = False,
    originals: bool = False,
    api_key: str | None = None,
    rate_limit: float | None = None,
    open_browser: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a run until interrupted; `on_ready` gets the URL as soon as it answers.

    On a loopback address only loopback host names are answered. On any other address all names
    are, and `api_key` is required for every request. A writable service on loopback without a key
    generates one and appends it to the URL: browsers send nothing after a # to a server, and the
    search page reads it there.
    """
    require_run(run)  # before the port, because the run is the first argument
    read_json(run / "config.json")
    is_local = _is_loopback(host)
    if not is_local and not api_key:
        _log.warning(
            "Anyone who can reach %s can search this run and see its items%s. "
            "Use --api-key to restrict access.",
            host,
            ", and download the image files" if originals else "",
        )
    generated_key = secrets.token_urlsafe(16) if writable and not api_key and is_local else None
    raise_file_limit()
    sock = _listen(host, port)
    url_host = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{url_host}:{sock.getsockname()[1]}/"
    try:
        reopen = partial(SearchEngine.open, run, index_url, writable=writable)
        with reopen() as engine:
            app = create_app(
                engine,
                writable=writable,
                originals=originals,
                api_key=api_key or generated_key,
                rate_limit=rate_limit,
                allowed_hosts=LOOPBACK if is_local else ("*",),
                protect_reads=bool(api_key) and not is_local,
                reopen=reopen,
            )
            config = uvicorn.Config(
                app,
                http=TimedConnection,
                loop="asyncio",
                ws="none",
                backlog=_ACCEPT_BATCH,
                log_level="warning",
                access_log=False,  # queries are private
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=_STOP_SECONDS + 2,
            )

            def announce() -> None:
                _log.info("Serving at %s", url)  # without the key
                link = f"{url}#key={generated_key}" if generated_key else url
                if on_ready is not None:
                    on_ready(link)
                if open_browser:
                    webbrowser.open(link)

            with no_output():
                _Server(config, app.state.active_requests, announce).run(sockets=[sock])
    finally:
        sock.close()


def _is_loopback(host: str) -> bool:
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
        active_requests: ActiveRequests,
        on_startup: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._active_requests = active_requests
        self._on_startup = on_startup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_ACCEPT_QUEUE)
        self._on_startup()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._active_requests.stop(_STOP_SECONDS)  # later ones are refused, not cut off
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would raise the signal again after stopping, before the run is closed.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; called before the model is loaded, so that errors show at once."""
    sock = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        if sys.platform == "win32":  # there SO_REUSEADDR would share a port that is in use
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise EngineError(
            f"Port {port} on {host} is not available ({error.strerror or error}). "
            "Choose another with --port."
        ) from None
    return sock
