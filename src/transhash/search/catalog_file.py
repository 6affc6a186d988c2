"""The SQLite file of a catalog: its tables, its connections and its errors."""

from __future__ import annotations

import shlex
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from transhash.errors import DataError, EngineError
from transhash.features.metadata import ImageMetadata
from transhash.search.keywords import KEYWORD_SCHEMA, name_words
from transhash.storage import check_regular, make_folder

CATALOG_VERSION = 5
_SCHEMA = """
CREATE TABLE sources (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE items (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  modality TEXT NOT NULL,
  id TEXT NOT NULL,
  path TEXT,
  code BLOB NOT NULL,
  source INTEGER NOT NULL,
  key TEXT NOT NULL,
  digest BLOB,
  checksum INTEGER NOT NULL,
  stamp TEXT,
  location TEXT,
  taken TEXT,
  fingerprint BLOB,
  name TEXT,
  folders TEXT,
  title TEXT,
  caption TEXT,
  keywords TEXT,
  text TEXT,
  thumbnail BLOB,
  UNIQUE (modality, id),
  UNIQUE (modality, source, key)
);
CREATE INDEX items_location ON items (modality, location);
CREATE INDEX items_taken ON items (modality, taken);
CREATE TABLE pending (
  index_url TEXT NOT NULL, number INTEGER NOT NULL, code BLOB, PRIMARY KEY (index_url, number)
) WITHOUT ROWID;
CREATE TABLE index_urls (url TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE metadata (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class ItemRow(NamedTuple):
    """Columns of an item that its checksum covers."""

    id: str
    text: str | None
    thumbnail: bytes | None
    path: str | None
    code: bytes
    source: int
    key: str
    digest: bytes | None
    location: str | None = None  # path of its file inside the source
    name: str | None = None  # words of the file name
    folders: str | None = None  # words of the folders inside the source, and of the source
    title: str | None = None  # this and the next three are of the image's metadata
    caption: str | None = None
    keywords: str | None = None  # one per line
    taken: str | None = None  # date or time, ISO 8601
    fingerprint: bytes | None = None  # tiny pixels of an image, to recognize copies

    def with_names(self, source: str) -> ItemRow:
        """Return the row with the words of its location in a source."""
        if self.location is None:
            return self._replace(name=None, folders=None)
        path = PurePath(self.location)
        folders = [PurePath(source).name, *path.parts[:-1]]
        return self._replace(name=name_words(path.stem), folders=" ".join(map(name_words, folders)))

    def with_metadata(self, metadata: ImageMetadata | None) -> ItemRow:
        """Return the row with metadata, or as it is if they are unknown."""
        if metadata is None:
            return self
        title, caption, keywords, taken = metadata
        return self._replace(
            title=title or None,
            caption=caption or None,
            keywords="\n".join(keywords) or None,
            taken=taken or None,
        )


ITEM_COLUMNS = ", ".join(ItemRow._fields)
ITEM_MARKS = ", ".join("?" * len(ItemRow._fields))


class CatalogFile:
    """SQLite file with one connection per thread, so that a service can query it from many."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._immutable = False
        self._opened = False  # whether a connection has succeeded
        self._local = threading.local()
        self._connections: dict[threading.Thread, sqlite3.Connection] = {}
        self._lock = threading.Lock()
        if read_only and not path.exists():
            raise self._not_indexed()
        with self.errors():
            if not read_only:
                make_folder(path.parent)
            version = self._first_version()
            self._opened = True
        try:
            self._prepare(version)
        except BaseException:
            self.close()
            raise

    def _not_indexed(self) -> DataError:
        run = self.path.parent
        return DataError(
            f"{run} has no indexed items. Run: transhash index {shlex.quote(str(run))} ..."
        )

    def _version(self) -> int:
        return int(self.base.execute("PRAGMA user_version").fetchone()[0])

    def _first_version(self) -> int:
        try:
            return self._version()
        except sqlite3.OperationalError:
            # The log of a writer cannot be created on a read-only medium. Without a writer it is
            # not needed.
            if not self.read_only or self.path.with_name(self.path.name + "-wal").exists():
                raise
            self.close()
            self._immutable = True
            return self._version()

    def _prepare(self, version: int) -> None:
        if self.read_only and version == 0:
            raise self._not_indexed()
        if version not in (0, CATALOG_VERSION):
            raise DataError(
                f"{self.path} has format version {version}, but this transhash needs "
                f"{CATALOG_VERSION}. Delete it and the index folder, then index again."
            )
        with self.errors():
            if not self.read_only:
                self.base.execute("PRAGMA journal_mode=WAL")
            if version == 0:
                self._create_tables()
            columns = {row[1] for row in self.base.execute("PRAGMA table_info(items)")}
            if missing := set(ItemRow._fields) - columns:
                raise sqlite3.DatabaseError(f"missing columns: {', '.join(sorted(missing))}")

    def _create_tables(self) -> None:
        self.base.execute("BEGIN IMMEDIATE")  # another process may be creating them
        with self.base:
            if self._version() == 0:
                for statement in (*_SCHEMA.split(";"), *KEYWORD_SCHEMA):
                    self.base.execute(statement)
                self.base.execute(f"PRAGMA user_version={CATALOG_VERSION}")

    @property
    def uri(self) -> str:
        mode = "rw" if self._opened else "rwc"
        if self.read_only:
            mode = "ro&immutable=1" if self._immutable else "ro"
        return f"{self.path.resolve().as_uri()}?mode={mode}"

    @property
    def base(self) -> sqlite3.Connection:
        """The connection of the current thread."""
        base: sqlite3.Connection | None = getattr(self._local, "base", None)
        if base is None:
            # Only the first connection may create the file: a thread that connects later must not
            # replace a file that was moved away by an empty one.
            check_regular(self.path)
            base = sqlite3.connect(self.uri, uri=True, timeout=30, check_same_thread=False)
            self._local.base = base
            if not self.read_only:
                base.execute("PRAGMA synchronous=FULL")  # some builds of SQLite do less
            with self._lock:
                # Every sync has threads of its own, and a service runs for months.
                for thread in [one for one in self._connections if not one.is_alive()]:
                    self._connections.pop(thread).close()
                self._connections[threading.current_thread()] = base
        return base

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise SQLite errors as messages that name the file and say what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            verb = "read" if self.read_only else "written"
            advice = "Check the disk space and the permissions of its folder."
            if "locked" in str(error):
                advice = "Another process is writing to it. Try again later."
            elif "fts5" in str(error):
                advice = "The SQLite of this Python lacks FTS5. Use another Python."
            raise EngineError(
                f"{self.path} cannot be {verb} ({error}). {advice} Finished work is saved."
            ) from None
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise  # a mistake in this program
            raise EngineError(f"{self.path} was closed. Open it again.") from None
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self.path} is corrupt ({error}). Restore a backup, or delete it and the index "
                "folder, then index again."
            ) from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self.errors(), self.base:
            yield self.base

    def fetch(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        with self.errors():
            return self.base.execute(sql, values).fetchall()

    def fetch_one(self, sql: str, *values: Any) -> Any:
        """Return the first row of a query, or None."""
        with self.errors():
            return self.base.execute(sql, values).fetchone()

    def version(self) -> tuple[int, int]:
        """Return what differs after a change of the file; only one thread's are comparable."""
        with self.errors():
            by_others = self.base.execute("PRAGMA data_version").fetchone()[0]
        return by_others, self.base.total_changes

    def has_changed(self) -> bool:
        """Return whether the file may have changed since this thread last asked."""
        version = self.version()
        before = getattr(self._local, "version", None)
        self._local.version = version
        return version != before

    def find_row(self, where: str, *values: Any) -> tuple[int, ItemRow] | None:
        """Return the number and the row of one item."""
        row = self.fetch_one(f"SELECT number, {ITEM_COLUMNS} FROM items WHERE {where}", *values)
        return None if row is None else (row[0], ItemRow(*row[1:]))

    def update_row(self, number: int, row: ItemRow) -> int:
        """Overwrite a row unless its source and key belong to another item; return the count."""
        return self.base.execute(
            f"UPDATE OR IGNORE items SET ({ITEM_COLUMNS}, checksum) = ({ITEM_MARKS}, ?) "
            "WHERE number = ?",
            (*row, row_checksum(row), number),
        ).rowcount

    def close(self) -> None:
        with self._lock:
            for base in self._connections.values():
                base.close()
            self._connections.clear()
        self._local = threading.local()


def row_checksum(row: Sequence[Any]) -> int:
    value = 0
    for part in row:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        value = zlib.crc32(raw, zlib.crc32(len(raw).to_bytes(8, "little"), value))
    return value
