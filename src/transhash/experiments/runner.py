"""Running the cells of an experiment, in this process or in several."""

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
from threadpoolctl import threadpool_limits

from transhash.data.benchmark import Benchmark, load_benchmark, shrink_sizes
from transhash.datasets.prepare import prepare_folder
from transhash.datasets.synthetic import make_synthetic
from transhash.errors import DataError
from transhash.experiments.cells import run_cell
from transhash.experiments.plan import Cell, Plan, read_plan
from transhash.experiments.results import Results, Row, row_cell
from transhash.features import LITE0
from transhash.features.backbone import FineTunedFeatures
from transhash.features.cache import cache_folder
from transhash.features.images import ImageFeatures, image_features
from transhash.features.pretrained import PretrainedFeatures
from transhash.hashers import make_hasher, make_method
from transhash.hashers.base import Setting
from transhash.progress import Track, no_progress, progress_bar
from transhash.storage import WriterLock, read_json
from transhash.threads import cpu_count
from transhash.training.fine_tune import (
    fine_tune_backbone,
    require_backbone,
    split_images,
    with_fine_tuned_images,
)
from transhash.training.split_data import SplitData, build_split, with_image_features

_PER_CLASS = 100  # synthetic items per class and part
_MAX_CACHED_SPLITS = 4  # of a seed: with and without target items, frozen and fine-tuned


class CellResult(NamedTuple):
    """The row of a cell, or the error it failed with."""

    cell: Cell
    outcome: Row | BaseException
    seconds: float


@dataclass(frozen=True)
class SplitCache:
    """Builds the split of a seed, on frozen features or on those of a fine-tuned backbone.

    There is one backbone per teacher and split, for all methods and code lengths.
    """

    benchmark: Benchmark
    features: ImageFeatures | None  # to fine-tune; None if the plan has no fine-tuning
    out: Path
    text_features: str | None = None
    image_components: int | None = None

    def __call__(self, seed: int, teacher: str | None, uses_target: bool) -> SplitData:
        split = build_split(
            self.benchmark, seed, uses_target=uses_target, texts=self.text_features,
            image_components=self.image_components,
        )  # fmt: skip
        if teacher is None:
            return split
        backbone = require_backbone(self.features)
        features = FineTunedFeatures.load(self._backbone_folder(teacher, seed), backbone)
        return with_fine_tuned_images(split, self.benchmark, seed, features)

    def make_backbone(
        self, plan: Plan, teacher: str, seed: int, track: Track = no_progress
    ) -> None:
        """Train a backbone unless it is finished; a killed training resumes."""
        request = plan.fine_tuning[teacher]
        settings = {**request.teacher.settings(), "seed": seed}
        request = replace(
            request,
            teacher=make_hasher(request.teacher_method, **settings),
            settings=replace(request.settings, seed=seed),
        )
        split = build_split(
            self.benchmark, seed, uses_target=request.teacher.uses_target,
            texts=self.text_features,
        )  # fmt: skip
        features = fine_tune_backbone(
            request, split.training, split_images(self.benchmark, seed), self.features,
            self._backbone_folder(teacher, seed), track=track,
        )  # fmt: skip
        with_fine_tuned_images(split, self.benchmark, seed, features, track)  # fills the cache

    def _backbone_folder(self, teacher: str, seed: int) -> Path:
        return self.out / "backbones" / f"{teacher}-{seed}"


def open_benchmark(
    plan: Plan, root: Path | None, track: Track = no_progress
) -> tuple[Benchmark, str]:
    """Return the benchmark with the sizes of the plan, and a fingerprint of its files.

    Other sizes are the paper's, or smaller where the data do not suffice.
    """
    folder = _benchmark_folder(plan, root, track)
    benchmark = load_benchmark(folder)
    name = plan.benchmark if plan.benchmark != "folder" else benchmark.name
    sizes = replace(shrink_sizes(benchmark), **plan.sizes)
    benchmark = replace(benchmark, name=name, sizes=sizes, supervision=plan.supervision)
    return benchmark, _fingerprint(folder)


def make_synthetic_cached(per_class: int, seed: int = 0, track: Track = no_progress) -> Path:
    """Return the folder of the synthetic data set in the cache; create it if missing."""
    folder = cache_folder() / f"synthetic-{seed}-{per_class}"
    return make_synthetic(folder, seed=seed, per_class=per_class, track=track)


