"""What an item number stands for: id, text, thumbnail and origin, in one SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transhash.errors import DataError

Modality = Literal["images", "texts"]
MODALITIES: tuple[Modality, Modality] = ("images", "texts")
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
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


@dataclass(frozen=True)
class NewItem:
    id: str
    code: bytes
    text: str | None = None
    thumbnail: bytes | None = None
    source: str | None = None


class Catalog:
    """Items of a run; one connection a thread, so a service may ask from many."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        if read_only and not path.exists():
            raise DataError(f"{path} does not exist; build it with: transhash index RUN ...")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise DataError(f"{path} was written by another version ({version}); build it anew")
            if not read_only:
                self._base.execute("PRAGMA journal_mode=WAL")
                self._base.executescript(_SCHEMA)
                self._base.execute(f"PRAGMA user_version={_VERSION}")
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} is not a catalog ({error}); build it anew") from None

    @property
    def _base(self) -> sqlite3.Connection:
        base: sqlite3.Connection | None = getattr(self._local, "base", None)
        if base is None:
            if self._read_only:
                uri = f"{self.path.resolve().as_uri()}?mode=ro"
                base = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False)
            else:
                base = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            self._local.base = base
            with self._lock:
                self._open.append(base)
        return base

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._base:
            yield self._base

    def add(self, modality: Modality, items: Iterable[NewItem]) -> list[int]:
        """Store items and return their numbers; an id that is known keeps its number.

        It also keeps what it had to show where the new item has nothing.
        """
        numbers = []
        with self._transaction() as base:
            for item in items:
                row = base.execute(
                    "INSERT INTO items (modality, id, text, thumbnail, source, code) "
                    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (modality, id) DO UPDATE SET "
                    "text = COALESCE(excluded.text, text), "
                    "thumbnail = COALESCE(excluded.thumbnail, thumbnail), "
                    "source = COALESCE(excluded.source, source), "
                    "code = excluded.code RETURNING number",
                    (modality, item.id, item.text, item.thumbnail, item.source, item.code),
                ).fetchone()
                numbers.append(int(row[0]))
        return numbers

    def remove(self, numbers: Sequence[int]) -> None:
        with self._transaction() as base:
            base.executemany("DELETE FROM items WHERE number = ?", [(n,) for n in numbers])

    def get(self, numbers: Sequence[int]) -> dict[int, Item]:
        found: dict[int, Item] = {}
        for start in range(0, len(numbers), 500):
            part = list(numbers[start : start + 500])
            marks = ",".join("?" * len(part))
            rows = self._base.execute(
                f"{_SELECT} WHERE number IN ({marks})",
                part,
            )
            found.update((row[0], _item(row)) for row in rows)
        return found

    def find(self, modality: Modality, item_id: str) -> Item | None:
        row = self._base.execute(
            f"{_SELECT} WHERE modality = ? AND id = ?",
            (modality, item_id),
        ).fetchone()
        return None if row is None else _item(row)

    def thumbnail(self, number: int) -> bytes | None:
        row = self._base.execute(
            "SELECT thumbnail FROM items WHERE number = ?", (number,)
        ).fetchone()
        return None if row is None else row[0]

    def sample(self, modality: Modality, count: int) -> list[Item]:
        """A few items spread evenly over the catalog, the same ones each time."""
        numbers = [
            row[0]
            for row in self._base.execute(
                "SELECT number FROM items WHERE modality = ? ORDER BY number", (modality,)
            )
        ]
        chosen = numbers[:: max(1, len(numbers) // count)][:count] if numbers else []
        found = self.get(chosen)
        return [found[number] for number in chosen]

    def count(self, modality: Modality) -> int:
        row = self._base.execute("SELECT COUNT(*) FROM items WHERE modality = ?", (modality,))
        return int(row.fetchone()[0])

    def close(self) -> None:
        with self._lock:
            for base in self._open:
                base.close()
            self._open.clear()
        self._local = threading.local()


def _item(row: tuple[Any, ...]) -> Item:
    number, modality, item_id, text, source, code, has_thumbnail = row
    return Item(number, modality, item_id, text, source, code, bool(has_thumbnail))
