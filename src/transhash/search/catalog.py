"""What an item number stands for: its place, id, text, thumbnail and code, in one SQLite file.

An item is known by its place: the source it was read from (`origin`) and its key there. Its id is
what people see; two places may name different things alike, so an id that is taken by another item
is made distinct. The digest of its content tells whether it has changed.

The codes also stand in an index. `pending` lists the numbers whose code there may be another one,
and that one: written with the items, cleared once the index has theirs.
"""

from __future__ import annotations

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
from transhash.search.sources import ItemSources

# The SQLite file of a catalog: its tables, how it is opened, migrated and what it refuses.

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


# When two items are one, and what they are called.


@dataclass(frozen=True)
class NewItem:
    id: str
    code: bytes
    text: str | None = None
    thumbnail: bytes | None = None
    source: str | None = None  # the file it is
    origin: str = ""  # the folder or file it was listed in; "" if by a program
    key: str | None = None  # what it is called there; None: its id
    digest: bytes | None = None  # of its content; None: not known
    stamp: str | None = None  # size and time of its file when it was read


class StoredItem(NamedTuple):
    """What became of a new item."""

    number: int
    change: Literal["added", "updated", "unchanged"]
    recoded: bool  # its code is another one than before


def is_same_item(row: tuple[Any, ...], item: NewItem) -> bool:
    """Whether the item of that row, which has the new one's id, is the new one from elsewhere."""
    _, _, text, _, source, code, _, _, digest = row
    if digest is not None and item.digest is not None:
        return bool(digest == item.digest)
    if text is not None and item.text is not None:
        return bool(text == item.text)
    if source is not None and item.source is not None:  # from before digests were kept
        return Path(source).absolute() == Path(item.source).absolute()
    return bool(code == item.code)


def display_ids(item: NewItem) -> Iterator[str]:
    """The id, then ids that also tell where the item came from."""
    yield item.id
    name = item.id
    for folder in [part for part in reversed(Path(item.origin).parts) if part.strip("/\\")][:3]:
        name = f"{folder}/{name}"
        yield name
    number = 2
    while True:
        yield f"{name} ({number})"
        number += 1


_SELECT = "SELECT number, modality, id, text, source, code, thumbnail IS NOT NULL FROM items"


@dataclass(frozen=True)
class Item:
    number: int  # what the index knows
    modality: Modality
    id: str  # what the user knows
    text: str | None
    source: str | None
    code: bytes  # packed, as in Codes
    has_thumbnail: bool


