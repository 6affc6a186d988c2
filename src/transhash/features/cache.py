"""Features kept on disk by the content of the file and the settings that made them."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def cache_folder() -> Path:
    """$TRANSHASH_CACHE, else the user's cache folder."""
    given = os.environ.get("TRANSHASH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transhash"


class FeatureCache:
    """One SQLite file: safe to share between processes, and a killed run loses nothing kept."""

    def __init__(self, settings: str, folder: Path | None = None) -> None:
        folder = folder or cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = settings.encode()
        self._base = sqlite3.connect(folder / "features.sqlite", timeout=60)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=NORMAL")
        self._base.execute(
            "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
        )

    def key(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=16, key=self._settings[:64]).digest()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        found: dict[bytes, Vector] = {}
        for start in range(0, len(keys), 500):  # SQLite's limit on variables in one statement
            part = keys[start : start + 500]
            marks = ",".join("?" * len(part))
            rows = self._base.execute(
                f"SELECT key, value FROM features WHERE key IN ({marks})", part
            )
            found.update((key, np.frombuffer(value, dtype=np.float32)) for key, value in rows)
        return found

    def put(self, keys: Sequence[bytes], vectors: Vector) -> None:
        with self._base:
            self._base.executemany(
                "INSERT OR REPLACE INTO features VALUES (?, ?)",
                [(key, vector.astype(np.float32).tobytes()) for key, vector in zip(keys, vectors)],
            )

    def close(self) -> None:
        self._base.close()
