"""The loop over cells: in this process, or in several that share nothing but files."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from multiprocessing import connection
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from transhash.data.benchmark import Benchmark, load_benchmark, shrink_sizes
from transhash.datasets.prepare import prepare_folder
from transhash.datasets.synthetic import make_synthetic
from transhash.errors import DataError
from transhash.experiments.cells import run_cell
from transhash.experiments.plan import Cell, Plan, read_plan
from transhash.experiments.results import Results, Row, cell_of
from transhash.features.backbone import FineTunedFeatures
from transhash.features.cache import cache_folder
from transhash.features.efficientnet import LITE0
from transhash.features.images import ImageFeatures, image_features
from transhash.features.pretrained import PretrainedFeatures
from transhash.hashers import make_hasher, make_method
from transhash.hashers.base import Setting
from transhash.progress import Track, no_progress, progress_bar
from transhash.storage import WriterLock, read_json
from transhash.training.fine_tune import (
    FineTuningRequest,
    require_backbone,
    split_images,
    tuned_features,
    with_fine_tuned_images,
)
from transhash.training.split_data import SplitData, build_split, with_image_features

# Fine-tuned backbones of an experiment: one a teacher and split, for all methods and lengths.


@dataclass(frozen=True)
class SplitCache:
    """The split of a seed, as a method is to see it."""

    benchmark: Benchmark
    features: ImageFeatures | None  # what can be fine-tuned; None: nothing is
    out: Path
    text_features: str | None = None
    image_components: int | None = None

    def __call__(self, seed: int, teacher: str, uses_target: bool) -> SplitData:
        task = build_split(
            self.benchmark, seed, uses_target=uses_target, texts=self.text_features,
            image_components=self.image_components,
        )  # fmt: skip
        if not teacher:
            return task
        tuned = FineTunedFeatures.load(self._place(teacher, seed), require_backbone(self.features))
        return with_fine_tuned_images(task, self.benchmark, seed, tuned)

    def make_backbone(
        self, plan: Plan, teacher: str, seed: int, track: Track = no_progress
    ) -> None:
        """Taught, unless it is there; a killed one is gone on with."""
        request = _seeded(plan.fine_tuning[teacher], seed)
        task = build_split(
            self.benchmark, seed, uses_target=request.teacher.uses_target,
            texts=self.text_features,
        )  # fmt: skip
        tuned = tuned_features(
            request, task.training, split_images(self.benchmark, seed), self.features,
            self._place(teacher, seed), track=track,
        )  # fmt: skip
        with_fine_tuned_images(
            task, self.benchmark, seed, tuned, track
        )  # rows are in the cache from now

    def _place(self, teacher: str, seed: int) -> Path:
        return self.out / "backbones" / f"{teacher}-{seed}"


def _seeded(request: FineTuningRequest, seed: int) -> FineTuningRequest:
    """Split, teacher and fine-tuning of one seed, as methods are."""
    told = {**request.teacher.settings(), "seed": seed}
    teacher = make_hasher(request.method, **told)
    return replace(request, teacher=teacher, settings=replace(request.settings, seed=seed))


# The data an experiment names: a three-part folder, raw public data, or the embedded set.

_PER_CLASS = 100  # embedded items of each class, in each of the three parts


def open_benchmark(
    plan: Plan, root: Path | None, track: Track = no_progress
) -> tuple[Benchmark, str]:
    """The benchmark with the sizes the plan asks for, and a fingerprint of its files.

    Sizes that the plan leaves out are the paper's where they fit and smaller where not.
    """
    folder = _benchmark_folder(plan, root, track)
    benchmark = load_benchmark(folder)
    name = plan.benchmark if plan.benchmark != "folder" else benchmark.name
    sizes = replace(shrink_sizes(benchmark), **plan.sizes)
    taught = replace(benchmark, name=name, sizes=sizes, supervision=plan.supervision)
    return taught, _fingerprint(folder)


def make_synthetic_cached(per_class: int, seed: int = 0, track: Track = no_progress) -> Path:
    """The folder of the embedded data, drawn where they are not there yet."""
    place = cache_folder() / f"drawn-{seed}-{per_class}"
    return make_synthetic(place, seed=seed, per_class=per_class, track=track)


def _benchmark_folder(plan: Plan, root: Path | None, track: Track) -> Path:
    if plan.benchmark == "embedded":
        if root is not None:
            raise DataError('benchmark = "embedded" draws its own data; leave --root out')
        return make_synthetic_cached(plan.sizes.get("per_class", _PER_CLASS), track=track)
    if root is None:
        what = "a three-part folder" if plan.benchmark == "folder" else "prepared or raw data"
        raise DataError(f'benchmark = "{plan.benchmark}" needs --root: {what}')
    if plan.benchmark == "folder":
        return root
    if (root / "benchmark.json").is_file():
        _same_protocol(root, plan.benchmark)
        return root
    if (root / "auxiliary.tsv").is_file():
        raise DataError(
            f"{root} does not say which protocol it follows (it has no benchmark.json); "
            'use benchmark = "folder", or the folder that `transhash prepare` wrote'
        )
    place = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]
    prepared = cache_folder() / "prepared" / f"{plan.benchmark}-{place}"
    if not (prepared / "benchmark.json").is_file():
        prepare_folder(plan.benchmark, root=root, out=prepared, track=track)
    return prepared


def _same_protocol(folder: Path, wanted: str) -> None:
    protocol = read_json(folder / "benchmark.json").get("protocol")
    if protocol != wanted:
        raise DataError(f"{folder} was prepared for {protocol}, the experiment asks for {wanted}")


def _fingerprint(folder: Path) -> str:
    """Of the lists of items: other data in the same run would make its rows incomparable."""
    digest = hashlib.sha256()
    for name in ("auxiliary.tsv", "images.tsv", "texts.tsv", "dataset.json"):
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


_KEPT = 4  # tasks of a seed: with and without target items, frozen and fine-tuned
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
    device: str = "cpu",
) -> Path:
    """The path of results.jsonl, with a line for every cell of the plan.

    Images become vectors by `features`, what the plan names unless given, the same for every
    method. Cells already there are not run again; `resume=False` starts over and puts the older
    results aside, under a number. A cell that fails is listed in failures.jsonl and named by the
    DataError raised at the end; the others are kept, and the next run tries it again.
    """
    if jobs < 1:
        raise DataError(f"jobs must be 1 or more, got {jobs}")
    console = console or Console(stderr=True)
    plan = read_plan(file)
    lock = WriterLock(out)
    try:
        if not resume:
            _archive(out / "results.jsonl")
        benchmark, data = open_benchmark(plan, root, progress_bar)
        features = features or image_features(plan.image_features or LITE0, device)
        model = features.digest if isinstance(features, PretrainedFeatures) else None
        results = Results(out, plan, benchmark, data, model)
        shutil.copyfile(file, out / "experiment.toml")
        run_plan(plan, benchmark, results, jobs, console, features)
    finally:
        lock.release()
    return results.path


def run_plan(
    plan: Plan,
    benchmark: Benchmark,
    results: Results,
    jobs: int,
    console: Console,
    features: ImageFeatures,
) -> None:
    """Every cell of the plan that is not among the results yet."""
    out = results.path.parent
    done = {cell_of(row) for row in results.rows}
    todo = [cell for cell in plan.cells() if cell not in done]
    (out / "failures.jsonl").unlink(missing_ok=True)
    if not todo:
        return
    if not console.is_terminal:  # where no bar shows that something is going on
        console.print(f"{benchmark.name}: {len(todo)} cells to run; reading the images")
    benchmark, problems = with_image_features(benchmark, features, progress_bar)
    if problems:
        console.print(f"{len(problems)} images cannot be read; first: {problems[0].reason}")
    tasks = SplitCache(
        benchmark, features if plan.fine_tuning else None, out, plan.text_features,
        plan.image_components,
    )  # fmt: skip
    reasons = _make_backbones(plan, todo, tasks, jobs)
    without = {cell: why for cell in todo if (why := reasons.get((cell.teacher, cell.seed)))}
    finished = chain(
        (CellResult(cell, why, 0.0) for cell, why in without.items()),
        (_in_processes if jobs > 1 else _run_serially)(
            plan, [cell for cell in todo if cell not in without], tasks, jobs
        ),
    )
    failed: list[CellResult] = []
    start, earlier = time.monotonic(), plan.size - len(todo)
    track = (
        progress_bar if console.is_terminal else no_progress
    )  # else each cell has a line of its own
    for number, one in enumerate(track(finished, "cells", plan.size, start=earlier), 1):
        if isinstance(one.outcome, BaseException):
            failed.append(one)
            _note_failure(out, one.cell, one.outcome)
            said = f"failed: {one.outcome}"
        else:
            results.append(one.outcome)
            said = "{image_to_text_map:.3f} / {text_to_image_map:.3f}".format_map(one.outcome)
        left = (time.monotonic() - start) / number * (len(todo) - number)
        rest = f", about {timedelta(seconds=round(left))} left" if number < len(todo) else ""
        console.print(
            f"{earlier + number}/{plan.size} {one.cell}: {said} ({one.seconds:.0f} s{rest})",
            highlight=False,
            markup=False,
        )
    if failed:
        raise DataError(
            f"{len(failed)} of {len(todo)} cells failed, first {failed[0].cell}: "
            f"{failed[0].outcome}. The finished ones are kept; see {out / 'failures.jsonl'}, then "
            "run the same command again"
        )


def _make_backbones(
    plan: Plan, todo: list[Cell], tasks: SplitCache, jobs: int
) -> dict[tuple[str, int], BaseException]:
    """Those that the cells need; by teacher and seed, why one could not be made."""
    wanted = list(dict.fromkeys((cell.teacher, cell.seed) for cell in todo if cell.teacher))
    failed: dict[tuple[str, int], BaseException] = {}
    if jobs == 1 or len(wanted) < 2:
        for teacher, seed in wanted:
            try:
                tasks.make_backbone(plan, teacher, seed, progress_bar)
            except Exception as error:  # as with cells: the others go on
                failed[teacher, seed] = error
        return failed
    with _processes(min(jobs, len(wanted)), tasks) as pool:
        made = {one: pool.submit(_make_backbone, plan, *one) for one in wanted}
        for one, future in progress_bar(made.items(), "backbones", total=len(made)):
            reason = future.exception()
            if reason is not None:
                failed[one] = _crash_message(reason, "the backbone of {}, seed {}".format(*one))
    return failed


def _crash_message(error: BaseException, near: object) -> BaseException:
    """What a future says, or, if its process is gone, a sentence that ends the experiment."""
    if isinstance(error, BrokenProcessPool):
        raise DataError(
            f"a process was killed, perhaps for lack of memory, near {near}; what is finished is "
            "kept: run the same command with fewer --jobs"
        )
    return error


class CellResult(NamedTuple):
    """A cell, its row or why there is none, and how long it took."""

    cell: Cell
    outcome: Row | BaseException
    seconds: float


def _run_serially(
    plan: Plan, todo: list[Cell], tasks: SplitCache, jobs: int
) -> Iterator[CellResult]:
    """One after the other, the split of a seed made once for each sort of method."""
    task_of = lru_cache(maxsize=_KEPT)(tasks)
    for cell in todo:
        start = time.monotonic()
        outcome: Row | BaseException
        try:
            settings, folder = plan.settings_of(cell.method), _cell_folder(tasks.out, cell)
            task = task_of(cell.seed, cell.teacher, _uses_target(cell, settings))
            outcome = run_cell(cell, task, settings, plan.trials, folder=folder)
        except Exception as error:  # a fault of one cell must not cost the others
            outcome = error
        yield CellResult(cell, outcome, time.monotonic() - start)


def _in_processes(
    plan: Plan, todo: list[Cell], tasks: SplitCache, jobs: int
) -> Iterator[CellResult]:
    """`jobs` cells at a time; each process holds the benchmark and makes a seed's split once."""
    threads, waiting = _threads(jobs), iter(todo)
    running: dict[Future[Row], tuple[Cell, float]] = {}
    with _processes(jobs, tasks) as pool:
        while True:
            while len(running) < jobs and (cell := next(waiting, None)) is not None:
                settings, place = plan.settings_of(cell.method), _cell_folder(tasks.out, cell)
                future = pool.submit(_work, cell, settings, plan.trials, place, threads)
                running[future] = cell, time.monotonic()
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                (cell, start), error = running.pop(future), future.exception()
                outcome = _crash_message(error, cell) if error else future.result()
                yield CellResult(cell, outcome, time.monotonic() - start)


