"""The data an experiment names: a three-part folder, raw public data, or the embedded set."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from transhash.data.benchmark import Benchmark, fitted_sizes, load_benchmark
from transhash.datasets.drawn import draw_dataset
from transhash.datasets.prepare import prepare_folder
from transhash.errors import DataError
from transhash.experiments.plan import Plan
from transhash.features.cache import cache_folder
from transhash.progress import Track, silent
from transhash.storage import read_json

_PER_CLASS = 100  # embedded items of each class, in each of the three parts


def open_benchmark(plan: Plan, root: Path | None, track: Track = silent) -> tuple[Benchmark, str]:
    """The benchmark with the sizes the plan asks for, and a fingerprint of its files.

    Sizes that the plan leaves out are the paper's where they fit and smaller where not.
    """
    folder = _folder(plan, root, track)
    benchmark = load_benchmark(folder)
    name = plan.benchmark if plan.benchmark != "folder" else benchmark.name
    sizes = replace(fitted_sizes(benchmark), **plan.sizes)
    taught = replace(benchmark, name=name, sizes=sizes, taught_by=plan.taught_by)
    return taught, _fingerprint(folder)


def draw_embedded(per_class: int, seed: int = 0, track: Track = silent) -> Path:
    """The folder of the embedded data, drawn where they are not there yet."""
    place = cache_folder() / f"drawn-{seed}-{per_class}"
    return draw_dataset(place, seed=seed, per_class=per_class, track=track)


def _folder(plan: Plan, root: Path | None, track: Track) -> Path:
    if plan.benchmark == "embedded":
        if root is not None:
            raise DataError('benchmark = "embedded" draws its own data; leave --root out')
        return draw_embedded(plan.sizes.get("per_class", _PER_CLASS), track=track)
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
