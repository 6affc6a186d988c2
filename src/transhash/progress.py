"""One way to show that long work moves: wrap an iterable, as tqdm does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from time import monotonic
from typing import Protocol, TypeVar

_T = TypeVar("_T")
_REFRESH = 0.1  # seconds between two looks at the bar


class Track(Protocol):
    """Passes items through and shows how far they have come."""

    def __call__(
        self, items: Iterable[_T], description: str, total: int | None = None, start: int = 0
    ) -> Iterable[_T]: ...


def silent(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterable[_T]:
    """The library's default: no output."""
    return items


def bar(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterator[_T]:
    """A bar on standard error with rate and time left; `start` is what a resumed run has done."""
    from rich.console import Console
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
            done = task.completed - start
            # Over the whole time: work that comes in bursts would show the speed of one burst.
            rate = done / task.elapsed if task.elapsed else 0.0
            shown = f"{rate:,.0f}/s" if rate >= 1 else f"{60 * rate:.1f}/min" if rate else ""
            return Text(shown, style="dim")

    if total is None and isinstance(items, Sized):
        total = start + len(items)
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total, completed=start)
        done, shown, next_time = 0, 0, 0.0
        for item in items:
            yield item
            done += 1
            if (now := monotonic()) >= next_time:  # rich takes longer to count than some work
                progress.advance(task, done - shown)
                shown, next_time = done, now + _REFRESH
        progress.advance(task, done - shown)
