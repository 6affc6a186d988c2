"""A disk cache of image features and text embeddings, by content and by what computed them."""

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
_VERSION = 3
_log = logging.getLogger("transhash")


def cache_folder() -> Path:
    """Return $TRANSHASH_CACHE, else transhash in the user's cache folder."""
    folder = os.environ.get("TRANSHASH_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transhash"


class FeatureCache:
    """One SQLite file, safe to share between processes and to kill at any time.

    Nothing depends on it: a corrupt file is recreated and one that cannot be written is ignored,
    both with a warning. A row that does not match its checksum counts as missing.
    """

    def __init__(self, features_key: str, folder: Path | None = None) -> None:
        self._features_key = features_key
        self._folder = folder or cache_folder()
        self._path = self._folder / "features.sqlite"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._disabled = False

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[str, Path]]:
        return FeatureCache, (self._features_key, self._folder)  # worker processes open their own

    def get(self, digest: bytes) -> Vector | None:
        """Return the cached vector of a file or text by the digest of its content."""
        query, key = "SELECT value FROM features WHERE key = ?", self._key(digest)
        row = self._try(lambda connection: connection.execute(query, [key]).fetchone(), None)
        if row is None or zlib.crc32(row[0][4:]).to_bytes(4, "little") != row[0][:4]:
            return None
        return np.frombuffer(row[0], np.float32, offset=4)

    def put(self, digests: Sequence[bytes], vectors: Vector) -> None:
        values = [vector.astype(np.float32).tobytes() for vector in vectors]
        rows = [
            (self._key(digest), zlib.crc32(value).to_bytes(4, "little") + value)
            for digest, value in zip(digests, values, strict=True)
        ]

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)

        self._try(write, None)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _key(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest + self._features_key.encode(), digest_size=16).digest()

    def _try(self, work: Callable[[sqlite3.Connection], _T], default: _T) -> _T:
        """Return what `work` returns, on a new file if this one is corrupt, else `default`."""
        with self._lock:
            for attempt in range(2):
                if self._disabled:
                    break
                try:
                    if self._connection is None:
                        self._connection = self._connect()
                    return work(self._connection)
                except (sqlite3.Error, OSError) as error:
                    if self._connection is not None:
                        self._connection.close()
                        self._connection = None
                    if attempt == 0 and _is_corruption(error):
                        _log.warning("%s is corrupt (%s). Creating a new cache.", self._path, error)
                        self._delete()
                        continue
                    self._disabled = True
                    _log.warning("Features are not cached: %s (%s).", self._path, error)
        return default

    def _connect(self) -> sqlite3.Connection:
        self._folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
        # Table and version are written in one transaction, so checking for a table first never
        # mistakes a file that another process is creating for one of an older version.
        if connection.execute("SELECT * FROM sqlite_master").fetchone() and (
            connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION
        ):
            connection.close()
            self._delete()
            connection = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(
            "BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, "
            f"value BLOB) WITHOUT ROWID; PRAGMA user_version={_VERSION}; COMMIT"
        )
        return connection

    def _delete(self) -> None:
        for ending in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}{ending}")


def _is_corruption(error: Exception) -> bool:
    # Full disks and locked or read-only files raise OperationalError.
    return isinstance(error, sqlite3.DatabaseError) and (
        not isinstance(error, sqlite3.OperationalError) or "no such" in str(error)
    )
