"""results.jsonl: one line per finished cell, so that an experiment can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transhash.data.benchmark import Benchmark
from transhash.errors import DataError
from transhash.experiments.plan import Cell, Plan
from transhash.storage import read_regular

Row = dict[str, Any]
_FILE = "results.jsonl"


def read_results(folder: str | Path) -> list[Row]:
    """Return the finished cells of an experiment, without an incomplete last line."""
    rows, _ = _scan(Path(folder) / _FILE)
    return rows


def row_cell(row: Row) -> Cell:
    return Cell(row["method"], row["teacher"], row["bits"], row["seed"])


class Results:
    """The rows of an experiment folder, and the only way to add to them."""

    def __init__(
        self, folder: Path, plan: Plan, benchmark: Benchmark, data: str, model: str | None = None
    ) -> None:
        """`data` is a fingerprint of the benchmark's files, `model` of an external image model."""
        self.path, self.plan = folder / _FILE, plan
        self.shared = {
            "benchmark": benchmark.name,
            "data": data,
            "sizes": asdict(benchmark.sizes),
            "tune": plan.trials,
            "supervision": plan.supervision,
            "image_features": plan.image_features,
            "image_model": model,
            "text_features": plan.text_features,
            "image_components": plan.image_components,
        }
        self.rows, end = _scan(self.path)
        self._check()
        if self.path.exists() and self.path.stat().st_size > end:
            with self.path.open("r+b") as file:  # an incomplete last line
                file.truncate(end)
                os.fsync(file.fileno())

    def append(self, cell: Row) -> None:
        """Add a cell with the conditions that all cells share.

        It is on disk when this returns, so that a kill loses only unfinished cells.
        """
        settings = self.plan.settings_for(row_cell(cell).spec)
        row = {
            "benchmark": self.shared["benchmark"],
            **cell,
            "sizes": self.shared["sizes"],
            "shared": self.shared,
            "plan_settings": settings,
            "settings_hash": _fingerprint([self.shared, settings]),
        }
        self.rows.append(row)
        with self.path.open("ab") as file:
            file.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def _check(self) -> None:
        """Refuse rows from other data, sizes, trials or settings.

        More methods, code lengths and seeds may be added.
        """
        for row in self.rows:
            cell, conditions, expected = row_cell(row), row["shared"], self.shared
            if cell.spec in self.plan.methods:
                conditions = {**conditions, "settings": row["plan_settings"]}
                expected = {**expected, "settings": self.plan.settings_for(cell.spec)}
            for name, value in expected.items():
                if conditions.get(name) != value:
                    raise DataError(
                        f"{self.path} has {cell} with {name} = {conditions.get(name)}, but the "
                        f"experiment now has {value}. Use another --out, or restore the value."
                    )


def _fingerprint(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _scan(path: Path) -> tuple[list[Row], int]:
    """Return the rows, and where the last complete line ends."""
    if not path.exists():
        return [], 0
    rows: list[Row] = []
    end = 0
    lines = read_regular(path).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError
            rows.append(json.loads(line))
        except ValueError:
            if number == len(lines):
                break
            raise DataError(
                f"{path}, line {number} is not valid JSON. Delete the line and run again."
            ) from None
        end += len(line)
    return rows, end
