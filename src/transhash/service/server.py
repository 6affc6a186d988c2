"""serve_run(run): open a run folder and serve it until interrupted."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from transhash.errors import EngineError
from transhash.model.files import require_run
from transhash.progress import no_output
from transhash.search.engine import SERVICE_LOCK, SearchEngine, check_not_served
from transhash.service.app import create_app
from transhash.service.guard import LOOPBACK, ActiveRequests
from transhash.service.limits import TimedConnection, raise_file_limit
from transhash.service.schemas import SyncResult
from transhash.storage import WriterLock, read_json

_log = logging.getLogger("transhash.service")
_ACCEPT_BATCH = 16  # connections accepted at once, after room was made for them
_ACCEPT_QUEUE = 1024  # connections that wait in the system until then
_STOP_SECONDS = 4
_EXIT_SECONDS = 4.5  # from the signal until the process ends, whatever is running


def serve_run(
    run: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    index_url: str | None = None,
    writable: bool = False,
    originals: bool = False,
    read_key: str | None = None,
    write_key: str | None = None,
    rate_limit: float | None = None,
    key_rate_limit: float | None = None,
    sync_sources: Sequence[Path] = (),
    sync_seconds: float | None = None,
    on_sync: Callable[[SyncResult], None] | None = None,
    open_browser: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a run until interrupted; `on_ready` gets the URL as soon as it answers.

    On a loopback address only loopback host names are answered. On any other address all names
    are, and if there is a key, reads need one as well. A writable service on loopback without a
    write key generates one and appends it to the URL: browsers send nothing after a # to a server,
    and the search page reads it there. With `sync_sources` the service is writable and syncs them:
    when it starts, on request, and every `sync_seconds` if they changed; `on_sync` gets the result.
    """
    writable = writable or bool(sync_sources)
    require_run(run)  # before the port, because the run is the first argument
    read_json(run / "config.json")
    is_local = _is_loopback(host)
    if not is_local and not (read_key or write_key):
        _log.warning(
            "Anyone who can reach %s can search this run and see its items%s. "
            "Use --read-key-file to restrict access.",
            host,
            ", and download the image files" if originals else "",
        )
    if writable:
        check_not_served(run)
    generated_key = secrets.token_urlsafe(16) if writable and not write_key and is_local else None
    raise_file_limit()
    sock = _listen(host, port)
    url_host = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{url_host}:{sock.getsockname()[1]}/"
    server: _Server | None = None
    lock: WriterLock | None = None
    try:
        if writable:
            lock = WriterLock(run, "wait for it", SERVICE_LOCK, url)
        reopen = partial(SearchEngine.open, run, index_url, writable=writable)
        with reopen() as engine:
            app = create_app(
                engine,
                writable=writable,
                originals=originals,
                read_key=read_key,
                write_key=write_key or generated_key,
                rate_limit=rate_limit,
                key_rate_limit=key_rate_limit,
                allowed_hosts=LOOPBACK if is_local else ("*",),
                protect_reads=bool(read_key or write_key) and not is_local,
                reopen=reopen,
                sync_sources=sync_sources,
                sync_seconds=sync_seconds,
                on_sync=on_sync,
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

            server = _Server(config, app.state.active_requests, announce)
            with no_output():
                server.run(sockets=[sock])
    finally:
        sock.close()
        if lock is not None:
            lock.release()
        if server is not None:
            server.exit_deadline.cancel()


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
        self.exit_deadline = _ExitDeadline()
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
        # uvicorn would raise the signal again after stopping, before the run is closed. A second
        # signal changes nothing: the deadline is near.
        self.exit_deadline.start()
        self.should_exit = True


class _ExitDeadline:
    """Ends the process if it has not stopped in time: a thread cannot be interrupted.

    Nothing that was acknowledged is lost, because it is on disk before the reply.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_EXIT_SECONDS, _exit_now)
            self._timer.daemon = True
            self._timer.start()
            if sys.platform != "win32":  # by the kernel, if a thread keeps the interpreter busy
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, _EXIT_SECONDS + 0.3)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            if sys.platform != "win32":
                signal.setitimer(signal.ITIMER_REAL, 0)


def _exit_now() -> None:
    _log.warning("Stopped while work was in progress.")
    os._exit(0)


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
    except socket.gaierror as error:
        raise EngineError(
            f"{host} is not an address of this machine ({error.strerror or error}). "
            "Choose another with --host."
        ) from None
    except OSError as error:
        if sock is not None:
            sock.close()
        raise EngineError(
            f"Port {port} on {host} is not available ({error.strerror or error}). "
            "Choose another with --port."
        ) from None
    return sock
