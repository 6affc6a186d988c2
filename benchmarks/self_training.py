"""Measure self-training: rounds of fine-tuning, each taught by THN on the backbone of the last one.

    python benchmarks/self_training.py FOLDER --device cuda --jobs 6 --out runs/self-training
    python benchmarks/self_training.py FOLDER --set blocks=6 --splits 0 --out ...   # on two cores

Teachers see whole images, the network random crops (weak to strong); pseudo-labels are calibrated
probabilities of relations, and texts, which are nearly always right, keep the images apart. MAP at
32 bits, image -> text / text -> image, mean and deviation over splits, after each round, beside two
criteria that need no target labels (benchmarks/unsupervised_criterion.py); round 0 is the
pretrained backbone. Runs in the output folder are not computed again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import (
    interval_cell,
    maps,
    mean_cell,
    mean_cells,
    save_pixels,
    test_ratios,
    with_features_of,
)
from unsupervised_criterion import score_criteria

from transhash.cli.fit import parse_settings
from transhash.data.benchmark import Benchmark, Supervision
from transhash.features.backbone import Backbone, FineTunedFeatures, Stages
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.storage import write_json
from transhash.training.fine_tune import require_backbone
from transhash.training.split_data import build_split, load_benchmark_features

CRITERIA = ("round trip", "information")


class TunedBackbone(FineTunedFeatures):
    """A fine-tuned backbone that can be fine-tuned further."""

    def trainable(self) -> Stages:
        stages = self.base.trainable()
        arrays = {name: torch.from_numpy(array) for name, array in self.weights.items()}
        stages.load_state_dict(arrays, strict=False)
        return stages


class WorkerData(NamedTuple):
    benchmark: Benchmark
    pixels: list[Path]  # of auxiliary and target images
    options: argparse.Namespace


_worker: list[WorkerData] = []


def _init_worker(data: WorkerData) -> None:
    torch.set_num_threads(1)
    _worker.append(data)


def compute(supervision: Supervision, split: int) -> None:
    """Write MAP in both directions and the criteria after each round."""
    benchmark, files, options = _worker[0]
    benchmark = replace(benchmark, supervision=supervision)
    rows = benchmark.split(split)
    auxiliary, target = (np.load(file, mmap_mode="r") for file in files)
    frozen = data = build_split(benchmark, split)
    backbone: Backbone = require_backbone(image_features(options.features, options.device))
    results: list[list[float]] = []
    for number in range(options.rounds + 1):
        hasher = make_hasher("THN", bits=32, seed=split).fit(data.training)
        criteria = score_criteria(
            hasher, data.training, data.held_out, frozen.training, frozen.held_out
        )
        scores = maps(score_directions(build_directions(hasher, data.test), 1))
        results.append([*scores, *(criteria[name] for name in CRITERIA)])
        write_json(options.out / f"{supervision}-{split}.json", results)
        if number == options.rounds:
            return
        settings = FineTuning(**{"seed": split + 1000 * number, **options.settings})
        features = fine_tune(
            backbone, auxiliary[rows.auxiliary_images], target[rows.target_images],
            data.training, hasher, settings,
        )  # fmt: skip
        data = with_features_of(data, rows, features, files)
        base = backbone.base if isinstance(backbone, TunedBackbone) else backbone
        backbone = TunedBackbone(base, features.weights)


def read_rounds(out: Path, supervision: str, split: int) -> list[list[float]]:
    path = out / f"{supervision}-{split}.json"
    return json.loads(path.read_text()) if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--supervision", nargs="+", default=["labels", "pairs"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--targets", default="all", help="number of target items, or all")
    parser.add_argument("--features", default="efficientnet-lite0", help="image features")
    parser.add_argument("--set", nargs="*", default=[], help="settings of FineTuning")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.settings = parse_settings(options.set)
    backbone = image_features(options.features, options.device)
    benchmark, _ = load_benchmark_features(options.folder, backbone, track=progress_bar)
    first = benchmark.split(options.splits[0])
    database = min(len(first.database_images), len(first.database_texts))
    targets = database if options.targets == "all" else int(options.targets)
    benchmark = replace(benchmark, sizes=replace(benchmark.sizes, target=targets))
    options.out.mkdir(parents=True, exist_ok=True)
    runs = list(product(options.supervision, options.splits))
    todo = [run for run in runs if len(read_rounds(options.out, *run)) <= options.rounds]
    with tempfile.TemporaryDirectory() as scratch:
        size = require_backbone(backbone).size
        files = save_pixels(benchmark, size, options.device, Path(scratch)) if todo else []
        spawn = multiprocessing.get_context("spawn")
        data = WorkerData(benchmark, files, options)
        with ProcessPoolExecutor(options.jobs, spawn, _init_worker, (data,)) as pool:
            futures = [pool.submit(compute, *run) for run in todo]
            for future in progress_bar(as_completed(futures), "runs", total=len(futures)):
                future.result()
    ratios = test_ratios(build_split(benchmark, options.splits[0]).test)
    print(
        f"| supervision | round | I → T / T → I | minus round 1, points | {' | '.join(CRITERIA)} |"
    )
    print(f"|---|---|---|---|{'---|' * len(CRITERIA)}")
    for kind in options.supervision:
        rounds = [read_rounds(options.out, kind, split) for split in options.splits]
        values = np.array([one[: options.rounds + 1] for one in rounds])
        for number in range(options.rounds + 1):
            scores = values[:, number]
            gains = 100 * (scores - values[:, min(1, options.rounds)])
            difference = " / ".join(interval_cell(gains[:, i], ratios[i]) for i in (0, 1))
            criteria = " | ".join(mean_cells(scores[:, 2:].tolist()))
            mean = mean_cell(scores[:, :2].tolist())
            print(f"| {kind} | {number} | {mean} | {difference} | {criteria} |", flush=True)


if __name__ == "__main__":
    main()
