"""The SQLite file of a catalog: its tables, how it is opened, migrated and what it refuses."""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transhash.errors import DataError, EngineError

CATALOG_VERSION = 3
CHECKED_COLUMNS = "id, text, thumbnail, source, code, origin, key, digest"  # those with a checksum
_FIRST = """
CREATE TABLE items (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  modality TEXT NOT NULL,
  id TEXT NOT NULL,
  text TEXT,
  thumbnail BLOB,
  source TEXT,
  code BLOB NOT NULL,
  UNIQUE (modality, id)
);
"""
# Items from before version 2 have no origin, key, digest and checksum: NULL.
_SECOND = """
ALTER TABLE items ADD COLUMN origin INTEGER;
ALTER TABLE items ADD COLUMN key TEXT;
ALTER TABLE items ADD COLUMN digest BLOB;
ALTER TABLE items ADD COLUMN checksum INTEGER;
CREATE UNIQUE INDEX items_by_place ON items (modality, origin, key);
CREATE TABLE origins (number INTEGER PRIMARY KEY, place TEXT NOT NULL UNIQUE);
CREATE TABLE pending (
  engine TEXT NOT NULL, number INTEGER NOT NULL, code BLOB, PRIMARY KEY (engine, number)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
# Size and time of the file that an item is, when it was last read; not known before version 3.
_THIRD = """
ALTER TABLE items ADD COLUMN stamp TEXT;
"""


class CatalogFile:
    """One connection a thread, so a service may ask from many; errors are sentences."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._immutable = False
        self._there = False  # the file, by a connection that was answered
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        if read_only and not path.exists():
            raise DataError(f"{path} does not exist; build it with: transhash index RUN ...")
        with self.errors():
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            self.version = int(self._first_answer())
            self._there = True
        if not 0 <= self.version <= CATALOG_VERSION:
            self.close()
            raise DataError(
                f"{path} has format version {self.version}, this transhash reads up to "
                f"{CATALOG_VERSION}; install a newer transhash"
            )
        if read_only and self.version == 0:
            self.close()
            raise DataError(f"{path} holds nothing yet; build it with: transhash index RUN ...")
        with self.errors():
            if not read_only:
                self.base.execute("PRAGMA journal_mode=WAL")
                self._migrate()
            self._check_table()

    def _first_answer(self) -> int:
        try:
            return int(self.base.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.OperationalError:
            # On a read-only medium the files that go with a writer cannot be made; without a
            # writer they are not needed.
            if not self.read_only or self.path.with_name(self.path.name + "-wal").exists():
                raise
            self.close()
            self._immutable = True
            return int(self.base.execute("PRAGMA user_version").fetchone()[0])

    def _migrate(self) -> None:
        if self.version == CATALOG_VERSION:
            return
        self.base.execute("BEGIN IMMEDIATE")  # another process may be at it, too
        with self.base:
            version = int(self.base.execute("PRAGMA user_version").fetchone()[0])
            for script in (_FIRST, _SECOND, _THIRD)[version:]:
                for statement in script.split(";"):
                    self.base.execute(statement)
            self.base.execute(f"PRAGMA user_version={CATALOG_VERSION}")
        self.version = CATALOG_VERSION

    @property
    def has_places(self) -> bool:
        """Whether it says where items came from: not before version 2."""
        return self.version >= 2

    def _check_table(self) -> None:
        found = {str(row[1]) for row in self.base.execute("PRAGMA table_info(items)")}
        missing = {"number", "modality", "id", "text", "thumbnail", "source", "code"} - found
        if missing:
            self.close()
            raise sqlite3.DatabaseError(f"items have no {', '.join(sorted(missing))}")

    @property
    def base(self) -> sqlite3.Connection:
        base: sqlite3.Connection | None = getattr(self._local, "base", None)
        if base is None:
            uri = f"{self.path.resolve().as_uri()}?mode={self._mode()}"
            base = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False)
            self._local.base = base
            with self._lock:
                self._open.append(base)
        return base

    def _mode(self) -> str:
        if self.read_only:
            return "ro&immutable=1" if self._immutable else "ro"
        # Made by the first connection only: a thread that connects later must not put an empty
        # file in the place of one that was moved away.
        return "rw" if self._there else "rwc"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """What SQLite refuses as a sentence that names the file and gives the right advice."""
        try:
            yield
        except sqlite3.OperationalError as error:
            what = "read" if self.read_only else "written"
            remedy = "check the space and the permissions of its folder"
            if "locked" in str(error):
                remedy = "another process is writing to it; try again when it is done"
            raise EngineError(
                f"{self.path} cannot be {what} ({error}); {remedy}; what was finished is kept"
            ) from None
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self.path} is damaged or no catalog ({error}); restore it from a copy, or "
                "delete it with the index beside it and index anew"
            ) from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self.errors(), self.base:
            yield self.base

    def close(self) -> None:
        with self._lock:
            for base in self._open:
                base.close()
            self._open.clear()
        self._local = threading.local()


def row_checksum(row: Sequence[Any]) -> int:
    value = 0
    for part in row:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        value = zlib.crc32(raw, zlib.crc32(len(raw).to_bytes(8, "little"), value))
    return value
