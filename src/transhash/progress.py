"""One way to show that long work moves: wrap an iterable, as tqdm does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

_T = TypeVar("_T")
_REFRESH = 0.1  # seconds between two looks at the bar
_LINE_SECONDS = 10.0  # between two lines of a log


class Track(Protocol):
    """Passes items through and shows how far they have come."""

    def __call__(
        self, items: Iterable[_T], description: str, total: int | None = None, start: int = 0
    ) -> Iterable[_T]: ...


def no_progress(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterable[_T]:
    """The library's default: no output."""
    return items


def progress_bar(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterator[_T]:
    """A bar on standard error with rate and time left; `start` is what a resumed run has done.

    Where nobody watches, as in a log, a plain line every ten seconds and one at the end.
    """
    from rich.console import Console

    if total is None and isinstance(items, Sized):
        total = start + len(items)
    console = Console(stderr=True)
    watched = (console.is_terminal and not console.is_dumb_terminal) or console.is_jupyter
    return (
        _live(console, items, description, total, start)
        if watched
        else _lines(items, description, total, start)
    )


def _lines(items: Iterable[_T], description: str, total: int | None, start: int) -> Iterator[_T]:
    began = monotonic()
    done, next_time = 0, began + _LINE_SECONDS

    def say(seconds: float, end: str) -> None:
        of = "" if total is None else f" of {total:,}"
        parts = [f"{description}: {start + done:,}{of}", _rate(done, seconds), end]
        print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    for item in items:
        yield item
        done += 1
        if (now := monotonic()) >= next_time and start + done != total:
            next_time = now + _LINE_SECONDS
            left = 0.0 if total is None else (total - start - done) * (now - began) / done
            say(now - began, f"{timedelta(seconds=round(left))} left" if left > 0 else "")
    if done:
        seconds = monotonic() - began
        say(seconds, f"done in {timedelta(seconds=round(seconds))}")


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
        done, shown, next_time = 0, 0, 0.0
        for item in items:
            yield item
            done += 1
            if (now := monotonic()) >= next_time:  # rich takes longer to count than some work
                progress.advance(task, done - shown)
                shown, next_time = done, now + _REFRESH
        progress.advance(task, done - shown)


def _rate(done: float, seconds: float) -> str:
    """Over the whole time: work that comes in bursts would show the speed of one burst."""
    rate = done / seconds if seconds else 0.0
    return f"{rate:,.0f}/s" if rate >= 1 else f"{60 * rate:.1f}/min" if rate else ""
