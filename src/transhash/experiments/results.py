"""results.jsonl: one line a finished cell, whole or cut off; a run goes on where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from transhash.errors import DataError
from transhash.experiments.plan import Cell

Row = dict[str, Any]
FILE = "results.jsonl"


def read_results(folder: str | Path) -> list[Row]:
    """The finished cells of a run; a half-written last line is not one of them."""
    rows, _ = _scan(Path(folder) / FILE)
    return rows


def cell_of(row: Row) -> Cell:
    return Cell(row["method"], row["bits"], row["seed"])


class Results:
    """The rows of a run folder, and the one way to add to them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.rows, end = _scan(self.path)
        if self.path.exists() and self.path.stat().st_size > end:
            with self.path.open("r+b") as file:  # what a kill left of the last line
                file.truncate(end)
                os.fsync(file.fileno())

    def append(self, row: Row) -> None:
        """On the disk when this returns, so that a kill loses at most the cells under way."""
        self.rows.append(row)
        with self.path.open("ab") as file:
            file.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def check(self, shared: dict[str, Any], settings: dict[str, dict[str, Any]]) -> None:
        """Refuse to mix: rows already here must come from the same data, sizes, trials, settings.

        More methods, code lengths and seeds may be added; what made the numbers may not change.
        """
        for row in self.rows:
            found, wanted = row["shared"], shared
            if row["method"] in settings:
                found = {**found, "settings": row["given_settings"]}
                wanted = {**wanted, "settings": settings[row["method"]]}
            for name, value in wanted.items():
                if found.get(name) != value:
                    raise DataError(
                        f"{self.path} holds {cell_of(row)} with {name} = {found.get(name)}, the "
                        f"experiment now has {value}; give another --out, or ask for the same"
                    )


def _scan(path: Path) -> tuple[list[Row], int]:
    """The rows, and where the last whole line ends."""
    if not path.exists():
        return [], 0
    rows: list[Row] = []
    end = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError
            rows.append(json.loads(line))
        except ValueError:
            if number == len(lines):
                break
            raise DataError(
                f"{path}, line {number} is not JSON; take that line out and run again"
            ) from None
        end += len(line)
    return rows, end
