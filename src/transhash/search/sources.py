"""Where the items of a catalog came from, and what their files looked like."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.data.collection import Images
from transhash.progress import Track
from transhash.search.catalog import CHECKED_COLUMNS, Catalog, CatalogFile, row_checksum

_OF = "origin = (SELECT number FROM origins WHERE place = ?)"


class ListedItem(NamedTuple):
    """An item as a list shows it."""

    modality: str
    id: str
    text: str | None
    source: str | None
    origin: str  # the folder or file it was listed in; "" if by a program
    key: str | None  # what it is called there; None: not known


class ItemSources:
    """Origins, keys and stamps of the items in a catalog file."""

    def __init__(self, file: CatalogFile) -> None:
        self._file = file

    # ---- questions ----

    def modalities(self, origin: str) -> list[str]:
        """Which modalities came from there."""
        with self._file.errors():
            rows = self._file.base.execute(
                f"SELECT DISTINCT modality FROM items WHERE {_OF} ORDER BY modality", (origin,)
            ).fetchall()
        return [modality for (modality,) in rows]

    def number_at(self, modality: str, origin: str, key: str) -> int | None:
        return self._number(f"modality = ? AND {_OF} AND key = ?", (modality, origin, key))

    def stamped(self, modality: str, origin: str, key: str, stamp: str) -> int | None:
        """The number of the item from that place whose file looked like that when it was read."""
        place = (modality, origin, key, stamp)
        return self._number(f"modality = ? AND {_OF} AND key = ? AND stamp = ?", place)

    def listing(
        self, modality: str | None = None, origin: str | None = None, limit: int = -1
    ) -> Iterator[ListedItem]:
        """Items in the order in which they were added; -1 is no limit."""
        columns, tables = "origins.place, key", "LEFT JOIN origins ON origin = origins.number"
        if not self._file.has_places:
            columns, tables = "NULL, NULL", "LEFT JOIN (SELECT NULL AS place) AS origins"
        with self._file.errors():
            rows = self._file.base.execute(
                f"SELECT modality, id, text, source, {columns} FROM items {tables} "
                "WHERE modality = IFNULL(?, modality) AND IFNULL(origins.place, '') = "
                "IFNULL(?, IFNULL(origins.place, '')) ORDER BY items.number LIMIT ?",
                (modality, origin, limit),
            )
            for kind, item_id, text, source, place, key in rows:
                yield ListedItem(kind, item_id, text, source, place or "", key)

    def counts(self) -> list[tuple[str, str, int]]:
        """Origin, modality and how many items."""
        if not self._file.has_places:
            sql = "SELECT '', modality, COUNT(*) FROM items GROUP BY 2 ORDER BY 2"
        else:
            sql = (
                "SELECT IFNULL(place, ''), modality, COUNT(*) FROM items LEFT JOIN origins "
                "ON origin = origins.number GROUP BY 1, 2 ORDER BY 1, 2"
            )
        with self._file.errors():
            return [(str(a), str(b), int(n)) for a, b, n in self._file.base.execute(sql)]

    def _number(self, where: str, values: tuple[str, ...]) -> int | None:
        with self._file.errors():
            row = self._file.base.execute(
                f"SELECT number FROM items WHERE {where}", values
            ).fetchone()
        return None if row is None else int(row[0])

    def other_sources(self, numbers: Sequence[int], origin: str) -> dict[str, int]:
        """Which of these items are known from other places than `origin`: place -> how many."""
        found: Counter[str] = Counter()
        with self._file.errors():
            for start in range(0, len(numbers), 500):
                part = list(numbers[start : start + 500])
                found.update(
                    dict(
                        self._file.base.execute(
                            "SELECT place, COUNT(*) FROM items JOIN origins "
                            "ON origin = origins.number WHERE place != ? AND items.number IN "
                            f"({','.join('?' * len(part))}) GROUP BY 1",
                            (origin, *part),
                        ).fetchall()
                    )
                )
        return dict(found)

    # ---- changes ----

    def update_stamps(self, modality: str, origin: str, stamps: Sequence[tuple[str, str]]) -> None:
        """By key, what the files of that origin look like which were read and had not changed."""
        with self._file.transaction() as base:
            base.executemany(
                f"UPDATE items SET stamp = ? WHERE modality = ? AND key = ? AND {_OF}",
                [(stamp, modality, key, origin) for key, stamp in stamps],
            )

    def move(self, old: str, new: str) -> int:
        """What was listed in `old`, or lies there, is in `new` now; returns of how many items.

        One whose place there is taken by another item stays where it was.
        """
        with self._file.transaction() as base:
            places = {n: str(p) for n, p in base.execute("SELECT number, place FROM origins")}
            target = {}
            for number, place in places.items():
                if (there := _moved(place, old, new)) is not None:
                    base.execute("INSERT OR IGNORE INTO origins (place) VALUES (?)", (there,))
                    found = base.execute("SELECT number FROM origins WHERE place = ?", (there,))
                    target[number] = int(found.fetchone()[0])
            rows = base.execute("SELECT number, origin, source, key FROM items").fetchall()
            count = 0
            for number, origin, source, key in rows:
                path = source and _moved(os.path.abspath(source), old, new)
                if path is None and origin in target and _ends_in(source, key):
                    # Given relative to another folder than this one: its own tells where it is.
                    path = os.path.join(_moved(places[origin], old, new) or "", key)
                if origin not in target and path is None:
                    continue
                select = f"SELECT {CHECKED_COLUMNS} FROM items WHERE number = ?"
                row = list(base.execute(select, (number,)).fetchone())
                row[3], row[5] = path or source, target.get(origin, origin)
                count += base.execute(
                    "UPDATE OR IGNORE items SET source = ?, origin = ?, checksum = ? "
                    "WHERE number = ?",
                    (row[3], row[5], row_checksum(row), number),
                ).rowcount
            base.execute(
                "DELETE FROM origins WHERE number NOT IN "
                "(SELECT origin FROM items WHERE origin IS NOT NULL)"
            )
        return count


def _moved(place: str, old: str, new: str) -> str | None:
    if place == old:
        return new
    inside = old.rstrip(os.sep) + os.sep
    return os.path.join(new, place[len(inside) :]) if place.startswith(inside) else None


def _ends_in(source: str | None, key: str) -> bool:
    return source is not None and not os.path.isabs(source) and source.endswith(key)


# Which image files need not be read again: their size and time of change are as they were.

_RECENT = 2_000_000_000  # ns: another change so soon after may leave the same time behind


class FileStamps:
    """What each file of a collection looked like before any of it was read.

    A file that was changed meanwhile looks different the next time, so it is read again then.
    """

    def __init__(self, images: Images, seen: npt.NDArray[np.int64] | None = None) -> None:
        self._images = images
        # In a folder the key is the path; a table may name another file under the same id.
        self._named = not (images.source and os.path.isdir(images.source))
        if seen is None:
            now = time.time_ns()
            seen = np.zeros((len(images), 2), np.int64)  # size and time; 0: tells nothing
            for row, item in enumerate(images.items):
                if isinstance(item, Path):
                    seen[row] = _look(item, now)
        self._seen = seen

    def take(self, rows: Sequence[int]) -> FileStamps:
        return FileStamps(self._images.take(rows), self._seen[rows])

    def __getitem__(self, row: int) -> str | None:
        """Size and time, and the path where key and origin do not say it; None: tells nothing."""
        size, changed = self._seen[row].tolist()
        if not changed:
            return None
        name = f" {os.path.abspath(self._images.describe(row))}" if self._named else ""
        return f"{size} {changed}{name}"

    def unchanged(self, catalog: Catalog, track: Track) -> tuple[list[int], list[int]]:
        """Rows whose files are to be read, and the catalog's numbers of the others."""
        origin, keys = self._images.source, self._images.ids
        if "images" not in catalog.origins.modalities(origin):
            return list(range(len(keys))), []
        rows, numbers = [], []
        for row in track(range(len(keys)), "looking for changes", len(keys)):
            stamp = self[row]
            number = stamp and catalog.origins.stamped("images", origin, keys[row], stamp)
            if not number:
                rows.append(row)
            else:
                numbers.append(int(number))
        return rows, numbers


def _look(path: Path, now: int) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    recent = abs(now - found.st_mtime_ns) < _RECENT
    return (0, 0) if recent else (found.st_size, found.st_mtime_ns)
