"""serve_run(run): open the run, listen, say where."""

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

from transhash.errors import DataError, EngineError
from transhash.runs.search import SearchEngine
from transhash.service.app import create_app
from transhash.service.connections import ClientConnection, allow_more_files
from transhash.service.guard import LOOPBACK, InWork
from transhash.storage import read_json

_log = logging.getLogger("transhash.service")
_ACCEPTED = 16  # connections taken at a time: room is made for them before the next are
_QUEUED = 1024  # those that the system keeps until then
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
    """Serve a run until interrupted; `on_ready` gets the address once it answers.

    On a loopback address only loopback names are answered. Listening on another address is the
    decision to be reached by others, under whatever name; a key is asked of all of them then.
    A writable service on loopback makes a key of its own where none is given. The address ends in
    it: browsers send nothing behind a # to anybody, and the page takes it from there.
    """
    if not run.is_dir():  # said before the port: the run is what was asked for
        raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
    read_json(run / "config.json")
    if not _is_loopback(host) and not api_key:
        _log.warning(
            "everybody who can reach %s can search this run and see its texts and pictures%s; "
            "--api-key asks for a key",
            host,
            ", and take the files of these" if originals else "",
        )
    made = secrets.token_urlsafe(16) if writable and not api_key and _is_loopback(host) else None
    allow_more_files()
    sock = _listen(host, port)
    address = f"http://{_printable(host)}:{sock.getsockname()[1]}/"
    if made:
        address += f"#key={made}"
    try:
        reopen = partial(SearchEngine.open, run, index_url, writable=writable)
        engine = reopen()
        try:
            app = create_app(
                engine,
                writable=writable,
                originals=originals,
                api_key=api_key or made,
                rate_limit=rate_limit,
                allowed_hosts=LOOPBACK if _is_loopback(host) else ("*",),
                key_to_read=bool(api_key) and not _is_loopback(host),
                reopen=reopen,
            )
            config = uvicorn.Config(
                app,
                http=ClientConnection,
                loop="asyncio",
                ws="none",
                backlog=_ACCEPTED,
                log_level="warning",
                access_log=False,  # what people search for is theirs
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=_STOP_SECONDS + 2,
            )
            _Server(config, app.state.in_work, address, open_browser, on_ready).run(sockets=[sock])
        finally:
            engine.close()
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
        in_work: InWork,
        address: str,
        open_browser: bool,
        on_ready: Callable[[str], None] | None,
    ) -> None:
        super().__init__(config)
        self._in_work = in_work
        self._address = address
        self._open_browser = open_browser
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_QUEUED)
        _log.info("serving at %s", self._address.partition("#")[0])  # a log needs no key
        if self._on_ready is not None:
            self._on_ready(self._address)
        if self._open_browser:
            webbrowser.open(self._address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._in_work.stop(_STOP_SECONDS)  # what is not answered by then is refused, not cut off
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's: it raises the signal again once it has stopped, before the run is closed.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


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
        if sys.platform == "win32":  # there SO_REUSEADDR would share a port that is taken
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
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