@contextmanager
def _processes(jobs: int, tasks: SplitCache) -> Iterator[ProcessPoolExecutor]:
    """So many, each with its share of the processors; what waits is dropped at the end."""
    threads = _threads(jobs)
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with (
        _few_threads(threads),
        ProcessPoolExecutor(jobs, spawn, initializer=_start, initargs=(threads, tasks)) as pool,
    ):
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _threads(jobs: int) -> int:
    return max(1, (os.cpu_count() or jobs) // jobs)


_tasks: SplitCache | None = None  # of a worker process
_task_of: Callable[..., SplitData] | None = None


def _start(threads: int, tasks: SplitCache) -> None:
    """In a new process: its share of the processors, and no life after its parent's."""
    global _tasks, _task_of
    _tasks, _task_of = tasks, lru_cache(maxsize=_KEPT)(tasks)
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # the parent was killed: nobody reads what this process computes

    threading.Thread(target=watch, daemon=True).start()


def _work(cell: Cell, settings: Setting, trials: int, folder: Path | None, threads: int) -> Row:
    assert _task_of is not None
    task = _task_of(cell.seed, cell.teacher, _uses_target(cell, settings))
    return run_cell(cell, task, settings, trials, folder=folder, workers=threads)


def _make_backbone(plan: Plan, teacher: str, seed: int) -> None:
    assert _tasks is not None
    _tasks.make_backbone(plan, teacher, seed)


def _uses_target(cell: Cell, settings: Setting) -> bool:
    """What a method is kept from seeing, its text features must not be fitted on."""
    return make_method(cell.learner, bits=cell.bits, seed=cell.seed, **settings).uses_target


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


def _cell_folder(out: Path, cell: Cell) -> Path:
    """Where a deep method keeps the losses of its fit, for the report's training curves."""
    return out / "training" / f"{cell.method}-{cell.bits}-{cell.seed}"


def _note_failure(out: Path, cell: Cell, error: BaseException) -> None:
    row = {**asdict(cell), "error": str(error), "trace": traceback.format_exception(error)}
    with (out / "failures.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _archive(path: Path) -> None:
    if path.exists():
        number = 1
        while path.with_name(f"results-{number}.jsonl").exists():
            number += 1
        path.rename(path.with_name(f"results-{number}.jsonl"))