def _benchmark_folder(plan: Plan, root: Path | None, track: Track) -> Path:
    name = plan.benchmark
    if name == "synthetic":
        if root is not None:
            raise DataError('benchmark = "synthetic" generates its own data. Remove --root.')
        return make_synthetic_cached(plan.sizes.get("per_class", _PER_CLASS), track=track)
    if root is None:
        raise DataError(f'benchmark = "{name}" needs data. Pass a folder with --root.')
    if name == "folder":
        return root
    if (root / "benchmark.json").is_file():
        protocol = read_json(root / "benchmark.json").get("protocol")
        if protocol != name:
            raise DataError(
                f"{root} was prepared for {protocol}, but the experiment is for {name}. "
                "Pass another --root."
            )
        return root
    if (root / "auxiliary.tsv").is_file():
        raise DataError(
            f"{root} has no benchmark.json, so its protocol is unknown. "
            'Use benchmark = "folder", or a folder written by `transhash prepare`.'
        )
    digest = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]
    prepared = cache_folder() / "prepared" / f"{name}-{digest}"
    if not (prepared / "benchmark.json").is_file():
        prepare_folder(name, root=root, out=prepared, track=track)
    return prepared


def _fingerprint(folder: Path) -> str:
    """Hash the lists of items: rows from other data would not be comparable."""
    digest = hashlib.sha256()
    for name in ("auxiliary.tsv", "images.tsv", "texts.tsv", "dataset.json"):
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def run_experiment(
    file: Path,
    root: Path | None,
    out: Path,
    jobs: int = 1,
    *,
    console: Console | None = None,
    features: ImageFeatures | None = None,
    device: str = "cpu",
) -> Path:
    """Run every cell of the plan that results.jsonl does not have yet; return that file.

    `features` replace the image features of the plan. A cell that fails is written to
    failures.jsonl and named in the DataError raised at the end; the next run tries it again.
    """
    if jobs < 1:
        raise DataError(f"jobs must be 1 or more, got {jobs}. Use a positive number.")
    console = console or Console(stderr=True)
    plan = read_plan(file)
    lock = WriterLock(out)
    try:
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
    """Run every cell of the plan that is not among the results yet."""
    out = results.path.parent
    finished = {row_cell(row) for row in results.rows}
    cells = [cell for cell in plan.cells() if cell not in finished]
    (out / "failures.jsonl").unlink(missing_ok=True)
    if not cells:
        return
    if not console.is_terminal:  # there is no progress bar
        console.print(f"{benchmark.name}: {len(cells)} cells to run; reading images")
    benchmark, problems = with_image_features(benchmark, features, progress_bar)
    if problems:
        console.print(f"Skipped {len(problems)} unreadable images; first: {problems[0].reason}")
    splits = SplitCache(
        benchmark, features if plan.fine_tuning else None, out, plan.text_features,
        plan.image_components,
    )  # fmt: skip
    errors = _make_backbones(plan, cells, splits, jobs)
    blocked = {cell: error for cell in cells if (error := errors.get((cell.teacher, cell.seed)))}
    runnable = [cell for cell in cells if cell not in blocked]
    run = _run_in_processes if jobs > 1 else _run_serially
    cell_results = chain(
        (CellResult(cell, error, 0.0) for cell, error in blocked.items()),
        run(plan, runnable, splits, jobs),
    )
    failed: list[CellResult] = []
    start, earlier = time.monotonic(), plan.size - len(cells)
    track = progress_bar if console.is_terminal else no_progress  # else one line per cell
    for number, result in enumerate(track(cell_results, "cells", plan.size, start=earlier), 1):
        cell, outcome, seconds = result
        if isinstance(outcome, BaseException):
            failed.append(result)
            _write_failure(out, cell, outcome)
            message = f"failed: {outcome}"
        else:
            results.append(outcome)
            message = "{image_to_text_map:.3f} / {text_to_image_map:.3f}".format_map(outcome)
        remaining = (time.monotonic() - start) / number * (len(cells) - number)
        eta = f", about {timedelta(seconds=round(remaining))} left" if number < len(cells) else ""
        console.print(
            f"{earlier + number}/{plan.size} {cell}: {message} ({seconds:.0f} s{eta})",
            highlight=False,
            markup=False,
        )
    if failed:
        raise DataError(
            f"{len(failed)} of {len(cells)} cells failed, first {failed[0].cell}: "
            f"{str(failed[0].outcome).rstrip('.')}. Finished cells are saved. "
            f"See {out / 'failures.jsonl'}, then run the same command again."
        )