class Catalog:
    """Items of a run, and what is known of each."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._file = CatalogFile(path, read_only=read_only)
        self.origins = ItemSources(self._file)

    # ---- changes ----

    def add(
        self, modality: Modality, items: Sequence[NewItem], engine: str = ""
    ) -> list[StoredItem]:
        """Store items; numbers with a new code are pending for `engine` until `mark_done`.

        An item from a known place keeps its number, and what it had to show where the new one has
        nothing. One from another place is the same item only if id and content are the same.
        """
        with self._file.transaction() as base:
            base.execute("INSERT OR IGNORE INTO facts VALUES (?, '')", (f"engine {engine}",))
            return [self._put(base, modality, item, engine) for item in items]

    def _put(
        self, base: sqlite3.Connection, modality: Modality, item: NewItem, engine: str
    ) -> StoredItem:
        origin = self._origin(base, item.origin)
        key = item.id if item.key is None else item.key
        place = "modality = ? AND origin = ? AND key = ?"
        select = f"SELECT number, {CHECKED_COLUMNS} FROM items WHERE"
        old = base.execute(f"{select} {place}", (modality, origin, key)).fetchone()
        free = item.id
        if old is None:
            for free in display_ids(item):
                other = base.execute(
                    f"{select} modality = ? AND id = ?", (modality, free)
                ).fetchone()
                if other is None or is_same_item(other, item):
                    old = other
                    break
        if old is None:
            row = (
                free,
                item.text,
                item.thumbnail,
                item.source,
                item.code,
                origin,
                key,
                item.digest,
            )
            number = base.execute(
                f"INSERT INTO items (modality, {CHECKED_COLUMNS}, checksum, stamp) "
                "VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (modality, *row, row_checksum(row), item.stamp),
            ).lastrowid
            assert number is not None
            base.execute("INSERT OR IGNORE INTO pending VALUES (?, ?, NULL)", (engine, number))
            return StoredItem(number, "added", True)
        number, before = old[0], old[1:]
        recoded = before[4] != item.code
        row = (
            before[0],
            *(b if new is None else new for b, new in zip(before[1:4], _shown(item))),
            item.code,
            *((origin, key) if before[5] is None else before[5:7]),
            item.digest or (None if recoded else before[7]),
        )
        if row[5:7] == (origin, key):  # else it is another file of the same content
            base.execute("UPDATE items SET stamp = ? WHERE number = ?", (item.stamp, number))
        if row == before:
            return StoredItem(number, "unchanged", False)
        base.execute(
            f"UPDATE items SET ({CHECKED_COLUMNS}, checksum) = (?,?,?,?,?,?,?,?,?) "
            "WHERE number = ?",
            (*row, row_checksum(row), number),
        )
        if recoded:
            base.execute(
                "INSERT OR IGNORE INTO pending VALUES (?,?,?)", (engine, number, before[4])
            )
        other = None not in (before[7], item.digest) and before[7] != item.digest
        changed = recoded or other or row[1] != before[1]  # else only more is known of it
        return StoredItem(number, "updated" if changed else "unchanged", recoded)

    def _origin(self, base: sqlite3.Connection, place: str) -> int:
        base.execute("INSERT OR IGNORE INTO origins (place) VALUES (?)", (place,))
        return int(
            base.execute("SELECT number FROM origins WHERE place = ?", (place,)).fetchone()[0]
        )

    def mark_pending(self, engine: str, numbers: Sequence[int]) -> None:
        """The index of `engine` is about to lose these."""
        with self._file.transaction() as base:
            base.executemany(
                "INSERT OR IGNORE INTO pending VALUES (?, ?, NULL)", [(engine, n) for n in numbers]
            )

    def mark_done(self, engine: str, numbers: Sequence[int]) -> None:
        """The index of `engine` now holds what stands here."""
        with self._file.transaction() as base:
            base.executemany(
                "DELETE FROM pending WHERE engine = ? AND number = ?",
                [(engine, n) for n in numbers],
            )

    def remove(self, engine: str, numbers: Sequence[int]) -> None:
        with self._file.transaction() as base:
            base.executemany("DELETE FROM items WHERE number = ?", [(n,) for n in numbers])
            base.executemany(
                "DELETE FROM pending WHERE engine = ? AND number = ?",
                [(engine, n) for n in numbers],
            )

    def get_or_set(self, name: str, value: str) -> str:
        """What is written under that name; `value` is, where nothing was and it can be."""
        if not self._file.has_places:
            return value
        with self._file.errors():
            row = self._file.base.execute(
                "SELECT value FROM facts WHERE name = ?", (name,)
            ).fetchone()
        if row is None and not self._file.read_only:
            with self._file.transaction() as base:
                base.execute("INSERT INTO facts VALUES (?, ?)", (name, value))
        return value if row is None else str(row[0])

    # ---- questions ----

    def unchanged(
        self, modality: Modality, origin: str, key: str, item_id: str, digest: bytes
    ) -> int | None:
        """The number of the item that has this place, or this id, and this very content."""
        with self._file.errors():
            row = self._file.base.execute(
                "SELECT items.number, digest FROM items JOIN origins ON origin = origins.number "
                "WHERE modality = ? AND place = ? AND key = ?",
                (modality, origin, key),
            ).fetchone()
            if row is None:
                row = self._file.base.execute(
                    "SELECT number, digest FROM items WHERE modality = ? AND id = ?",
                    (modality, item_id),
                ).fetchone()
        return int(row[0]) if row is not None and row[1] == digest else None

    def get(self, numbers: Sequence[int]) -> dict[int, Item]:
        found: dict[int, Item] = {}
        with self._file.errors():
            for start in range(0, len(numbers), 500):
                part = list(numbers[start : start + 500])
                marks = ",".join("?" * len(part))
                rows = self._file.base.execute(f"{_SELECT} WHERE number IN ({marks})", part)
                found.update((row[0], _item(row)) for row in rows)
        return found

    def find(self, modality: Modality, item_id: str) -> Item | None:
        with self._file.errors():
            row = self._file.base.execute(
                f"{_SELECT} WHERE modality = ? AND id = ?", (modality, item_id)
            ).fetchone()
        return None if row is None else _item(row)

    def find_by_source(
        self, modality: Modality, origin: str, key: str, item_id: str
    ) -> Item | None:
        """The item from that place, else the one with that id: it may have come another way."""
        row = None
        if self._file.has_places:
            with self._file.errors():
                row = self._file.base.execute(
                    f"{_SELECT} WHERE modality = ? AND key = ? AND origin = "
                    "(SELECT number FROM origins WHERE place = ?)",
                    (modality, key, origin),
                ).fetchone()
        return self.find(modality, item_id) if row is None else _item(row)

    def pending(self, engine: str) -> dict[int, bytes | None]:
        """Numbers whose code in the index may still be another one, and that one."""
        if not self._file.has_places:
            return {}
        with self._file.errors():
            rows = self._file.base.execute(
                "SELECT number, code FROM pending WHERE engine = ?", (engine,)
            ).fetchall()
        return dict(rows)

    def engines(self) -> list[str]:
        """Those that codes were written to, as far as it was noted; "" is the run's own."""
        if not self._file.has_places:
            return []
        with self._file.errors():
            rows = self._file.base.execute("SELECT name FROM facts WHERE name LIKE 'engine %'")
            return [name.removeprefix("engine ") for (name,) in rows]

    def codes(
        self, modality: Modality, width: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Numbers, ascending, and codes of `width` bytes of all items."""
        with self._file.errors():
            count = self.count(modality)
            numbers, packed = np.empty(count, np.int64), np.empty((count, width), np.uint8)
            rows = self._file.base.execute(
                "SELECT number, code FROM items WHERE modality = ? ORDER BY number", (modality,)
            )
            for i, (number, code) in enumerate(rows):
                if len(code) != width:
                    raise DataError(
                        f"{self.path} holds a code of {8 * len(code)} bits where the model has "
                        f"{8 * width}; index anew"
                    )
                numbers[i], packed[i] = number, np.frombuffer(code, np.uint8)
        return numbers, packed

    def thumbnail(self, number: int) -> bytes | None:
        with self._file.errors():
            row = self._file.base.execute(
                "SELECT thumbnail FROM items WHERE number = ?", (number,)
            ).fetchone()
        return None if row is None else row[0]

    def digest(self, number: int) -> bytes | None:
        """Of the item's content; None if it is not known."""
        if self._file.version < CATALOG_VERSION:
            return None
        with self._file.errors():
            row = self._file.base.execute(
                "SELECT digest FROM items WHERE number = ?", (number,)
            ).fetchone()
        return None if row is None else row[0]

    def sample(self, modality: Modality, count: int) -> list[Item]:
        """A few items spread evenly over the catalog, the same ones each time."""
        with self._file.errors():
            numbers = [
                row[0]
                for row in self._file.base.execute(
                    "SELECT number FROM items WHERE modality = ? ORDER BY number", (modality,)
                )
            ]
        chosen = numbers[:: max(1, len(numbers) // count)][:count] if numbers else []
        found = self.get(chosen)
        return [found[number] for number in chosen]

    def count(self, modality: Modality) -> int:
        with self._file.errors():
            row = self._file.base.execute(
                "SELECT COUNT(*) FROM items WHERE modality = ?", (modality,)
            )
            return int(row.fetchone()[0])

    def require_current_format(self) -> None:
        """Refuses an older format, which only a writer may bring up to date."""
        if self._file.version < CATALOG_VERSION:
            raise DataError(f"{self.path} is of an older format; index once, then ask again")

    def damage(self) -> list[str]:
        """What is wrong with the file: its structure, and rows that miss their checksums."""
        try:
            said = [row[0] for row in self._file.base.execute("PRAGMA integrity_check(10)")]
            found = [] if said == ["ok"] else said
            if self._file.has_places:
                rows = self._file.base.execute(
                    f"SELECT {CHECKED_COLUMNS}, checksum FROM items WHERE checksum IS NOT NULL"
                )
                found += [
                    f"the row of {row[0]!r} is not what was written"
                    for row in rows
                    if row_checksum(row[:-1]) != row[-1]
                ]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            found = [str(error)]
        return found

    def close(self) -> None:
        self._file.close()


def _item(row: tuple[Any, ...]) -> Item:
    number, modality, item_id, text, source, code, has_thumbnail = row
    return Item(number, modality, item_id, text, source, code, bool(has_thumbnail))


def _shown(item: NewItem) -> tuple[str | None, bytes | None, str | None]:
    return item.text, item.thumbnail, item.source
