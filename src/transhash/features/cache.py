"""Features kept on disk by the content of the file and by what computed them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
_T = TypeVar("_T")
_VERSION = 2
_log = logging.getLogger("transhash")


def cache_folder() -> Path:
    """$TRANSHASH_CACHE, else the user's cache folder."""
    given = os.environ.get("TRANSHASH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transhash"


class FeatureCache:
    """One SQLite file: safe to share between processes, and a killed run loses nothing kept.

    Nothing depends on it: a damaged file is made anew, one that cannot be written is done without,
    both with a warning; a row that does not agree with its checksum is as good as none.
    """

    def __init__(self, computed_by: str, folder: Path | None = None) -> None:
        """`computed_by`: the features' own key, so that no two kinds are mixed."""
        self._computed_by = computed_by
        self._folder = folder or cache_folder()
        self._path = self._folder / "features.sqlite"
        self._lock = threading.Lock()
        self._base: sqlite3.Connection | None = None
        self._given_up = False

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[str, Path]]:
        return FeatureCache, (self._computed_by, self._folder)  # decoding processes open their own

    def get(self, digest: bytes) -> Vector | None:
        """The row of the file with that digest of its content, if it is here."""
        question = "SELECT value FROM features WHERE key = ?"
        found = self._try(lambda base: base.execute(question, [self._key(digest)]).fetchone(), None)
        if found is None or zlib.crc32(found[0][4:]).to_bytes(4, "little") != found[0][:4]:
            return None
        return np.frombuffer(found[0], np.float32, offset=4)

    def put(self, digests: Sequence[bytes], vectors: Vector) -> None:
        values = [vector.astype(np.float32).tobytes() for vector in vectors]
        rows = [
            (self._key(digest), zlib.crc32(value).to_bytes(4, "little") + value)
            for digest, value in zip(digests, values, strict=True)
        ]

        def write(base: sqlite3.Connection) -> None:
            with base:
                base.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)

        self._try(write, None)

    def close(self) -> None:
        with self._lock:
            if self._base is not None:
                self._base.close()
            self._base = None

    def _key(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest + self._computed_by.encode(), digest_size=16).digest()

    def _try(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """What `work` returns; after damage, on a new file; `otherwise` where there is none."""
        with self._lock:
            for attempt in range(2):
                if self._given_up:
                    break
                try:
                    if self._base is None:
                        self._base = self._connect()
                    return work(self._base)
                except (sqlite3.Error, OSError) as error:
                    if self._base is not None:
                        self._base.close()
                        self._base = None
                    if attempt == 0 and _is_damage(error):
                        _log.warning("%s is damaged (%s) and is made anew", self._path, error)
                        self._delete()
                        continue
                    self._given_up = True
                    _log.warning("image features are not kept: %s (%s)", self._path, error)
        return otherwise

    def _connect(self) -> sqlite3.Connection:
        self._folder.mkdir(parents=True, exist_ok=True)
        base = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
        # In this order: table and version come together, so one that has just been made by another
        # process is never taken for an old one.
        if base.execute("SELECT * FROM sqlite_master").fetchone() and (
            base.execute("PRAGMA user_version").fetchone()[0] != _VERSION
        ):
            base.close()
            self._delete()
            base = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")
        base.executescript(
            "BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, "
            f"value BLOB) WITHOUT ROWID; PRAGMA user_version={_VERSION}; COMMIT"
        )
        return base

    def _delete(self) -> None:
        for ending in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}{ending}")


def _is_damage(error: Exception) -> bool:
    # A full disk, a locked or a read-only file are operational; damage is of the file itself.
    return isinstance(error, sqlite3.DatabaseError) and (
        not isinstance(error, sqlite3.OperationalError) or "no such" in str(error)
    )
