"""serve_run(run): open the run, listen, say where."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from transhash.data.collection import MODALITIES
from transhash.errors import DataError, EngineError, TranshashError
from transhash.search.engine import SearchEngine
from transhash.service.app import create_app
from transhash.service.guard import LOOPBACK, ActiveRequests
from transhash.service.limits import TimedConnection, allow_more_files
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
                http=TimedConnection,
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
        in_work: ActiveRequests,
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


# The open run, watched: files that are gone or replaced are noticed before anything is answered.
#
# Open files outlive their names. An engine whose folder was deleted goes on searching and storing,
# and what it stores is gone with the process.

_AGAIN = 1.0  # seconds between two tries to open a run that came back
_CLOSED = (-1, -1)  # the stamp of no file: an engine closed here is not in place when files return


class RunFilesChangedError(EngineError):
    """The run's files are not those that were opened; the message names no path."""


class ReloadingEngine:
    """The engine of a run, opened again by `reopen` when its files were put back or replaced."""

    def __init__(
        self, engine: SearchEngine, reopen: Callable[[], SearchEngine] | None = None
    ) -> None:
        self._engine = engine
        self._reopen = reopen
        self._own = False  # whether the engine was opened here, and not by the caller
        self._lock = threading.Lock()
        self._tried = float("-inf")
        self._opened = _stamps(engine.run)

    @property
    def engine(self) -> SearchEngine:
        """The engine, if its files are still in their places."""
        if not self._in_place(_stamps(self._engine.run)):
            with self._lock:
                self._look()
        return self._engine

    def close(self) -> None:
        """Close what was opened here; the first engine is its opener's."""
        with self._lock:
            if self._own:
                self._engine.close()
                self._opened = {}

    def _in_place(self, now: dict[str, tuple[int, int]]) -> bool:
        return bool(self._opened) and now | self._opened == now

    def _look(self) -> None:
        now = _stamps(self._engine.run)
        if self._in_place(now):
            return  # another thread has opened it, or it was moved back
        if self._reopen is None or not now.keys() >= self._opened.keys():
            raise RunFilesChangedError("the files of this run are gone; put them back")
        if time.monotonic() - self._tried < _AGAIN:
            raise RunFilesChangedError("the files of this run were replaced; they are being opened")
        self._tried = time.monotonic()
        self._engine.close()  # first: it may hold the writer's lock on what is still there
        self._opened = dict.fromkeys(self._opened, _CLOSED)
        try:
            self._engine = self._reopen()
        except (TranshashError, OSError) as error:
            raise RunFilesChangedError(
                f"the files of this run were replaced, and {error}"
            ) from None
        self._own, self._opened = True, _stamps(self._engine.run)


def _stamps(run: Path) -> dict[str, tuple[int, int]]:
    """What tells the files of a run from others of the same names; missing ones are left out."""
    folders = [run / "index" / modality for modality in MODALITIES]
    found = {}
    for path in (run / "catalog.sqlite", *folders):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found[str(path)] = (stat.st_dev, stat.st_ino)
    for folder in folders:  # replaced with every generation: only that there is one
        if (folder / "index.json").exists():
            found[str(folder / "index.json")] = (0, 0)
    return found
