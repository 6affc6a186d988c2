"""The loop over cells: in this process, or in several that share nothing but files."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from transhash.data.benchmark import Benchmark
from transhash.errors import DataError
from transhash.experiments.cells import run_cell
from transhash.experiments.live import Board
from transhash.experiments.plan import Cell, Plan, fingerprint, read_plan
from transhash.experiments.results import Results, Row, cell_of
from transhash.experiments.sources import open_benchmark
from transhash.features.image import EfficientNetLite0, ImageFeatures
from transhash.hashers.base import Setting
from transhash.progress import bar, silent
from transhash.runs.task import Task, build_task, with_image_features
from transhash.storage import WriterLock

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_experiment(
    file: Path,
    root: Path | None,
    out: Path,
    jobs: int = 1,
    *,
    resume: bool = True,
    console: Console | None = None,
    features: ImageFeatures | None = None,
) -> Path:
    """The path of results.jsonl, with a line for every cell of the plan.

    Images become vectors by `features`, frozen EfficientNet-Lite0 unless given, the same for every
    method. Cells already there are not run again; `resume=False` starts over and puts the older
    results aside, under a number. A cell that fails is listed in failures.jsonl and named by the
    DataError raised at the end; the others are kept, and the next run tries it again.
    """
    if jobs < 1:
        raise DataError(f"jobs must be 1 or more, got {jobs}")
    console = console or Console(stderr=True)
    plan = read_plan(file)
    track = bar if console.is_terminal else silent
    lock = WriterLock(out)
    try:
        if not resume:
            _put_aside(out / "results.jsonl")
        benchmark, data = open_benchmark(plan, root, track)
        results = Results(out)
        shared = {
            "benchmark": benchmark.name,
            "data": data,
            "sizes": asdict(benchmark.sizes),
            "tune": plan.trials,
        }
        results.check(shared, {method: plan.settings_of(method) for method in plan.methods})
        shutil.copyfile(file, out / "experiment.toml")
        done = {cell_of(row) for row in results.rows}
        todo = [cell for cell in plan.cells() if cell not in done]
        (out / "failures.jsonl").unlink(missing_ok=True)
        if todo:
            if not console.is_terminal:  # where no bar shows that something is going on
                console.print(f"{benchmark.name}: {len(todo)} cells to run; reading the images")
            frozen = features or EfficientNetLite0()
            benchmark, problems = with_image_features(benchmark, frozen, track)
            if problems:
                console.print(f"{len(problems)} images cannot be read; first: {problems[0].reason}")
            _run(plan, todo, benchmark, shared, results, out, jobs, console)
    finally:
        lock.release()
    return results.path


def _run(
    plan: Plan,
    todo: list[Cell],
    benchmark: Benchmark,
    shared: dict[str, Any],
    results: Results,
    out: Path,
    jobs: int,
    console: Console,
) -> None:
    board = Board(plan, benchmark.name, results.rows, jobs, console)
    failed: list[tuple[Cell, str]] = []
    cells = _in_processes if jobs > 1 else _in_turn
    with board.show():
        for cell, outcome in cells(plan, todo, benchmark, out, jobs, board):
            if isinstance(outcome, BaseException):
                failed.append((cell, str(outcome)))
                _note_failure(out, cell, outcome)
                board.finish(cell, None, str(outcome))
                continue
            row = {"benchmark": benchmark.name, **outcome, "sizes": shared["sizes"]}
            given = plan.settings_of(cell.method)
            row |= {"shared": shared, "given_settings": given}
            row["settings_hash"] = fingerprint([shared, given])
            results.append(row)
            board.finish(cell, row)
    if failed:
        cell, reason = failed[0]
        raise DataError(
            f"{len(failed)} of {len(todo)} cells failed, first {cell}: {reason}. The finished ones "
            f"are kept; see {out / 'failures.jsonl'}, then run the same command again"
        )


Outcome = tuple[Cell, Row | BaseException]


def _in_turn(
    plan: Plan, todo: list[Cell], benchmark: Benchmark, out: Path, jobs: int, board: Board
) -> Iterator[Outcome]:
    """One after the other, the split of a seed made once."""
    task: tuple[int, Task] | None = None
    for cell in todo:
        board.begin(cell)
        try:
            if task is None or task[0] != cell.seed:
                board.note = f"splitting by seed {cell.seed}"
                task = cell.seed, build_task(benchmark, cell.seed)
            settings, folder = plan.settings_of(cell.method), _folder(out, cell)
            row = run_cell(cell, task[1], settings, plan.trials, folder=folder, track=board.track)
        except Exception as error:  # a fault of one cell must not cost the others
            yield cell, error
        else:
            yield cell, row


def _in_processes(
    plan: Plan, todo: list[Cell], benchmark: Benchmark, out: Path, jobs: int, board: Board
) -> Iterator[Outcome]:
    """`jobs` cells at a time; each process holds the benchmark and makes a seed's split once."""
    threads = max(1, (os.cpu_count() or jobs) // jobs)
    waiting = iter(todo)
    running: dict[Future[Row], Cell] = {}
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with (
        _few_threads(threads),
        ProcessPoolExecutor(jobs, spawn, initializer=_start, initargs=(threads, benchmark)) as pool,
    ):
        try:
            while True:
                while len(running) < jobs and (cell := next(waiting, None)) is not None:
                    settings, place = plan.settings_of(cell.method), _folder(out, cell)
                    board.begin(cell)
                    future = pool.submit(_work, cell, settings, plan.trials, place, threads)
                    running[future] = cell
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell, error = running.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise DataError(
                            f"a process was killed, perhaps for lack of memory, near {cell}; what "
                            "is finished is kept: run the same command with fewer --jobs"
                        )
                    yield cell, error or future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_benchmark: Benchmark | None = None  # of a worker process
_last: tuple[int, Task] | None = None  # the split it used last


def _start(threads: int, benchmark: Benchmark) -> None:
    """In a new process: its share of the processors, and no life after its parent's."""
    global _benchmark
    _benchmark = benchmark
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # the parent was killed: nobody reads what this process computes

    threading.Thread(target=watch, daemon=True).start()


def _work(cell: Cell, settings: Setting, trials: int, folder: Path | None, threads: int) -> Row:
    global _last
    assert _benchmark is not None
    if _last is None or _last[0] != cell.seed:
        _last = cell.seed, build_task(_benchmark, cell.seed)
    return run_cell(cell, _last[1], settings, trials, folder=folder, workers=threads)


@contextmanager
def _few_threads(threads: int) -> Iterator[None]:
    """For the processes started inside: NumPy reads these once, when it is first imported."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _folder(out: Path, cell: Cell) -> Path:
    """Where a deep method keeps the losses of its fit, for the report's training curves."""
    return out / "training" / f"{cell.method}-{cell.bits}-{cell.seed}"


def _note_failure(out: Path, cell: Cell, error: BaseException) -> None:
    row = {**asdict(cell), "error": str(error), "trace": traceback.format_exception(error)}
    with (out / "failures.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _put_aside(path: Path) -> None:
    if path.exists():
        number = 1
        while path.with_name(f"results-{number}.jsonl").exists():
            number += 1
        path.rename(path.with_name(f"results-{number}.jsonl"))
