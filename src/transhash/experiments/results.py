"""results.jsonl: one line a finished cell, whole or cut off; a run goes on where it stopped."""

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

Row = dict[str, Any]
_FILE = "results.jsonl"


def read_results(folder: str | Path) -> list[Row]:
    """The finished cells of a run; a half-written last line is not one of them."""
    rows, _ = _scan(Path(folder) / _FILE)
    return rows


def cell_of(row: Row) -> Cell:
    return Cell(row["method"], row["bits"], row["seed"])


class Results:
    """The rows of a run folder, and the one way to add to them."""

    def __init__(
        self, folder: Path, plan: Plan, benchmark: Benchmark, data: str, model: str | None = None
    ) -> None:
        """`data` is a fingerprint of the benchmark's files, `model` of what reads its images."""
        self.path, self.plan = folder / _FILE, plan
        self.shared = {
            "benchmark": benchmark.name,
            "data": data,
            "sizes": asdict(benchmark.sizes),
            "tune": plan.trials,
            "relation": plan.supervision,
            "image_features": plan.image_features,
            "image_model": model,
            "text_features": plan.text_features,
            "image_components": plan.image_components,
        }
        self.rows, end = _scan(self.path)
        self._check()
        if self.path.exists() and self.path.stat().st_size > end:
            with self.path.open("r+b") as file:  # what a kill left of the last line
                file.truncate(end)
                os.fsync(file.fileno())

    def append(self, cell: Row) -> None:
        """What a cell says, beside what all cells share.

        On the disk when this returns, so that a kill loses at most the cells under way.
        """
        shared, given = self.shared, self.plan.given(cell["method"])
        row = {
            "benchmark": shared["benchmark"],
            **cell,
            "sizes": shared["sizes"],
            "shared": shared,
            "given_settings": given,
            "settings_hash": _fingerprint([shared, given]),
        }
        self.rows.append(row)
        with self.path.open("ab") as file:
            file.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def _check(self) -> None:
        """Refuse to mix: rows already here must come from the same data, sizes, trials, settings.

        More methods, code lengths and seeds may be added; what made the numbers may not change.
        """
        for row in self.rows:
            found, wanted = row["shared"], self.shared
            if row["method"] in self.plan.methods:
                found = {**found, "settings": row["given_settings"]}
                wanted = {**wanted, "settings": self.plan.given(row["method"])}
            for name, value in wanted.items():
                if found.get(name) != value:
                    raise DataError(
                        f"{self.path} holds {cell_of(row)} with {name} = {found.get(name)}, the "
                        f"experiment now has {value}; give another --out, or ask for the same"
                    )


def _fingerprint(content: Any) -> str:
    """Twelve hexadecimal digits that differ where the content does."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
