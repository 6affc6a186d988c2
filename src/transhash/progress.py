"""Progress in terminals, notebooks and logs.

A `Track` wraps an iterable, as tqdm does. Code that is far from the call that chose one uses
`tracked` and `phase`, which report to the track of the innermost `report_to`, by default to none.
`show_progress` reports a whole command: where no bar is shown, a line every ten seconds says what
is running, also within one long computation.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from time import monotonic, sleep
from typing import TYPE_CHECKING, Protocol, TypeVar

from transhash.errors import check_type

if TYPE_CHECKING:
    from rich.progress import Progress

_T = TypeVar("_T")
_Batch = TypeVar("_Batch", bound=Sized)
_REFRESH_SECONDS = 0.1
_LINE_SECONDS = 10.0  # between two lines in a log
_MIN_LOOP_SECONDS = 1.0  # a shorter loop gets no line at its end


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


def choose_track(progress: bool | None) -> Track:
    """Return the track of a public call: None shows progress in a terminal or notebook."""
    check_type(progress, (bool, type(None)), "progress", "True, False or None")
    is_shown = (_shows_bars() or _is_notebook()) if progress is None else progress
    return progress_bar if is_shown else no_progress


_track: ContextVar[Track] = ContextVar("transhash_track", default=no_progress)


@contextmanager
def report_to(track: Track) -> Iterator[None]:
    """Send the `phase` and `tracked` of the calls within to a track."""
    token = _track.set(track)
    try:
        yield
    finally:
        _track.reset(token)


def tracked(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterable[_T]:
    """Iterate over items and show progress on the track of `report_to`."""
    return _track.get()(items, description, total, start)


@contextmanager
def phase(description: str) -> Iterator[None]:
    """Show that a step without countable parts is running, on the track of `report_to`."""
    step = iter(_track.get()(range(1), description, 1))
    next(step, None)
    try:
        yield
    except BaseException:
        if close := getattr(step, "close", None):
            close()
        raise
    next(step, None)


@contextmanager
def show_progress(description: str, progress: bool | None = True) -> Iterator[Track]:
    """Report what runs within, and print a line every ten seconds where no bar is shown.

    Yields the track. With `progress` None it is shown in a terminal or notebook only.
    """
    track = choose_track(progress)
    if track is no_progress:
        with report_to(track):
            yield track
        return
    with report_to(track), _shown(_Step(description, is_phase=True)):
        yield track


@contextmanager
def no_output() -> Iterator[None]:
    """Show nothing until the end of the block: a server waits for requests."""
    with report_to(no_progress), _shown(_Step("", is_phase=True, has_bar=True)):
        yield


def progress_bar(
    items: Iterable[_T], description: str, total: int | None = None, start: int = 0
) -> Iterator[_T]:
    """Show a bar with rate and remaining time on standard error.

    If standard error is not a terminal, print a line every ten seconds and one at the end, if it
    took a second. `start` is the number of items that a resumed run had finished before.
    """
    if total is None and isinstance(items, Sized):
        total = start + len(items)
    step = _Step(description, total, start, is_phase=total == 1 and not start)
    return _live(items, step) if _shows_bars() else _lines(items, step)


@dataclass(eq=False)
class _Step:
    """A loop or phase that is running."""

    description: str
    total: int | None = None
    start: int = 0
    is_phase: bool = False
    has_bar: bool = False
    count: int = 0
    has_line: bool = False  # whether a line about it was printed
    began: float = field(default_factory=lambda: monotonic())

    def print_line(self, now: float, *, is_last: bool = False) -> None:
        global _last_line
        seconds = now - self.began
        elapsed = timedelta(seconds=round(seconds))
        parts = [f"done in {elapsed}" if is_last else f"{elapsed} so far"]
        if not self.is_phase:
            suffix = "" if self.total is None else f" of {self.total:,}"
            parts = [f"{self.start + self.count:,}{suffix}", _rate(self.count, seconds), *parts]
            if not is_last and self.count:
                parts.pop()
                if self.total is not None and self.total > self.start + self.count:
                    rest = (self.total - self.start - self.count) * seconds / self.count
                    parts.append(f"{timedelta(seconds=round(rest))} left")
        line = f"{self.description}: {', '.join(filter(None, parts))}"
        print(line, file=sys.stderr, flush=True)
        self.has_line, _last_line = True, now


# What is running, innermost last. A thread prints a line about the innermost step, because the
# main thread may be in one long computation.
_steps: list[_Step] = []
_last_line = 0.0
_lock = threading.RLock()
_watcher: threading.Thread | None = None


def _line_seconds() -> float:
    try:
        return max(0.0, float(os.environ["TRANSHASH_PROGRESS_SECONDS"]))
    except (KeyError, ValueError):
        return _LINE_SECONDS


@contextmanager
def _shown(step: _Step) -> Iterator[_Step]:
    global _last_line, _watcher
    with _lock:
        if not _steps:
            _last_line = step.began
        _steps.append(step)
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_watch, name="transhash-progress", daemon=True)
            _watcher.start()
    try:
        yield step
    finally:
        with _lock:
            _steps.remove(step)


def _watch() -> None:
    """Print a line about the innermost step when there was none for ten seconds."""
    while True:
        interval = _line_seconds()
        sleep(min(max(interval / 4, 0.02), 1.0))
        with _lock:
            if not _steps:
                return
            now = monotonic()
            if now - _last_line >= interval and not _steps[-1].has_bar:
                _steps[-1].print_line(now)


def _lines(items: Iterable[_T], step: _Step) -> Iterator[_T]:
    interval = _line_seconds()
    with _shown(step):
        for item in items:
            yield item
            step.count += 1
            now, is_last = monotonic(), step.start + step.count == step.total
            if now - _last_line >= interval and not is_last:
                with _lock:
                    step.print_line(now)
        if step.count:
            now = monotonic()
            shortest = interval if step.is_phase else min(interval, _MIN_LOOP_SECONDS)
            if step.has_line or now - step.began >= shortest:
                with _lock:
                    step.print_line(now, is_last=True)


def _shows_bars() -> bool:
    """Return whether standard error is a terminal, or a notebook that rich can draw in."""
    from rich.console import Console

    if _is_notebook():
        return find_spec("ipywidgets") is not None
    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


def _is_notebook() -> bool:
    from rich.console import Console

    return Console(stderr=True).is_jupyter


_bars: Progress | None = None  # shown now; an inner step gets a line of its own there


def _live(items: Iterable[_T], step: _Step) -> Iterator[_T]:
    global _bars
    step.has_bar = True
    with _shown(step):
        outer = _bars
        bars = outer or _new_bars(transient=step.is_phase)
        if outer is None:
            _bars = bars
            bars.start()
        task = bars.add_task(
            step.description,
            total=None if step.is_phase else step.total,
            completed=step.start,
            start_at=step.start,
            is_phase=step.is_phase,
        )
        try:
            shown, next_time = 0, 0.0
            for item in items:
                yield item
                step.count += 1
                if (now := monotonic()) >= next_time:  # updating rich can cost more than the work
                    bars.advance(task, step.count - shown)
                    shown, next_time = step.count, now + _REFRESH_SECONDS
            bars.advance(task, step.count - shown)
        finally:
            if outer is None:
                bars.stop()
                _bars = None
            else:
                bars.remove_task(task)


def _new_bars(*, transient: bool) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Count(MofNCompleteColumn):
        def render(self, task: Task) -> Text:
            return Text("") if task.fields["is_phase"] else super().render(task)

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            count = task.completed - task.fields["start_at"]
            shown = not task.fields["is_phase"]
            return Text(_rate(count, task.elapsed or 0.0) if shown else "", style="dim")

    class Time(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            is_phase = task.fields["is_phase"]
            return TimeElapsedColumn().render(task) if is_phase else super().render(task)

    columns = (TextColumn("{task.description:<26}"), BarColumn(), Count(), Rate(), Time())
    return Progress(
        *columns,
        console=Console(stderr=True),
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),  # else results meant for a file would go to the bar
    )


def _rate(count: float, seconds: float) -> str:
    """Return the mean rate since the start, which bursts of work do not distort."""
    rate = count / seconds if seconds else 0.0
    return f"{rate:,.0f}/s" if rate >= 1 else f"{60 * rate:.1f}/min" if rate else ""
