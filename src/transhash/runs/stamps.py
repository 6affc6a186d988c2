"""Which image files need not be read again: their size and time of change are as they were."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transhash.data.collection import Images
from transhash.progress import Track
from transhash.runs.catalog import Catalog

_RECENT = 2_000_000_000  # ns: another change so soon after may leave the same time behind


class FileStamps:
    """What each file of a collection looked like before any of it was read.

    A file that was changed meanwhile looks different the next time, so it is read again then.
    """

    def __init__(self, images: Images, seen: npt.NDArray[np.int64] | None = None) -> None:
        self._images = images
        # In a folder the key is the path; a table may name another file under the same id.
        self._named = not (images.origin and os.path.isdir(images.origin))
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
        name = f" {os.path.abspath(self._images.place(row))}" if self._named else ""
        return f"{size} {changed}{name}"

    def unchanged(self, catalog: Catalog, track: Track) -> tuple[list[int], list[int]]:
        """Rows whose files are to be read, and the catalog's numbers of the others."""
        origin, keys = self._images.origin, self._images.ids
        if "images" not in catalog.origins.kinds(origin):
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
