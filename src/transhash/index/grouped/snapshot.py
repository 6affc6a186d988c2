"""One moment of a grouped index that another process may be changing, as open files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self

from transhash.index.grouped.store import MANIFEST, read_generation


class IndexSnapshot:
    """Files of an index: those of a generation, which never change, and its log so far.

    Open files stay readable when the writer deletes their names. Manifest and log are read at
    once, because the writer replaces the first and appends to the second.
    """

    def __init__(self, folder: Path) -> None:
        """Open the files; raises FileNotFoundError if the writer replaced them meanwhile."""
        self._folder = folder
        self.files: dict[str, BinaryIO] = {}  # immutable ones, by name
        self.contents: dict[str, bytes] = {}  # of the others
        with ExitStack() as stack:
            manifest = (folder / MANIFEST).read_bytes()
            generation = read_generation(folder)
            for name in generation.array_files:
                self.files[name] = stack.enter_context((folder / name).open("rb"))
            self._log = folder / generation.log
            self.contents = {MANIFEST: manifest, generation.log: self._log.read_bytes()}
            self._opened = stack.pop_all()

    def is_current(self) -> bool:
        """Return whether the index has not changed since the files were opened.

        A change makes the log longer, and a new generation replaces the manifest.
        """
        try:
            same_manifest = (self._folder / MANIFEST).read_bytes() == self.contents[MANIFEST]
            return same_manifest and self._log.stat().st_size == len(self.contents[self._log.name])
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
