"""The open run, watched: files that are gone or replaced are noticed before anything is answered.

Open files outlive their names. An engine whose folder was deleted goes on searching and storing,
and what it stores is gone with the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from transhash.errors import EngineError, TranshashError
from transhash.runs.catalog import MODALITIES
from transhash.runs.search import SearchEngine

_AGAIN = 1.0  # seconds between two tries to open a run that came back
_CLOSED = (-1, -1)  # the stamp of no file: an engine closed here is not in place when files return


class RunGoneError(EngineError):
    """The run's files are not those that were opened; the message names no path."""


class OpenRun:
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
            raise RunGoneError("the files of this run are gone; put them back")
        if time.monotonic() - self._tried < _AGAIN:
            raise RunGoneError("the files of this run were replaced; they are being opened")
        self._tried = time.monotonic()
        self._engine.close()  # first: it may hold the writer's lock on what is still there
        self._opened = dict.fromkeys(self._opened, _CLOSED)
        try:
            self._engine = self._reopen()
        except (TranshashError, OSError) as error:
            raise RunGoneError(f"the files of this run were replaced, and {error}") from None
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
