"""Catalog of a run: id, text, thumbnail, path, source and code of every item, in one SQLite file.

An item is identified by its source and its key there. Its id is what users see: if two sources use
one id for different items, the second item gets a longer id. The digest of an item's content shows
whether it has changed.

The codes are in an index as well. Table `pending` lists the items whose code in an index may be
outdated, with that outdated code. Its rows are written together with the items and deleted once
the index is up to date.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.data.collection import Modality
from transhash.errors import DataError, EngineError
from transhash.progress import Track, no_progress
from transhash.search.sources import ItemSources
from transhash.storage import check_regular

CATALOG_VERSION = 4
_CHUNK_ROWS = 500  # below SQLite's limit on the number of parameters
_SCHEMA = """
CREATE TABLE sources (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE items (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  modality TEXT NOT NULL,
  id TEXT NOT NULL,
  text TEXT,
  thumbnail BLOB,
  path TEXT,
  code BLOB NOT NULL,
  source INTEGER NOT NULL,
  key TEXT NOT NULL,
  digest BLOB,
  checksum INTEGER NOT NULL,
  stamp TEXT,
  UNIQUE (modality, id),
  UNIQUE (modality, source, key)
);
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


_COLUMNS = ", ".join(ItemRow._fields)


class CatalogFile:
    """SQLite file with one connection per thread, so that a service can query it from many."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._immutable = False
        self._opened = False  # whether a connection has succeeded
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        if read_only and not path.exists():
            raise self._not_indexed()
        with self.errors():
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            version = self._first_version()
            self._opened = True
        try:
            self._prepare(version)
        except BaseException:
            self.close()
            raise

    def _not_indexed(self) -> DataError:
        run = self.path.parent
        return DataError(f"{run} has no indexed items. Run: transhash index {run} ...")

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
                for statement in _SCHEMA.split(";"):
                    self.base.execute(statement)
                self.base.execute(f"PRAGMA user_version={CATALOG_VERSION}")

    @property
    def base(self) -> sqlite3.Connection:
        """The connection of the current thread."""
        base: sqlite3.Connection | None = getattr(self._local, "base", None)
        if base is None:
            # Only the first connection may create the file: a thread that connects later must not
            # replace a file that was moved away by an empty one.
            mode = "rw" if self._opened else "rwc"
            if self.read_only:
                mode = "ro&immutable=1" if self._immutable else "ro"
            check_regular(self.path)
            uri = f"{self.path.resolve().as_uri()}?mode={mode}"
            base = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False)
            self._local.base = base
            with self._lock:
                self._connections.append(base)
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
            raise EngineError(
                f"{self.path} cannot be {verb} ({error}). {advice} Finished work is saved."
            ) from None
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

    def find_row(self, where: str, *values: Any) -> tuple[int, ItemRow] | None:
        """Return the number and the row of one item."""
        row = self.fetch_one(f"SELECT number, {_COLUMNS} FROM items WHERE {where}", *values)
        return None if row is None else (row[0], ItemRow(*row[1:]))

    def update_row(self, number: int, row: ItemRow) -> int:
        """Overwrite a row unless its source and key belong to another item; return the count."""
        return self.base.execute(
            f"UPDATE OR IGNORE items SET ({_COLUMNS}, checksum) = (?,?,?,?,?,?,?,?,?) "
            "WHERE number = ?",
            (*row, row_checksum(row), number),
        ).rowcount

    def close(self) -> None:
        with self._lock:
            for base in self._connections:
                base.close()
            self._connections.clear()
        self._local = threading.local()


def row_checksum(row: Sequence[Any]) -> int:
    value = 0
    for part in row:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        value = zlib.crc32(raw, zlib.crc32(len(raw).to_bytes(8, "little"), value))
    return value


@dataclass(frozen=True)
class NewItem:
    id: str
    code: bytes
    text: str | None = None
    thumbnail: bytes | None = None
    path: str | None = None  # of its file
    source: str = ""  # folder or file that lists it; "" if added by a program
    key: str | None = None  # its name in the source; None: its id
    digest: bytes | None = None  # of its content; None: unknown
    stamp: str | None = None  # size and modification time of its file when it was read


class StoredItem(NamedTuple):
    """Result of adding one item."""

    number: int
    change: Literal["added", "updated", "unchanged"]
    recoded: bool  # whether its code changed


@dataclass(frozen=True)
class Item:
    number: int  # in the index
    modality: Modality
    id: str
    text: str | None
    path: str | None
    code: bytes  # packed, as in Codes
    has_thumbnail: bool


_SELECT = "SELECT number, modality, id, text, path, code, thumbnail IS NOT NULL FROM items"


class Catalog:
    """Items of a run."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._file = CatalogFile(path, read_only=read_only)
        self.sources = ItemSources(self._file)

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- changes ----

    def add(
        self, modality: Modality, items: Sequence[NewItem], index_url: str = ""
    ) -> list[StoredItem]:
        """Store items; numbers with a new code are pending for that index until `mark_done`.

        An item whose source and key are known keeps its number, and its old text, thumbnail and
        path where the new item has none. An item from another source is the same item only if id
        and content are equal.
        """
        with self._file.transaction() as base:
            base.execute("INSERT OR IGNORE INTO index_urls VALUES (?)", (index_url,))
            return [self._add_one(base, modality, item, index_url) for item in items]

    def _add_one(
        self, base: sqlite3.Connection, modality: Modality, item: NewItem, index_url: str
    ) -> StoredItem:
        source = self.sources.number(base, item.source)
        key = item.id if item.key is None else item.key
        old = self._file.find_row("modality = ? AND source = ? AND key = ?", modality, source, key)
        item_id = item.id
        if old is None:
            for item_id in display_ids(item):
                other = self._file.find_row("modality = ? AND id = ?", modality, item_id)
                if other is None or is_same_item(other[1], item):
                    old = other
                    break
        if old is None:
            row = ItemRow(
                item_id, item.text, item.thumbnail, item.path, item.code, source, key, item.digest
            )
            number = base.execute(
                f"INSERT INTO items (modality, {_COLUMNS}, checksum, stamp) "
                "VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (modality, *row, row_checksum(row), item.stamp),
            ).lastrowid
            assert number is not None
            base.execute("INSERT OR IGNORE INTO pending VALUES (?, ?, NULL)", (index_url, number))
            return StoredItem(number, "added", True)
        number, before = old
        recoded = before.code != item.code
        row = before._replace(
            text=before.text if item.text is None else item.text,
            thumbnail=before.thumbnail if item.thumbnail is None else item.thumbnail,
            path=before.path if item.path is None else item.path,
            code=item.code,
            digest=item.digest or (None if recoded else before.digest),
        )
        if _is_missing(before.path):  # the file was moved here from another source
            row = row._replace(source=source, key=key)
        if (row.source, row.key) == (source, key):  # else it is another file with equal content
            base.execute("UPDATE items SET stamp = ? WHERE number = ?", (item.stamp, number))
        if row == before:
            return StoredItem(number, "unchanged", False)
        self._file.update_row(number, row)
        if recoded:
            base.execute(
                "INSERT OR IGNORE INTO pending VALUES (?,?,?)", (index_url, number, before.code)
            )
        new_content = None not in (before.digest, item.digest) and before.digest != item.digest
        updated = recoded or new_content or row.text != before.text
        return StoredItem(number, "updated" if updated else "unchanged", recoded)

    def mark_pending(self, index_url: str, numbers: Sequence[int]) -> None:
        """Note that these items are about to be removed from an index."""
        sql = "INSERT OR IGNORE INTO pending VALUES (?, ?, NULL)"
        with self._file.transaction() as base:
            base.executemany(sql, [(index_url, number) for number in numbers])

    def mark_done(self, index_url: str, numbers: Sequence[int]) -> None:
        """Note that an index has the current codes of these items."""
        sql = "DELETE FROM pending WHERE index_url = ? AND number = ?"
        with self._file.transaction() as base:
            base.executemany(sql, [(index_url, number) for number in numbers])

    def remove(self, index_url: str, numbers: Sequence[int]) -> None:
        with self._file.transaction() as base:
            base.executemany("DELETE FROM items WHERE number = ?", [(n,) for n in numbers])
            self.mark_done(index_url, numbers)

    def get_or_set(self, name: str, value: str) -> str:
        """Return the stored value of `name`; store `value` if there is none and it can be."""
        row = self._file.fetch_one("SELECT value FROM metadata WHERE name = ?", name)
        if row is None and not self._file.read_only:
            with self._file.transaction() as base:
                base.execute("INSERT INTO metadata VALUES (?, ?)", (name, value))
        return value if row is None else str(row[0])

    # ---- queries ----

    def find_unchanged(
        self, modality: Modality, source: str, key: str, item_id: str, digest: bytes
    ) -> int | None:
        """Return the number of the item with this source and key, or this id, and this content."""
        row = self._file.fetch_one(
            "SELECT items.number, digest FROM items JOIN sources ON source = sources.number "
            "WHERE modality = ? AND name = ? AND key = ?",
            modality, source, key,
        )  # fmt: skip
        if row is None:
            row = self._file.fetch_one(
                "SELECT number, digest, path FROM items WHERE modality = ? AND id = ?",
                modality, item_id,
            )  # fmt: skip
            if row is not None and _is_missing(row[2]):
                return None  # its file was moved to this source
        return int(row[0]) if row is not None and row[1] == digest else None

    def get(self, numbers: Sequence[int]) -> dict[int, Item]:
        items: dict[int, Item] = {}
        for start in range(0, len(numbers), _CHUNK_ROWS):
            chunk = numbers[start : start + _CHUNK_ROWS]
            marks = ",".join("?" * len(chunk))
            rows = self._file.fetch(f"{_SELECT} WHERE number IN ({marks})", *chunk)
            items.update((row[0], _item(row)) for row in rows)
        return items

    def find(self, modality: Modality, item_id: str) -> Item | None:
        row = self._file.fetch_one(f"{_SELECT} WHERE modality = ? AND id = ?", modality, item_id)
        return None if row is None else _item(row)

    def find_by_source(
        self, modality: Modality, source: str, key: str, item_id: str
    ) -> Item | None:
        """Return the item with this source and key, else the item with this id."""
        row = self._file.fetch_one(
            f"{_SELECT} WHERE modality = ? AND key = ? AND source = "
            "(SELECT number FROM sources WHERE name = ?)",
            modality, key, source,
        )  # fmt: skip
        return self.find(modality, item_id) if row is None else _item(row)

    def pending(self, index_url: str) -> dict[int, bytes | None]:
        """Return the numbers whose code in an index may be outdated, with the outdated code."""
        return dict(
            self._file.fetch("SELECT number, code FROM pending WHERE index_url = ?", index_url)
        )

    def index_urls(self) -> list[str]:
        """Return the indexes that codes were written to; "" is the run's own."""
        return [url for (url,) in self._file.fetch("SELECT url FROM index_urls")]

    def codes(
        self, modality: Modality, width: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Return the numbers of all items in ascending order, and their codes of `width` bytes."""
        with self._file.errors():
            count = self.count(modality)
            numbers, packed = np.empty(count, np.int64), np.empty((count, width), np.uint8)
            rows = self._file.base.execute(
                "SELECT number, code FROM items WHERE modality = ? ORDER BY number", (modality,)
            )
            for i, (number, code) in enumerate(rows):
                if len(code) != width:
                    raise DataError(
                        f"{self.path} has a code of {8 * len(code)} bits, but the model has "
                        f"{8 * width}. Delete it and the index folder, then index again."
                    )
                numbers[i], packed[i] = number, np.frombuffer(code, np.uint8)
        return numbers, packed

    def thumbnail(self, number: int) -> bytes | None:
        row = self._file.fetch_one("SELECT thumbnail FROM items WHERE number = ?", number)
        return None if row is None else row[0]

    def digest(self, number: int) -> bytes | None:
        """Return the digest of an item's content, or None if it is unknown."""
        row = self._file.fetch_one("SELECT digest FROM items WHERE number = ?", number)
        return None if row is None else row[0]

    def sample(self, modality: Modality, count: int) -> list[Item]:
        """Return a few items spread evenly over the catalog, the same ones each time."""
        rows = self._file.fetch(
            "SELECT number FROM items WHERE modality = ? ORDER BY number", modality
        )
        numbers = [number for (number,) in rows][:: max(1, len(rows) // count)][:count]
        items = self.get(numbers)
        return [items[number] for number in numbers]

    def count(self, modality: Modality) -> int:
        row = self._file.fetch_one("SELECT COUNT(*) FROM items WHERE modality = ?", modality)
        return int(row[0])

    def find_corruption(self, track: Track = no_progress) -> list[str]:
        """Return what is wrong with the file: its structure, and rows with a wrong checksum."""
        try:
            problems = [row[0] for row in self._file.base.execute("PRAGMA integrity_check(10)")]
            if problems == ["ok"]:
                problems = []
            count = self._file.base.execute("SELECT COUNT(*) FROM items").fetchone()[0]
            rows = self._file.base.execute(f"SELECT {_COLUMNS}, checksum FROM items")
            problems += [
                f"the row of {row[0]!r} has a wrong checksum"
                for row in track(rows, "checking the catalog", count)
                if row_checksum(row[:-1]) != row[-1]
            ]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            problems = [str(error)]
        return problems

    def close(self) -> None:
        self._file.close()


def _is_missing(path: str | None) -> bool:
    return path is not None and not os.path.lexists(path)


def is_same_item(row: ItemRow, item: NewItem) -> bool:
    """Return whether a stored item with the id of the new one also has its content."""
    if row.digest is not None and item.digest is not None:
        return row.digest == item.digest
    if row.text is not None and item.text is not None:
        return row.text == item.text
    return row.code == item.code


def display_ids(item: NewItem) -> Iterator[str]:
    """Yield the item's id, then longer ids that contain folders of its source."""
    yield item.id
    name = item.id
    for folder in [part for part in reversed(Path(item.source).parts) if part.strip("/\\")][:3]:
        name = f"{folder}/{name}"
        yield name
    number = 2
    while True:
        yield f"{name} ({number})"
        number += 1


def _item(row: tuple[Any, ...]) -> Item:
    number, modality, item_id, text, path, code, has_thumbnail = row
    return Item(number, modality, item_id, text, path, code, bool(has_thumbnail))
