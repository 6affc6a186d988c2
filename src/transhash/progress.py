"""Progress bars: wrap an iterable, as tqdm does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

_T = TypeVar("_T")
_Batch = TypeVar("_Batch", bound=Sized)
_REFRESH_SECONDS = 0.1
_LINE_SECONDS = 10.0  # between two lines in a log


class Track(Protocol):
    """Iterates over items and shows progress."""

    def __call__(
        self, items: Iterable[_T], description: str, total: int | None = None, start: int = 0
    ) -> Iterable[_T]: ...


def no_progress(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterable[_T]:
    """Return the items without any output, the library's default."""
    return items


def with_progress(
    batches: Iterable[_Batch], track: Track, description: str, total: int, start: int = 0
) -> Iterator[_Batch]:
    """Yield the batches while a progress bar counts their items."""
    batch: _Batch | None = None

    def ticks() -> Iterator[int]:
        nonlocal batch
        for batch in batches:
            yield from range(len(batch))

    for tick in track(ticks(), description, total=total, start=start):
        if tick == 0 and batch is not None:
            yield batch


def progress_bar(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterator[_T]:
    """Show a bar with rate and remaining time on standard error.

    If standard error is not a terminal, print a line every ten seconds and one at the end.
    `start` is the number of items that a resumed run had finished before.
    """
    from rich.console import Console

    if total is None and isinstance(items, Sized):
        total = start + len(items)
    console = Console(stderr=True)
    interactive = (console.is_terminal and not console.is_dumb_terminal) or console.is_jupyter
    return (
        _live(console, items, description, total, start)
        if interactive
        else _lines(items, description, total, start)
    )


def _lines(items: Iterable[_T], description: str, total: int | None, start: int) -> Iterator[_T]:
    began = monotonic()
    count, next_time = 0, began + _LINE_SECONDS

    def print_line(seconds: float, end: str) -> None:
        suffix = "" if total is None else f" of {total:,}"
        parts = [f"{description}: {start + count:,}{suffix}", _rate(count, seconds), end]
        print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    for item in items:
        yield item
        count += 1
        if (now := monotonic()) >= next_time and start + count != total:
            next_time = now + _LINE_SECONDS
            rest = 0.0 if total is None else (total - start - count) * (now - began) / count
            print_line(now - began, f"{timedelta(seconds=round(rest))} left" if rest > 0 else "")
    if count:
        seconds = monotonic() - began
        print_line(seconds, f"done in {timedelta(seconds=round(seconds))}")


def _live(
    console: Console, items: Iterable[_T], description: str, total: int | None, start: int
) -> Iterator[_T]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_rate(task.completed - start, task.elapsed or 0.0), style="dim")

    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=total, completed=start)
        count, shown, next_time = 0, 0, 0.0
        for item in items:
            yield item
            count += 1
            if (now := monotonic()) >= next_time:  # updating rich can cost more than the work
                progress.advance(task, count - shown)
                shown, next_time = count, now + _REFRESH_SECONDS
        progress.advance(task, count - shown)


def _rate(count: float, seconds: float) -> str:
    """Return the mean rate since the start, which bursts of work do not distort."""
    rate = count / seconds if seconds else 0.0
    return f"{rate:,.0f}/s" if rate >= 1 else f"{60 * rate:.1f}/min" if rate else ""
