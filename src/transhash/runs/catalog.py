"""What an item number stands for: its place, id, text, thumbnail and code, in one SQLite file.

An item is known by its place: the source it was read from (`origin`) and its key there. Its id is
what people see; two places may name different things alike, so an id that is taken by another item
is made distinct. The digest of its content tells whether it has changed.

The codes also stand in an index. `pending` lists the numbers whose code there may be another one,
and that one: written with the items, cleared once the index has theirs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError
from transhash.runs.catalog_file import CATALOG_VERSION, CHECKED_COLUMNS, CatalogFile, row_checksum
from transhash.runs.identity import NewItem, Stored, is_same_thing, shown_ids
from transhash.runs.origins import Origins

Modality = Literal["images", "texts"]
MODALITIES: tuple[Modality, Modality] = ("images", "texts")
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
        self.origins = Origins(self._file)

    # ---- changes ----

    def add(self, modality: Modality, items: Sequence[NewItem], engine: str = "") -> list[Stored]:
        """Store items; numbers with a new code are pending for `engine` until `settle`.

        An item from a known place keeps its number, and what it had to show where the new one has
        nothing. One from another place is the same item only if id and content are the same.
        """
        with self._file.transaction() as base:
            base.execute("INSERT OR IGNORE INTO facts VALUES (?, '')", (f"engine {engine}",))
            return [self._put(base, modality, item, engine) for item in items]

    def _put(
        self, base: sqlite3.Connection, modality: Modality, item: NewItem, engine: str
    ) -> Stored:
        origin = self._origin(base, item.origin)
        key = item.id if item.key is None else item.key
        place = "modality = ? AND origin = ? AND key = ?"
        select = f"SELECT number, {CHECKED_COLUMNS} FROM items WHERE"
        old = base.execute(f"{select} {place}", (modality, origin, key)).fetchone()
        free = item.id
        if old is None:
            for free in shown_ids(item):
                other = base.execute(
                    f"{select} modality = ? AND id = ?", (modality, free)
                ).fetchone()
                if other is None or is_same_thing(other, item):
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
            return Stored(number, "added", True)
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
            return Stored(number, "unchanged", False)
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
        return Stored(number, "updated" if changed else "unchanged", recoded)

    def _origin(self, base: sqlite3.Connection, place: str) -> int:
        base.execute("INSERT OR IGNORE INTO origins (place) VALUES (?)", (place,))
        return int(
            base.execute("SELECT number FROM origins WHERE place = ?", (place,)).fetchone()[0]
        )

    def mark(self, engine: str, numbers: Sequence[int]) -> None:
        """The index of `engine` is about to lose these."""
        with self._file.transaction() as base:
            base.executemany(
                "INSERT OR IGNORE INTO pending VALUES (?, ?, NULL)", [(engine, n) for n in numbers]
            )

    def settle(self, engine: str, numbers: Sequence[int]) -> None:
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

    def state_fact(self, name: str, value: str) -> str:
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

    def find_at(self, modality: Modality, origin: str, key: str, item_id: str) -> Item | None:
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

    def need_current(self) -> None:
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


def check_modality(name: str) -> Modality:
    """`name`, if it is one; people write "image" for it."""
    for modality in MODALITIES:
        if name == modality:
            return modality
    raise DataError(f"items are images or texts, got {name!r}")


def _item(row: tuple[Any, ...]) -> Item:
    number, modality, item_id, text, source, code, has_thumbnail = row
    return Item(number, modality, item_id, text, source, code, bool(has_thumbnail))


def _shown(item: NewItem) -> tuple[str | None, bytes | None, str | None]:
    return item.text, item.thumbnail, item.source
