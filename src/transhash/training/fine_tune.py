"""Fine-tuning a run's backbone: teach it, keep it, and read the pictures anew with it."""

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
from transhash.hashers import Hasher, find_method, make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune, fine_tuning_name
from transhash.hashers.fine_tuning.loop import TimeBudget
from transhash.hashers.world import SINGLE_PROCESS, World
from transhash.model.encoder import extract_readable
from transhash.progress import Track, no_progress
from transhash.storage import write_json
from transhash.training.split_data import LabeledFeatures, SplitData, TestSet

_FOLDER = "fine-tuning"  # in a run: metrics, checkpoint, and what it was
_RECORD = "tuning.json"


@dataclass(frozen=True)
class FineTuningRequest:
    """Settings of a fine-tuning, and the method that teaches, not yet fitted."""

    settings: FineTuning
    teacher: Hasher
    method: str  # the teacher's name

    @classmethod
    def of(
        cls, method: str, teacher: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> FineTuningRequest:
        """From names and settings; what is not known is refused by its name."""
        known = FineTuning().settings()
        for name in settings:
            if name not in known:
                raise DataError(
                    f"fine-tuning has no setting {name!r}; it has {', '.join(sorted(known))}"
                )
        name = find_method(method).name
        return cls(FineTuning(**settings), make_hasher(name, **teacher), name)


def tuning_request(
    hasher: Hasher, method: str, settings: Mapping[str, Any], teacher: str | None = None
) -> FineTuningRequest:
    """For a run of that method: taught by itself with its own settings, or by another one."""
    own = hasher.settings()
    name = find_method(teacher or method).name
    if name != method:
        shared = ("bits", "seed", "device")
        known = find_method(name).settings()
        own = {one: own[one] for one in shared if one in own and one in known}
    return FineTuningRequest.of(name, own, settings)


@dataclass(frozen=True)
class TrainingImages:
    """The images that a training set was made of, in its order."""

    images: Images
    target_images: Images | None = None
    held_out: Images | None = None  # of auxiliary items outside of it

    def held_out_as_read(
        self,
        held_out: AuxiliarySet,
        tuned: FineTunedFeatures,
        track: Track,
        world: World = SINGLE_PROCESS,
    ) -> AuxiliarySet:
        """Held-out items with images as the tuned backbone reads them."""
        images = self.held_out
        assert images is not None  # who holds items out has their pictures
        rows = world.local_main_process_first(lambda: _rows(tuned, images, track))
        return AuxiliarySet(rows, held_out.texts, held_out.relation)


def require_backbone(features: ImageFeatures | None) -> Backbone:
    """What can be trained further."""
    if features is None:
        raise DataError("precomputed image features cannot be fine-tuned; give the image files")
    if not isinstance(features, Backbone):
        raise DataError(
            f"{features.name} is no backbone that can be fine-tuned; use --features "
            "efficientnet-lite0 or efficientnet-lite2"
        )
    return features


def fine_tune_run(
    request: FineTuningRequest,
    training: TrainingSet,
    pictures: TrainingImages,
    features: ImageFeatures | None,
    run: Path,
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> tuple[TrainingSet, FineTunedFeatures]:
    """What a run learns from once its backbone is fine-tuned, and that backbone."""
    place = run / _FOLDER
    tuned = tuned_features(request, training, pictures, features, place, track=track, world=world)
    return with_tuned_images(training, pictures, tuned, track, world), tuned


def tuned_features(
    request: FineTuningRequest,
    training: TrainingSet,
    pictures: TrainingImages,
    features: ImageFeatures | None,
    place: Path,
    *,
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> FineTunedFeatures:
    """The fine-tuned backbone: the one that is kept in `place`, or taught now and kept there."""
    backbone = require_backbone(features)
    name = fine_tuning_name(backbone, request.teacher, request.settings, training)
    plan = TimeBudget(place, name, world)
    if not (plan.finished and (place / BACKBONE_FILE).exists()):
        start = time.perf_counter()
        if world.rank == 0:  # the others get what it says
            request.teacher.fit(training, track=track)
        target = pictures.target_images
        tuned = fine_tune(
            backbone, pictures.images.items, [] if target is None else target.items,
            training, request.teacher, request.settings, folder=place, track=track, world=world,
        )  # fmt: skip
        if world.rank == 0:
            about = {
                "name": name,
                "backbone": backbone.name,
                "digest": tuned.digest,
                "teacher": request.method,
                "taught": request.teacher.settings(),
                "settings": request.settings.settings(),
                "steps": TimeBudget(place, name, SINGLE_PROCESS).steps,
                "seconds": round(time.perf_counter() - start, 1),
            }
            write_json(place / _RECORD, about)
        world.barrier()
    return FineTunedFeatures.load(place, backbone)


def delete_backbone(run: Path) -> None:
    """Once it stands in the run itself; how it was come by stays."""
    (run / _FOLDER / BACKBONE_FILE).unlink(missing_ok=True)


def with_tuned_images(
    training: TrainingSet,
    pictures: TrainingImages,
    tuned: FineTunedFeatures,
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> TrainingSet:
    """The same items, images as the tuned backbone reads them."""
    target = pictures.target_images
    return replace(
        training,
        images=world.local_main_process_first(lambda: _rows(tuned, pictures.images, track)),
        target_images=None
        if target is None
        else world.local_main_process_first(lambda: _rows(tuned, target, track)),
    )


def split_images(benchmark: Benchmark, split_seed: int) -> TrainingImages:
    """Of the training set that `build_split` makes."""
    split = benchmark.split(split_seed)
    return TrainingImages(
        benchmark.auxiliary_images.take(split.auxiliary_images),
        benchmark.images.take(split.target_images).without_labels(),
        benchmark.auxiliary_images.take(split.held_out_images),
    )


def with_fine_tuned_images(
    task: SplitData,
    benchmark: Benchmark,
    split_seed: int,
    tuned: FineTunedFeatures,
    track: Track = no_progress,
) -> SplitData:
    """A split with all its images as the tuned backbone reads them; texts stay."""
    split, target = benchmark.split(split_seed), task.target
    pictures = split_images(benchmark, split_seed)

    def scored(where: Rows, part: LabeledFeatures) -> LabeledFeatures:
        return LabeledFeatures(_rows(tuned, benchmark.images.take(where), track), part.labels)

    return replace(
        task,
        training=with_tuned_images(task.training, pictures, tuned, track),
        held_out=pictures.held_out_as_read(task.held_out, tuned, track),
        target=TestSet(
            scored(split.query_images, target.query_images),
            target.query_texts,
            scored(split.database_images, target.database_images),
            target.database_texts,
        ),
    )


def _rows(tuned: FineTunedFeatures, images: Images, track: Track) -> Features:
    if not len(images):
        return tuned.extract(np.empty((0, tuned.size, tuned.size, 3), np.uint8))
    return extract_readable(tuned, replace(images, features=None), track)[0]
