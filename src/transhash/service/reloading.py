"""ReloadingEngine: notices missing or replaced run files before a request uses them.

Open files outlive their names. An engine whose folder was deleted would keep searching and
storing, and what it stores would be lost when the process ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from transhash.data.collection import MODALITIES
from transhash.errors import EngineError, TranshashError
from transhash.search.engine import SearchEngine

_RETRY_SECONDS = 1.0  # between two attempts to open a run that came back
_CLOSED = (-1, -1)  # identity of no file: an engine that was closed here must be opened again


class RunFilesChangedError(EngineError):
    """The run's files are not those that were opened; the message has no path."""


class ReloadingEngine:
    """The engine of a run, opened again with `reopen` after its files were replaced."""

    def __init__(
        self, engine: SearchEngine, reopen: Callable[[], SearchEngine] | None = None
    ) -> None:
        self._engine = engine
        self._reopen = reopen
        self._owns_engine = False  # True once it was opened here and not by the caller
        self._lock = threading.Lock()
        self._last_attempt = float("-inf")
        self._opened_files = _file_identities(engine.run)

    @property
    def engine(self) -> SearchEngine:
        """The engine; raises RunFilesChangedError if its files are missing."""
        if not self._is_current(_file_identities(self._engine.run)):
            with self._lock:
                self._reload()
        return self._engine

    def close(self) -> None:
        """Close the engine if it was opened here; the first one belongs to the caller."""
        with self._lock:
            if self._owns_engine:
                self._engine.close()
                self._opened_files = {}

    def _is_current(self, files: dict[str, tuple[int, int]]) -> bool:
        return bool(self._opened_files) and files | self._opened_files == files

    def _reload(self) -> None:
        files = _file_identities(self._engine.run)
        if self._is_current(files):
            return  # another thread opened it, or the folder was moved back
        if self._reopen is None or not files.keys() >= self._opened_files.keys():
            raise RunFilesChangedError("The run's files are missing. Restore them.")
        if time.monotonic() - self._last_attempt < _RETRY_SECONDS:
            raise RunFilesChangedError("The run's files were replaced. Try again in a second.")
        self._last_attempt = time.monotonic()
        self._engine.close()  # first: it may hold the writer's lock on files that are still there
        self._opened_files = dict.fromkeys(self._opened_files, _CLOSED)
        try:
            self._engine = self._reopen()
        except (TranshashError, OSError) as error:
            raise RunFilesChangedError(f"The replaced run cannot be opened. {error}") from None
        self._owns_engine, self._opened_files = True, _file_identities(self._engine.run)


def _file_identities(run: Path) -> dict[str, tuple[int, int]]:
    """Return device and inode of the run's files; missing files are left out."""
    folders = [run / "index" / modality for modality in MODALITIES]
    identities = {}
    for path in (run / "catalog.sqlite", *folders):
        try:
            stat = path.stat()
        except OSError:
            continue
        identities[str(path)] = (stat.st_dev, stat.st_ino)
    for path in (folder / "index.json" for folder in folders):
        if path.exists():  # existence only: it is replaced with every generation of the index
            identities[str(path)] = (0, 0)
    return identities
