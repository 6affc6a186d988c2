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
from transhash.data.training_set import Features, Related, TrainingSet
from transhash.errors import DataError
from transhash.features import BACKBONE_FILE
from transhash.features.backbone import Backbone, TunedFeatures
from transhash.features.images import ImageFeatures
from transhash.hashers import Hasher, find_method, make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune, tuning_name
from transhash.hashers.fine_tuning.loop import TuningPlan
from transhash.hashers.world import ALONE, World
from transhash.model.encoder import image_rows
from transhash.progress import Track, silent
from transhash.storage import write_json
from transhash.training.split_data import LabelledRows, Target, Task

_FOLDER = "fine-tuning"  # in a run: metrics, checkpoint, and what it was
_RECORD = "tuning.json"


@dataclass(frozen=True)
class TuningRequest:
    """Settings of a fine-tuning, and the method that teaches, not yet fitted."""

    settings: FineTuning
    teacher: Hasher
    method: str  # the teacher's name

    @classmethod
    def of(
        cls, method: str, teacher: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> TuningRequest:
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
) -> TuningRequest:
    """For a run of that method: taught by itself with its own settings, or by another one."""
    own = hasher.settings()
    name = find_method(teacher or method).name
    if name != method:
        shared = ("bits", "seed", "device")
        known = find_method(name).settings()
        own = {one: own[one] for one in shared if one in own and one in known}
    return TuningRequest.of(name, own, settings)


@dataclass(frozen=True)
class Pictures:
    """The images that a training set was made of, in its order."""

    images: Images
    target_images: Images | None = None
    held_out: Images | None = None  # of auxiliary items outside of it

    def held_out_as_read(
        self, held_out: Related, tuned: TunedFeatures, track: Track, world: World = ALONE
    ) -> Related:
        """Held-out items with images as the tuned backbone reads them."""
        images = self.held_out
        assert images is not None  # who holds items out has their pictures
        rows = world.in_turn(lambda: _rows(tuned, images, track))
        return Related(rows, held_out.texts, held_out.relation)


def backbone_of(features: ImageFeatures | None) -> Backbone:
    """What can be trained further."""
    if features is None:
        raise DataError("precomputed image features cannot be fine-tuned; give the image files")
    if not isinstance(features, Backbone):
        raise DataError(
            f"{features.name} is no backbone that can be fine-tuned; use --features "
            "efficientnet-lite0 or efficientnet-lite2"
        )
    return features


def fine_tuned(
    request: TuningRequest,
    training: TrainingSet,
    pictures: Pictures,
    features: ImageFeatures | None,
    run: Path,
    track: Track = silent,
    world: World = ALONE,
) -> tuple[TrainingSet, TunedFeatures]:
    """What a run learns from once its backbone is fine-tuned, and that backbone."""
    place = run / _FOLDER
    tuned = tuned_features(request, training, pictures, features, place, track=track, world=world)
    return with_tuned_images(training, pictures, tuned, track, world), tuned


def tuned_features(
    request: TuningRequest,
    training: TrainingSet,
    pictures: Pictures,
    features: ImageFeatures | None,
    place: Path,
    *,
    track: Track = silent,
    world: World = ALONE,
) -> TunedFeatures:
    """The fine-tuned backbone: the one that is kept in `place`, or taught now and kept there."""
    backbone = backbone_of(features)
    name = tuning_name(backbone, request.teacher, request.settings, training)
    plan = TuningPlan(place, name, world)
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
                "steps": TuningPlan(place, name, ALONE).steps,
                "seconds": round(time.perf_counter() - start, 1),
            }
            write_json(place / _RECORD, about)
        world.barrier()
    return TunedFeatures.load(place, backbone)


def forget_backbone(run: Path) -> None:
    """Once it stands in the run itself; how it was come by stays."""
    (run / _FOLDER / BACKBONE_FILE).unlink(missing_ok=True)


def with_tuned_images(
    training: TrainingSet,
    pictures: Pictures,
    tuned: TunedFeatures,
    track: Track = silent,
    world: World = ALONE,
) -> TrainingSet:
    """The same items, images as the tuned backbone reads them."""
    target = pictures.target_images
    return replace(
        training,
        images=world.in_turn(lambda: _rows(tuned, pictures.images, track)),
        target_images=None
        if target is None
        else world.in_turn(lambda: _rows(tuned, target, track)),
    )


def split_pictures(benchmark: Benchmark, split_seed: int) -> Pictures:
    """Of the training set that `build_task` makes."""
    split = benchmark.split(split_seed)
    return Pictures(
        benchmark.auxiliary_images.take(split.auxiliary_images),
        benchmark.images.take(split.target_images).without_labels(),
        benchmark.auxiliary_images.take(split.held_out_images),
    )


def tuned_task(
    task: Task, benchmark: Benchmark, split_seed: int, tuned: TunedFeatures, track: Track = silent
) -> Task:
    """A split with all its images as the tuned backbone reads them; texts stay."""
    split, target = benchmark.split(split_seed), task.target
    pictures = split_pictures(benchmark, split_seed)

    def scored(where: Rows, part: LabelledRows) -> LabelledRows:
        return LabelledRows(_rows(tuned, benchmark.images.take(where), track), part.labels)

    return replace(
        task,
        training=with_tuned_images(task.training, pictures, tuned, track),
        held_out=pictures.held_out_as_read(task.held_out, tuned, track),
        target=Target(
            scored(split.query_images, target.query_images),
            target.query_texts,
            scored(split.database_images, target.database_images),
            target.database_texts,
        ),
    )


def _rows(tuned: TunedFeatures, images: Images, track: Track) -> Features:
    if not len(images):
        return tuned.of_pixels(np.empty((0, tuned.size, tuned.size, 3), np.uint8))
    return image_rows(tuned, replace(images, features=None), track)[0]
