"""How far an experiment has come, on standard error: cells, means so far, time left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from typing import Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from transhash.experiments.plan import Cell, Plan
from transhash.experiments.results import Row

T = TypeVar("T")


class Board:
    """A table that redraws itself on a terminal; elsewhere one line for each finished cell."""

    def __init__(self, plan: Plan, name: str, rows: Sequence[Row], jobs: int, console: Console):
        self.plan, self.name, self.jobs, self.console = plan, name, jobs, console
        wanted = set(plan.cells())
        self.rows = [row for row in rows if Cell(row["method"], row["bits"], row["seed"]) in wanted]
        self.total = len(wanted)
        self.running: dict[Cell, float] = {}  # when each began
        self.seconds: dict[str, list[float]] = {}  # of this run's cells, by method
        self.note = ""

    def show(self) -> AbstractContextManager[Any]:
        if not self.console.is_terminal:
            return nullcontext()
        return Live(get_renderable=self._draw, console=self.console, refresh_per_second=2)

    def begin(self, cell: Cell) -> None:
        self.running[cell] = time.monotonic()

    def finish(self, cell: Cell, row: Row | None, error: str = "") -> None:
        """With its row, or with the reason why there is none."""
        seconds = time.monotonic() - self.running.pop(cell)
        self.note = ""
        if row is not None:
            self.rows.append(row)
            self.seconds.setdefault(cell.method, []).append(seconds)
        if self.console.is_terminal and row is not None:
            return  # the table shows it
        scores = f"failed: {error}" if row is None else _pair([row])
        head = f"{len(self.rows)}/{self.total} {cell}"
        self.console.print(f"{head}: {scores} ({seconds:.0f} s)", highlight=False, markup=False)

    def track(
        self, items: Iterable[T], description: str, total: int | None = None, start: int = 0
    ) -> Iterator[T]:
        """Where the work under way stands, as a note beside the cell."""
        total = total if total is not None else getattr(items, "__len__", lambda: None)()
        for number, item in enumerate(items, start=start + 1):
            self.note = f"{description} {number}/{total}" if total else f"{description} {number}"
            yield item
        self.note = ""

    def seconds_left(self) -> float | None:
        """From what cells of the same method took, or of any method where none is done."""
        if not self.seconds:
            return None
        of_any = fmean(taken for method in self.seconds.values() for taken in method)
        done = {Cell(row["method"], row["bits"], row["seed"]) for row in self.rows}
        left = 0.0
        for cell in self.plan.cells():
            if cell not in done:
                left += fmean(self.seconds.get(cell.method, [of_any]))
        spent = sum(time.monotonic() - start for start in self.running.values())
        return max(left - spent, 0.0) / self.jobs

    def _draw(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("I→T / T→I")
        for bits in self.plan.bits:
            table.add_column(f"{bits} bits", justify="right")
        for method in self.plan.methods:
            style = "bold" if method == "THN" else ""
            table.add_row(Text(method, style), *(self._score(method, b) for b in self.plan.bits))
        left = self.seconds_left()
        head = Text.assemble(
            (f"{self.name}  ", "bold"),
            f"{len(self.rows)} of {self.total} cells",
            (f"  about {_time(left)} left" if left else "", "dim"),
        )
        bar = Table.grid()  # a bar alone would not end its line
        bar.add_row(ProgressBar(total=self.total, completed=len(self.rows), width=60))
        now = [f"{cell} ({time.monotonic() - start:.0f} s)" for cell, start in self.running.items()]
        return Group(head, bar, table, Text("; ".join([*now, self.note]).strip("; "), "dim"))

    def _score(self, method: str, bits: int) -> Text:
        rows = [row for row in self.rows if (row["method"], row["bits"]) == (method, bits)]
        if rows:
            return Text(_pair(rows), "" if len(rows) == len(self.plan.seeds) else "yellow")
        active = any((cell.method, cell.bits) == (method, bits) for cell in self.running)
        return Text("…" if active else "·", "dim")


def _pair(rows: Sequence[Row]) -> str:
    """Means so far, image to text and text to image."""
    forward = fmean(row["image_to_text_map"] for row in rows)
    backward = fmean(row["text_to_image_map"] for row in rows)
    return f"{forward:.3f} / {backward:.3f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
