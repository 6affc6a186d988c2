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
from transhash.data.relation import Rows
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
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
from transhash.training.split_data import LabeledFeatures, SplitData

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

    def extract_training(
        self,
        training: TrainingSet,
        features: FineTunedFeatures,
        track: Track = no_progress,
        world: World = SINGLE_PROCESS,
    ) -> TrainingSet:
        """Return the training set with features of the fine-tuned backbone."""
        target = self.target_images
        return replace(
            training,
            images=_extract(features, self.images, track, world),
            target_images=None if target is None else _extract(features, target, track, world),
        )

    def extract_held_out(
        self,
        held_out: AuxiliarySet,
        features: FineTunedFeatures,
        track: Track = no_progress,
        world: World = SINGLE_PROCESS,
    ) -> AuxiliarySet:
        """Return the held-out items with features of the fine-tuned backbone."""
        assert self.held_out is not None
        images = _extract(features, self.held_out, track, world)
        return AuxiliarySet(images, held_out.texts, held_out.relation)


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
    rows, images, test = (
        benchmark.split(split_seed),
        split_images(benchmark, split_seed),
        split.test,
    )

    def extract(part: LabeledFeatures, image_rows: Rows) -> LabeledFeatures:
        return part._replace(features=_extract(features, benchmark.images.take(image_rows), track))

    return replace(
        split,
        training=images.extract_training(split.training, features, track),
        held_out=images.extract_held_out(split.held_out, features, track),
        test=replace(
            test,
            query_images=extract(test.query_images, rows.query_images),
            database_images=extract(test.database_images, rows.database_images),
        ),
    )


def _extract(
    features: FineTunedFeatures, images: Images, track: Track, world: World = SINGLE_PROCESS
) -> Features:
    if not len(images):
        return features.extract(np.empty((0, features.size, features.size, 3), np.uint8))
    files = replace(images, features=None)  # not the frozen backbone's rows
    return world.local_main_process_first(lambda: extract_readable(features, files, track)[0])
