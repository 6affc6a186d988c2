"""Fine-tuning the image backbone of a run or of a benchmark split."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from transhash.data.benchmark import Benchmark
from transhash.data.collection import Images
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.features import BACKBONE_FILE
from transhash.features.backbone import Backbone, FineTunedFeatures
from transhash.features.images import ImageFeatures
from transhash.features.stream import extract_readable
from transhash.hashers import Hasher, find_method, make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune, fine_tuning_name
from transhash.hashers.fine_tuning.loop import TimeBudget
from transhash.hashers.world import SINGLE_PROCESS, World
from transhash.progress import Track, no_progress
from transhash.storage import write_json
from transhash.training.split_data import SplitData

FINE_TUNING_FOLDER = "fine-tuning"  # in a run folder: metrics, checkpoint and record
_RECORD = "fine_tuning.json"


@dataclass(frozen=True)
class FineTuningRequest:
    """Settings of a fine-tuning and its teacher, which is not fitted yet."""

    settings: FineTuning
    teacher: Hasher
    teacher_method: str

    @classmethod
    def from_names(
        cls, teacher: str, teacher_settings: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> FineTuningRequest:
        available = FineTuning().settings()
        for name in settings:
            if name not in available:
                raise DataError(
                    f"Fine-tuning has no setting {name!r}. "
                    f"Available: {', '.join(sorted(available))}."
                )
        method = find_method(teacher).name
        return cls(FineTuning(**settings), make_hasher(method, **teacher_settings), method)

    @classmethod
    def from_hasher(
        cls, hasher: Hasher, method: str, settings: Mapping[str, Any], teacher: str | None = None
    ) -> FineTuningRequest:
        """Return a request taught by the method itself, with its settings, or by `teacher`."""
        teacher_settings = hasher.settings()
        name = find_method(teacher or method).name
        if name != method:
            shared = {"bits", "seed", "device"} & set(find_method(name).settings())
            teacher_settings = {k: v for k, v in teacher_settings.items() if k in shared}
        return cls.from_names(name, teacher_settings, settings)


@dataclass(frozen=True)
class TrainingImages:
    """The images of a training set, in its order."""

    images: Images
    target_images: Images | None = None
    held_out: Images | None = None  # auxiliary images outside the training set


def require_backbone(features: ImageFeatures | None) -> Backbone:
    """Return `features` if they are a backbone that can be fine-tuned."""
    if features is None:
        raise DataError("Precomputed image features cannot be fine-tuned. Pass the image files.")
    if not isinstance(features, Backbone):
        raise DataError(
            f"{features.name} cannot be fine-tuned. "
            "Use --features efficientnet-lite0 or efficientnet-lite2."
        )
    return features


def fine_tune_backbone(
    request: FineTuningRequest,
    training: TrainingSet,
    images: TrainingImages,
    features: ImageFeatures | None,
    folder: Path,
    *,
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> FineTunedFeatures:
    """Return the fine-tuned backbone in `folder`; train it first unless it is finished."""
    backbone = require_backbone(features)
    name = fine_tuning_name(backbone, request.teacher, request.settings, training)
    budget = TimeBudget(folder, name, world)
    if not (budget.digest and (folder / BACKBONE_FILE).exists()):
        start = time.perf_counter()
        if world.rank == 0:  # `fine_tune` broadcasts the teacher's targets
            request.teacher.fit(training, track=track)
        target = images.target_images
        tuned = fine_tune(
            backbone, images.images.items, [] if target is None else target.items,
            training, request.teacher, request.settings, folder=folder, track=track, world=world,
        )  # fmt: skip
        if world.rank == 0:
            record = {
                "name": name,
                "backbone": backbone.name,
                "digest": tuned.digest,
                "teacher": request.teacher_method,
                "teacher_settings": request.teacher.settings(),
                "settings": request.settings.settings(),
                "steps": TimeBudget(folder, name, SINGLE_PROCESS).steps,
                "seconds": round(time.perf_counter() - start, 1),
            }
            write_json(folder / _RECORD, record)
        world.barrier()
    return FineTunedFeatures.load(folder, backbone)


def delete_backbone(run: Path) -> None:
    """Delete the backbone below fine-tuning/ once the run folder has its own copy."""
    (run / FINE_TUNING_FOLDER / BACKBONE_FILE).unlink(missing_ok=True)


def split_images(benchmark: Benchmark, split_seed: int) -> TrainingImages:
    """Return the images of the training set that `build_split` returns for that seed."""
    rows = benchmark.split(split_seed)
    return TrainingImages(
        benchmark.auxiliary_images.take(rows.auxiliary_images),
        benchmark.images.take(rows.target_images).without_labels(),
        benchmark.auxiliary_images.take(rows.held_out_images),
    )


def with_fine_tuned_images(
    split: SplitData,
    benchmark: Benchmark,
    split_seed: int,
    features: FineTunedFeatures,
    track: Track = no_progress,
) -> SplitData:
    """Return the split with all image features from the fine-tuned backbone."""
    rows = benchmark.split(split_seed)
    auxiliary, target = benchmark.auxiliary_images, benchmark.images
    parts = (
        auxiliary.take(rows.auxiliary_images),
        target.take(rows.target_images),
        auxiliary.take(rows.held_out_images),
        target.take(rows.query_images),
        target.take(rows.database_images),
    )
    return split.replace_images(*(extract_images(features, part, track) for part in parts))


def extract_images(
    features: FineTunedFeatures, images: Images, track: Track, world: World = SINGLE_PROCESS
) -> Features:
    """Return features of the fine-tuned backbone, whatever features the images have."""
    if not len(images):
        return features.extract(np.empty((0, features.size, features.size, 3), np.uint8))
    files = replace(images, features=None)
    return world.local_main_process_first(lambda: extract_readable(features, files, track)[0])
