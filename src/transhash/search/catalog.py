"""Catalog of a run: id, texts, thumbnail, path, source and code of every item, in one SQLite file.

An item is identified by its source and its key there. Its id is what users see: if two sources use
one id for different items, the second item gets a longer id. The digest of an item's content shows
whether it has changed.

The codes are in an index as well. Table `pending` lists the items whose code in an index may be
outdated, with that outdated code. Its rows are written together with the items and deleted once
the index is up to date.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.data.collection import Modality
from transhash.errors import DataError, check_type
from transhash.features.metadata import ImageMetadata
from transhash.progress import Track, no_progress
from transhash.search.catalog_file import (
    ITEM_COLUMNS,
    ITEM_MARKS,
    CatalogFile,
    ItemRow,
    row_checksum,
)
from transhash.search.keywords import KeywordIndex
from transhash.search.sources import ItemSources

_CHUNK_ROWS = 500  # below SQLite's limit on the number of parameters


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
    location: str | None = None  # path of its file inside the source
    metadata: ImageMetadata | None = None  # None: unknown
    fingerprint: bytes | None = None


class Content(NamedTuple):
    """What tells whether two items are copies."""

    digest: bytes | None
    fingerprint: bytes | None


class FilterValues(NamedTuple):
    """What filters can choose from."""

    sources: list[str]  # names without folders
    folders: list[str]  # inside the sources
    first_date: str | None
    last_date: str | None


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
    metadata: ImageMetadata  # of an image


_SELECT = (
    "SELECT number, modality, id, text, path, code, thumbnail IS NOT NULL, "
    "title, caption, keywords, taken FROM items"
)


@dataclass(frozen=True)
class SearchFilter:
    """Conditions that a result must meet. Items without a date meet no condition on dates."""

    folder: str | None = None  # inside the source, or an absolute path
    after: str | None = None  # first date on which an image was taken: YYYY, YYYY-MM or YYYY-MM-DD
    before: str | None = None  # last one, included: 2023 means until the end of 2023
    source: str | None = None  # folder or file that was indexed, or its name without folders

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_type(value, (str, type(None)), f"The filter {name}", "a text, or None")
        for value in (self.after, self.before):
            if value is not None:
                _check_date(value)

    def __bool__(self) -> bool:
        return self != NO_FILTER

    def sql(self) -> tuple[str, list[str]]:
        """Return the conditions on a row of `items`, and the values of their parameters."""
        parts, values = ["1"], []
        if self.folder is not None:
            folder = self.folder.replace(os.sep, "/").rstrip("/").removeprefix("./")
            inside = "({0} >= ? AND {0} < ?)"
            limits = [f"{folder}/", f"{folder}0"]  # "0" follows "/"
            if self.folder.startswith("/") or os.path.isabs(self.folder):
                from_folder = f"{_SOURCE_NAME} || '/' || items.location"
                parts.append(f"({inside.format('items.path')} OR {inside.format(from_folder)})")
                values += [*limits, *limits]
            elif folder not in ("", "."):
                parts.append(inside.format("items.location"))
                values += limits
        if self.after is not None:
            parts.append("items.taken >= ?")
            values.append(self.after)
        if self.before is not None:
            parts.append("items.taken < ?")
            values.append(f"{self.before}~")  # "~" follows all that dates contain
        if self.source is not None:
            source = self.source.rstrip("/")
            parts.append(f"({_SOURCE_NAME} = ? OR substr({_SOURCE_NAME}, -length(?)) = ?)")
            values += [source, f"/{source}", f"/{source}"]
        return " AND ".join(parts), values


DATE_PATTERN = r"^[1-9]\d{3}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$"
_SOURCE_NAME = "(SELECT sources.name FROM sources WHERE sources.number = items.source)"
NO_FILTER = SearchFilter()


def _check_date(value: str) -> None:
    # Dates are compared as text, so that the 31st of any month does as its last day.
    if not re.fullmatch(DATE_PATTERN, value):
        raise DataError(
            f"{value!r} is not a date. Use YYYY, YYYY-MM or YYYY-MM-DD, such as 2023-05."
        )


class Catalog:
    """Items of a run."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._file = CatalogFile(path, read_only=read_only)
        self.sources = ItemSources(self._file)
        self.words = KeywordIndex(self._file)

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
                item_id, item.text, item.thumbnail, item.path, item.code, source, key, item.digest,
                item.location, fingerprint=item.fingerprint,
            ).with_names(item.source).with_metadata(item.metadata)  # fmt: skip
            number = base.execute(
                f"INSERT INTO items (modality, {ITEM_COLUMNS}, checksum, stamp) "
                f"VALUES (?, {ITEM_MARKS}, ?, ?)",
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
            fingerprint=item.fingerprint or (None if recoded else before.fingerprint),
        )
        row = row.with_metadata(item.metadata)
        if _is_missing(before.path):  # the file was moved here from another source
            row = row._replace(source=source, key=key, location=item.location)
            row = row.with_names(item.source)
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
            "WHERE modality = ? AND sources.name = ? AND key = ?",
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
        check_type(item_id, str, "The id", "the id of an item, which is a string")
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

    def filter(self, numbers: Sequence[int], filters: SearchFilter) -> list[int]:
        """Return the numbers of the items that meet the conditions."""
        condition, values = filters.sql()
        rows = self._file.fetch(
            f"SELECT number FROM items WHERE {condition} "
            "AND number IN (SELECT value FROM json_each(?))",
            *values, json.dumps(numbers),
        )  # fmt: skip
        return [number for (number,) in rows]

    def contents(self, numbers: Sequence[int]) -> dict[int, Content]:
        """Return what tells whether items are copies of each other."""
        rows = self._file.fetch(
            "SELECT number, digest, fingerprint FROM items "
            "WHERE number IN (SELECT value FROM json_each(?))",
            json.dumps(numbers),
        )  # fmt: skip
        return {number: Content(*content) for number, *content in rows}

    def codes(
        self, modality: Modality, width: int, filters: SearchFilter = NO_FILTER
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Return the numbers of all items in ascending order, and their codes of `width` bytes.

        With `filters`, only items that meet the conditions.
        """
        condition, values = filters.sql()
        selection = f"FROM items WHERE modality = ? AND {condition}"
        with self._file.errors():
            count = self._file.fetch_one(f"SELECT COUNT(*) {selection}", modality, *values)[0]
            numbers, packed = np.empty(count, np.int64), np.empty((count, width), np.uint8)
            rows = self._file.base.execute(
                f"SELECT number, code {selection} ORDER BY number", (modality, *values)
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

    def version(self) -> tuple[int, int]:
        """Return what differs after a change of the catalog; only one thread's are comparable."""
        return self._file.version()

    def sample(self, modality: Modality, count: int) -> list[Item]:
        """Return a few items spread evenly over the catalog, the same ones each time."""
        rows = self._file.fetch(
            "SELECT number FROM items WHERE modality = ? ORDER BY number", modality
        )
        numbers = [number for (number,) in rows][:: max(1, len(rows) // count)][:count]
        items = self.get(numbers)
        return [items[number] for number in numbers]

    def filter_values(self, limit: int = 500) -> FilterValues:
        """Return what filters can choose from: sources, folders and the first and last date."""
        sources = [name for (name,) in self._file.fetch("SELECT name FROM sources ORDER BY name")]
        rows = self._file.fetch(
            "SELECT DISTINCT rtrim(location, replace(location, '/', '')) FROM items "
            "WHERE location LIKE '%/%' LIMIT ?",
            limit,
        )  # fmt: skip
        folders = {
            str(top) for (path,) in rows for top in (PurePath(path), *PurePath(path).parents)
        }
        first, last = self._file.fetch_one("SELECT MIN(taken), MAX(taken) FROM items")
        return FilterValues(
            list(dict.fromkeys(PurePath(name).name for name in sources if name)),
            sorted(folders - {".", "/"})[:limit], first and first[:10], last and last[:10],
        )  # fmt: skip

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
            rows = self._file.base.execute(f"SELECT {ITEM_COLUMNS}, checksum FROM items")
            problems += [
                f"the row of {row[0]!r} has a wrong checksum"
                for row in track(rows, "checking the catalog", count)
                if row_checksum(row[:-1]) != row[-1]
            ]
            problems = problems or self.words.find_corruption()
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
    number, modality, item_id, text, path, code, has_thumbnail, *texts = row
    title, caption, keywords, taken = (value or "" for value in texts)
    metadata = ImageMetadata(title, caption, tuple(keywords.splitlines()), taken)
    return Item(number, modality, item_id, text, path, code, bool(has_thumbnail), metadata)
