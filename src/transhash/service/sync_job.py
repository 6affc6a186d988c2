"""SyncJob: sync the sources of a service on a thread, on request and when they change."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from transhash.data.collection import Problem
from transhash.errors import DataError, TranshashError
from transhash.progress import tracked
from transhash.search.engine import SearchEngine
from transhash.search.sync import (
    SyncPlan,
    add_items,
    find_losses,
    plan_sync,
    remove_missing,
    without_sources,
)
from transhash.service.schemas import SyncResult, SyncStatus
from transhash.service.search_service import SearchService
from transhash.storage import write_json

_log = logging.getLogger("transhash.service")
_T = TypeVar("_T")
_NICE = 10  # searches go first
_MAX_DOUBLINGS = 6  # of the pause before a sync with errors is repeated


class _StoppedError(Exception):
    """The service is stopping."""


class SyncJob:
    """Syncs when the service starts, on request, and every `seconds` if a source has changed.

    Changes and votes of other requests take place between the batches of a sync.
    """

    def __init__(
        self,
        service: SearchService,
        sources: Sequence[Path],
        seconds: float | None,
        on_result: Callable[[SyncResult], None] | None = None,
    ) -> None:
        self._service = service
        self._sources = [Path(os.path.abspath(source)) for source in sources]
        self._seconds = seconds
        self._on_result = on_result
        self._context = copy_context()  # where `report_to` names the track of the command
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._states: list[object] = []  # the engine and the sources when they were last synced
        self._failures = self._intervals = 0  # syncs with errors in a row; waits since the last one
        self._status = SyncStatus(
            running=False, requested=True, sources=[path.name for path in self._sources],
            task=None, done=None, total=None, syncs=0, last=None,
        )  # fmt: skip

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(
            target=self._context.copy().run,  # the thread of an earlier start may still run in it
            args=(self._work,),
            name="transhash-sync",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current batch; the next sync continues from there."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()

    def request(self) -> SyncStatus:
        """Sync now, or again after the sync that is running."""
        with self._lock:
            self._status.requested = True
            self._lock.notify_all()
            return self._status.model_copy()

    def status(self) -> SyncStatus:
        with self._lock:
            return self._status.model_copy()

    def track(
        self, items: Iterable[_T], description: str, total: int | None = None, start: int = 0
    ) -> Iterator[_T]:
        """Yield items, show progress in the status, and end the sync if the service stops."""
        for done, item in enumerate(tracked(items, description, total, start), start):
            with self._lock:
                if self._stopping:
                    raise _StoppedError
                self._status.task, self._status.done = description, done
                self._status.total = total
            yield item

    def _work(self) -> None:
        if sys.platform == "linux":  # where threads have priorities of their own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._lock:
                if not self._status.requested and not self._stopping:
                    self._lock.wait(self._seconds)
                if self._stopping:
                    return
                is_requested, self._status.requested = self._status.requested, False
            states: list[object] = [self._engine(), *map(_state_of, self._sources)]
            self._intervals += 1
            # A full disk may have space again, but a broken file is not worth reading every time.
            pause = 2 ** min(self._failures - 1, _MAX_DOUBLINGS) if self._failures else math.inf
            if is_requested or states != self._states or self._intervals >= pause:
                self._failures = 0 if self._sync() else self._failures + 1
                self._states, self._intervals = states, 0

    def _engine(self) -> SearchEngine | None:
        """Return the engine, another one after a restore; None if the sync will say what is wrong.

        It is kept, so that no later engine is at its address.
        """
        try:
            return self._service.engine
        except Exception:
            return None

    def _sync(self) -> bool:
        """Sync and return whether there was no error, which may be gone the next time."""
        with self._lock:
            self._status.running = True
        try:
            result = self._sync_sources()
        except _StoppedError:
            with self._lock:  # the rest when the service starts again
                self._status.running, self._status.requested = False, True
            return False
        except Exception as error:
            if not isinstance(error, TranshashError | OSError):
                _log.exception("Sync failed.")
            result = _result(error=self._public(error))
        if result.error:
            _log.warning("Sync: %s", result.error)
        if self._on_result is not None:
            self._on_result(result)
        with self._lock:
            status = self._status
            status.running, status.last, status.syncs = False, result, status.syncs + 1
            status.task = status.done = status.total = None
        return result.error is None

    def _sync_sources(self) -> SyncResult:
        writer = self._service.background_writer()
        plans: list[SyncPlan] = []
        errors = []
        for source in self.track(self._sources, "reading sources", len(self._sources)):
            try:
                plans += plan_sync(writer.catalog, source)
            except (TranshashError, OSError) as error:  # a bad source does not stop the others
                errors.append(self._public(error))
        losses = find_losses(writer.catalog, plans)
        advice = "Check it, or stop the service and run transhash sync with --allow-shrink."
        errors += [
            self._public(DataError(f"Not synced: {loss}. {advice}")) for loss in losses.values()
        ]
        plans = without_sources(plans, losses)
        removed = remove_missing(writer, plans, self.track)
        results = []
        for plan in plans:
            try:
                results.append(add_items(writer, plan, self.track))
            except DataError as error:  # such as a folder without a readable image
                errors.append(self._public(error))
        problems = [problem for plan in plans for problem in plan.problems]
        problems += [problem for result in results for problem in result.problems]
        skipped: list[Problem] = list(dict.fromkeys(problems))
        if skipped:
            rows = [problem._asdict() for problem in skipped]
            write_json(self._service.engine.run / "skipped.json", rows)
        return _result(
            added=sum(result.added for result in results),
            updated=sum(result.updated for result in results),
            unchanged=sum(result.unchanged for result in results),
            removed=removed,
            skipped=len(skipped),
            error=" ".join(errors) or None,
        )

    def _public(self, error: Exception) -> str:
        """Return a message without the paths of folders, which stay private."""
        message = str(error)
        for source in self._sources:
            for folder in {str(source), os.path.realpath(source)}:
                message = message.replace(folder, source.name)
        if not isinstance(error, TranshashError) or re.search(r"(?<![\w.])[/\\]", message):
            _log.warning("Sync: %s", error)
            return "A source cannot be synced. See the server log for the reason."
        return message


def _result(
    added: int = 0,
    updated: int = 0,
    unchanged: int = 0,
    removed: int = 0,
    skipped: int = 0,
    error: str | None = None,
) -> SyncResult:
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return SyncResult(
        added=added, updated=updated, unchanged=unchanged, removed=removed, skipped=skipped,
        error=error, finished=finished,
    )  # fmt: skip


def _state_of(source: Path) -> bytes:
    """Return a digest of names, sizes and times of a file or of all files in a folder."""
    digest = hashlib.blake2b(digest_size=16)
    for path in [
        source,
        *(Path(root, name) for root, _, names in os.walk(source) for name in names),
    ]:
        try:
            status = path.stat()
            line = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\n"
        except OSError as error:
            line = f"{path}\0{error.errno}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.digest()
