"""Where the items of a catalog came from, and what their files looked like."""

from __future__ import annotations

from collections.abc import Sequence

from transhash.runs.catalog_file import CatalogFile

_OF = "origin = (SELECT number FROM origins WHERE place = ?)"


class Origins:
    """Origins, keys and stamps of the items in a catalog file."""

    def __init__(self, file: CatalogFile) -> None:
        self._file = file

    def holds(self, modality: str, origin: str) -> bool:
        """Whether any item came from there."""
        with self._file.errors():
            row = self._file.base.execute(
                f"SELECT 1 FROM items WHERE modality = ? AND {_OF}",
                (modality, origin),
            ).fetchone()
        return row is not None

    def stamped(self, modality: str, origin: str, key: str, stamp: str) -> int | None:
        """The number of the item from that place whose file looked like that when it was read."""
        with self._file.errors():
            row = self._file.base.execute(
                f"SELECT number FROM items WHERE modality = ? AND key = ? AND stamp = ? AND {_OF}",
                (modality, key, stamp, origin),
            ).fetchone()
        return None if row is None else int(row[0])

    def restamp(self, modality: str, origin: str, stamps: Sequence[tuple[str, str]]) -> None:
        """By key, what the files of that origin look like which were read and had not changed."""
        with self._file.transaction() as base:
            base.executemany(
                f"UPDATE items SET stamp = ? WHERE modality = ? AND key = ? AND {_OF}",
                [(stamp, modality, key, origin) for key, stamp in stamps],
            )
