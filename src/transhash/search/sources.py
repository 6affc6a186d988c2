"""Sources of the items in a catalog, and size and time of their files."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transhash.data.collection import Images
from transhash.progress import Track, phase

if TYPE_CHECKING:
    from transhash.search.catalog import Catalog
    from transhash.search.catalog_file import CatalogFile

_CHUNK_ROWS = 500  # below SQLite's limit on the number of parameters
_FROM_SOURCE = "source = (SELECT number FROM sources WHERE name = ?)"


class ListedItem(NamedTuple):
    """An item as `transhash list` shows it."""

    modality: str
    id: str
    text: str | None
    path: str | None
    source: str  # folder or file that lists it; "" if added by a program
    key: str  # its name in the source


class ItemSources:
    """Sources, item keys and file stamps in a catalog file."""

    def __init__(self, file: CatalogFile) -> None:
        self._file = file

    def number(self, base: sqlite3.Connection, source: str) -> int:
        """Return the number of a source; a new one is added."""
        base.execute("INSERT OR IGNORE INTO sources (name) VALUES (?)", (source,))
        row = base.execute("SELECT number FROM sources WHERE name = ?", (source,)).fetchone()
        return int(row[0])

    def modalities(self, source: str) -> list[str]:
        rows = self._file.fetch(
            f"SELECT DISTINCT modality FROM items WHERE {_FROM_SOURCE} ORDER BY modality", source
        )
        return [modality for (modality,) in rows]

    def find_number(
        self, modality: str, source: str, key: str, stamp: str | None = None
    ) -> int | None:
        """Return the number of the item with this source and key, and this stamp if given."""
        row = self._file.fetch_one(
            f"SELECT number FROM items WHERE modality = ? AND {_FROM_SOURCE} AND key = ? "
            "AND (? IS NULL OR stamp = ?)",
            modality, source, key, stamp, stamp,
        )  # fmt: skip
        return None if row is None else int(row[0])

    def list_items(
        self, modality: str | None = None, source: str | None = None, limit: int = -1
    ) -> Iterator[ListedItem]:
        """Yield items in the order in which they were added; a limit of -1 means all."""
        with self._file.errors():
            rows = self._file.base.execute(
                "SELECT modality, id, text, path, sources.name, key FROM items "
                "JOIN sources ON source = sources.number "
                "WHERE modality = IFNULL(?, modality) AND sources.name = IFNULL(?, sources.name) "
                "ORDER BY items.number LIMIT ?",
                (modality, source, limit),
            )
            yield from map(ListedItem._make, rows)

    def counts(self) -> list[tuple[str, str, int]]:
        """Return the number of items per source and modality."""
        return self._file.fetch(
            "SELECT sources.name, modality, COUNT(*) FROM items "
            "JOIN sources ON source = sources.number GROUP BY 1, 2 ORDER BY 1, 2"
        )

    def update_stamps(self, modality: str, source: str, stamps: Sequence[tuple[str, str]]) -> None:
        """Store (key, stamp) of files that were read and had not changed."""
        with self._file.transaction() as base:
            base.executemany(
                f"UPDATE items SET stamp = ? WHERE modality = ? AND key = ? AND {_FROM_SOURCE}",
                [(stamp, modality, key, source) for key, stamp in stamps],
            )

    def move(self, old: str, new: str) -> int:
        """Replace folder or file `old` by `new` in sources and paths; return the item count.

        An item whose key already belongs to another item of the new source is not moved.
        """
        count = 0
        moved_names: dict[int, str] = {}
        with self._file.transaction() as base:
            moved_sources = {}
            for number, name in self._file.fetch("SELECT number, name FROM sources"):
                if (moved := _moved(name, old, new)) is not None:
                    moved_sources[number] = self.number(base, moved)
                    moved_names[moved_sources[number]] = moved
            for number, source, path in self._file.fetch("SELECT number, source, path FROM items"):
                moved_path = path and _moved(path, old, new)
                if source not in moved_sources and not moved_path:
                    continue
                item = self._file.find_row("number = ?", number)
                assert item is not None
                new_source = moved_sources.get(source, source)
                row = item[1]._replace(path=moved_path or path, source=new_source)
                if new_source != source:
                    row = row.with_names(moved_names[new_source])
                count += self._file.update_row(number, row)
            base.execute("DELETE FROM sources WHERE number NOT IN (SELECT source FROM items)")
        return count


def _moved(path: str, old: str, new: str) -> str | None:
    if path == old:
        return new
    prefix = old.rstrip(os.sep) + os.sep
    return os.path.join(new, path[len(prefix) :]) if path.startswith(prefix) else None


_RECENT_NS = 2_000_000_000  # a second change this soon may leave the modification time unchanged


class FileStamps:
    """Size and modification time of the files of a collection, taken before any file is read.

    A file that changes in the meantime has another stamp next time, so it is read again then.
    """

    def __init__(self, images: Images) -> None:
        self._images = images
        # In a folder the key is the path. A table may use one id for another file later.
        self._with_path = not (images.source and os.path.isdir(images.source))
        self._stats = np.zeros((len(images), 2), np.int64)  # size and time; 0: unknown
        now = time.time_ns()
        with phase("checking files"):
            for row, item in enumerate(images.items):
                if isinstance(item, Path):
                    self._stats[row] = _size_and_time(item, now)

    def __getitem__(self, row: int) -> str | None:
        """Return size, time and, where source and key do not give it, path; None if unknown."""
        size, modified = self._stats[row].tolist()
        if not modified:
            return None
        path = f" {os.path.abspath(self._images.describe(row))}" if self._with_path else ""
        return f"{size} {modified}{path}"

    def find_unchanged(self, catalog: Catalog, track: Track) -> tuple[list[int], list[int]]:
        """Return the rows whose files must be read, and the catalog's numbers of the others."""
        source, keys = self._images.source, self._images.ids
        if "images" not in catalog.sources.modalities(source):
            return list(range(len(keys))), []
        rows, numbers = [], []
        for row in track(range(len(keys)), "checking for changes", len(keys)):
            stamp = self[row]
            number = stamp and catalog.sources.find_number("images", source, keys[row], stamp)
            if not number:
                rows.append(row)
            else:
                numbers.append(int(number))
        return rows, numbers


def _size_and_time(path: Path, now: int) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    recent = abs(now - status.st_mtime_ns) < _RECENT_NS
    return (0, 0) if recent else (status.st_size, status.st_mtime_ns)