def _make_backbones(
    plan: Plan, cells: list[Cell], splits: SplitCache, jobs: int
) -> dict[tuple[str | None, int], BaseException]:
    """Train the backbones that the cells need; return errors by teacher and seed."""
    keys = list(dict.fromkeys((cell.teacher, cell.seed) for cell in cells if cell.teacher))
    errors: dict[tuple[str | None, int], BaseException] = {}
    if jobs == 1 or len(keys) < 2:
        for teacher, seed in keys:
            try:
                splits.make_backbone(plan, teacher, seed, progress_bar)
            except Exception as error:  # do not stop the others
                errors[teacher, seed] = error
        return errors
    with _processes(min(jobs, len(keys)), splits) as pool:
        futures = {key: pool.submit(_make_backbone_in_worker, plan, *key) for key in keys}
        for key, future in progress_bar(futures.items(), "backbones", total=len(futures)):
            reason = future.exception()
            if reason is not None:
                errors[key] = _crash_message(reason, "the backbone of {}, seed {}".format(*key))
    return errors


def _crash_message(error: BaseException, task: object) -> BaseException:
    """Return the error of a future; stop the experiment if its process was killed."""
    if isinstance(error, BrokenProcessPool):
        raise DataError(
            f"A process was killed near {task}, probably for lack of memory. Finished cells are "
            "saved. Run the same command with fewer --jobs."
        )
    return error


def _run_serially(
    plan: Plan, cells: list[Cell], splits: SplitCache, jobs: int
) -> Iterator[CellResult]:
    cached_split = lru_cache(maxsize=_MAX_CACHED_SPLITS)(splits)
    for cell in cells:
        start = time.monotonic()
        outcome: Row | BaseException
        try:
            settings = plan.method_settings(cell.method)
            split = cached_split(cell.seed, cell.teacher, _uses_target(cell, settings))
            folder = _metrics_folder(splits.out, cell)
            outcome = run_cell(cell, split, settings, plan.trials, folder=folder)
        except Exception as error:  # do not stop the others
            outcome = error
        yield CellResult(cell, outcome, time.monotonic() - start)


def _run_in_processes(
    plan: Plan, cells: list[Cell], splits: SplitCache, jobs: int
) -> Iterator[CellResult]:
    """Run `jobs` cells at a time; each process has the benchmark and builds a split once."""
    threads, waiting = _thread_count(jobs), iter(cells)
    running: dict[Future[Row], tuple[Cell, float]] = {}
    with _processes(jobs, splits) as pool:
        while True:
            while len(running) < jobs and (cell := next(waiting, None)) is not None:
                settings = plan.method_settings(cell.method)
                folder = _metrics_folder(splits.out, cell)
                future = pool.submit(
                    _run_cell_in_worker, cell, settings, plan.trials, folder, threads
                )
                running[future] = cell, time.monotonic()
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                (cell, start), error = running.pop(future), future.exception()
                outcome = _crash_message(error, cell) if error else future.result()
                yield CellResult(cell, outcome, time.monotonic() - start)


@contextmanager
def _processes(jobs: int, splits: SplitCache) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes that share the CPU cores; cancel waiting tasks at the end."""
    threads = _thread_count(jobs)
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(jobs, spawn, _start_worker, (threads, splits)) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _thread_count(jobs: int) -> int:
    return max(1, cpu_count() // jobs)


_splits: SplitCache | None = None  # of a worker process
_cached_split: Callable[..., SplitData] | None = None


def _start_worker(threads: int, splits: SplitCache) -> None:
    """Limit the threads of a new process, and let it end with its parent."""
    global _splits, _cached_split
    _splits, _cached_split = splits, lru_cache(maxsize=_MAX_CACHED_SPLITS)(splits)
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # the parent was killed: nobody reads the results

    threading.Thread(target=watch, daemon=True).start()


def _run_cell_in_worker(
    cell: Cell, settings: Setting, trials: int, folder: Path | None, threads: int
) -> Row:
    assert _cached_split is not None
    split = _cached_split(cell.seed, cell.teacher, _uses_target(cell, settings))
    return run_cell(cell, split, settings, trials, folder=folder, workers=threads)


def _make_backbone_in_worker(plan: Plan, teacher: str, seed: int) -> None:
    assert _splits is not None
    _splits.make_backbone(plan, teacher, seed)


def _uses_target(cell: Cell, settings: Setting) -> bool:
    """Whether text features may be fitted on target texts: only if the method uses them."""
    return make_method(cell.method, bits=cell.bits, seed=cell.seed, **settings).uses_target


def _metrics_folder(out: Path, cell: Cell) -> Path:
    """Return the folder for the losses of a deep method, which the report plots."""
    return out / "training" / cell.folder_name


def _write_failure(out: Path, cell: Cell, error: BaseException) -> None:
    row = {**asdict(cell), "error": str(error), "trace": traceback.format_exception(error)}
    with (out / "failures.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
