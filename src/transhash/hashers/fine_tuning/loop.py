"""The loop: pictures -> backbone -> head -> activations, down C against the teacher's texts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transhash.data.collection import ImageSource
from transhash.data.training import TrainingSet
from transhash.errors import DataError
from transhash.features.backbone import Backbone, TunedFeatures
from transhash.features.picture import Pixels
from transhash.hashers.base import Hasher
from transhash.hashers.deep import Device
from transhash.hashers.fine_tuning.batches import TaughtBatches
from transhash.hashers.fine_tuning.budget import TuningPlan, measured_steps, measured_views
from transhash.hashers.fine_tuning.head import started_head
from transhash.hashers.fine_tuning.lessons import lessons_of
from transhash.hashers.fine_tuning.settings import FineTuning
from transhash.hashers.fine_tuning.views import (
    FreshViews,
    KeptViews,
    ViewDraw,
    decode_all,
    estimate_norms,
    rows_of,
)
from transhash.hashers.training import (
    Average,
    Checkpoint,
    TrainingLog,
    check_learned,
    fingerprint,
    make_optimizer,
    set_rate,
)
from transhash.hashers.world import ALONE, World
from transhash.progress import Track, silent

_WARM_UP = 50  # steps in which the learning rate rises
_LOOK_EVERY = 10  # steps after which a checkpoint may be kept


def fine_tune(
    backbone: Backbone,
    images: Sequence[ImageSource] | Pixels,
    target_images: Sequence[ImageSource] | Pixels,
    training: TrainingSet,
    teacher: Hasher,
    settings: FineTuning | None = None,
    *,
    folder: Path | None = None,
    track: Track = silent,
    world: World = ALONE,
) -> TunedFeatures:
    """The backbone trained further: image features of their own, for any method to learn from.

    Pictures are files, or pixels (n, size, size, 3); `training` holds the backbone's rows of them,
    in this order, and the texts; `teacher` was fitted to it. With `folder`, metrics and checkpoints
    are kept there and resumed from, and the weights saved.
    """
    begun = time.monotonic()
    asked = settings or FineTuning()
    world.check_batch(asked.batch)
    world.check_batch(asked.target_batch)
    _check_rows(images, target_images, training)
    use_target = asked.use_target and training.target_images is not None
    device = Device(backbone.device)
    stages = backbone.trainable().eval().to(device.name)
    stages.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    first = asked.first_stage(backbone.name, len(stages.stages))
    views = asked.kept_views(first, device.name)
    lessons = world.first(lambda: lessons_of(teacher, training, asked.seed, use_target))
    sources = [images, *([target_images] if use_target else [])]
    pixels = [decode_all(paths, backbone.size, device.name, track) for paths in sources]
    rows: list[Any] = [training.images, *([training.target_images] if use_target else [])]
    if asked.norms == "target":
        if not use_target:
            raise DataError("norms takes frozen where no target images take part, got 'target'")
        estimate_norms(stages, pixels[1], device)
        rows = [rows_of(stages, part, device) for part in pixels]
    head = started_head(lessons, rows[0], rows[1] if use_target else None).to(device.name)

    name = tuning_name(backbone, teacher, asked, training)
    plan = TuningPlan(folder, name, world)
    pictures: list[ViewDraw] = []
    for stream, part in enumerate(pixels):
        fresh = FreshViews(part, stages, first, asked.augment, device)
        if views and not pictures:
            count = sum(map(len, pixels))
            views = plan.views or measured_views(asked, views, fresh, count)
            views = world.first(partial(int, views))
        seeds = [asked.seed, stream]
        pictures.append(KeptViews(fresh, views, seeds, track) if views else fresh)

    stages.requires_grad_(False)
    stages.stages[first:].requires_grad_(True)
    modules = nn.ModuleDict({"stages": stages, "head": head})
    parameters = [one for one in modules.parameters() if one.requires_grad]
    rate, decay = asked.learning_rate, asked.weight_decay
    group = {"params": parameters, "lr": rate, "base": rate, "weight_decay": decay}
    optimizer = make_optimizer("adam", [group])
    average = Average(parameters, asked.averaging) if asked.averaging else None
    begin = [one.detach().clone() for one in parameters]
    batches = TaughtBatches(asked, training, lessons, pictures, device)

    def down(step: int, steps: int) -> dict[str, Tensor]:
        """The terms of C at a step, and its gradient in the parameters."""
        terms = asked.objective(lessons.bits, steps)(batches.at(step, modules, first, world), step)
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        return terms

    if plan.steps is None:
        plan.keep(views, measured_steps(asked, begun, lambda: down(0, asked.steps)))
    assert plan.steps is not None
    steps, checkpoint, start = plan.steps, None, 0
    if folder is not None:
        checkpoint = Checkpoint(folder, f"{name}-{views}-{steps}")
        start = checkpoint.load(modules, optimizer, average)
        world.check_start(start, folder)
    metrics = TrainingLog(folder if world.rank == 0 else None, start)
    for step in track(range(start, steps), "fine-tuning", steps, start):
        set_rate(optimizer, warm_cosine(step, steps))
        terms = down(step, steps)
        world.sum_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        if average:
            average.update(parameters, step)
        metrics.write(step, terms)
        if (step + 1) % _LOOK_EVERY and step + 1 < steps:
            continue
        try:
            check_learned(parameters, f"at step {step + 1}", asked.learning_rate)
        except DataError:
            metrics.discard()
            raise
        metrics.flush()
        if checkpoint and world.rank == 0 and checkpoint.due():
            checkpoint.save(step + 1, modules, optimizer, average)
    metrics.close()
    if average:
        average.copy_to(parameters)
    _go_back(parameters, begin, asked.moved)
    tuned = TunedFeatures(backbone, stages.weights())
    if folder is not None and world.rank == 0:
        tuned.save(folder)
        plan.finish(tuned.digest)
    if checkpoint and world.rank == 0:
        checkpoint.remove()  # after what came of it is on the disk
    world.barrier()
    return tuned


@torch.no_grad()
def _go_back(parameters: Sequence[Tensor], begin: Sequence[Tensor], moved: float) -> None:
    """Weights between the start, which knows more pictures, and what these few have taught."""
    if moved < 1:
        torch._foreach_lerp_(list(parameters), list(begin), 1.0 - moved)


def warm_cosine(step: int, steps: int) -> float:
    """What the learning rate is multiplied by: 50 steps of warm-up, or a fifth; then a cosine."""
    rise = max(1, min(_WARM_UP, steps // 5))
    return min(1.0, (step + 1) / rise) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def tuning_name(
    backbone: Backbone, teacher: Hasher, asked: FineTuning, training: TrainingSet
) -> str:
    """What a checkpoint must share: backbone, settings and data; it may be of another device."""
    told = {name: value for name, value in teacher.settings().items() if name != "device"}
    weights = TunedFeatures(backbone, backbone.trainable().weights()).digest
    identity = {**asked.settings(), "teacher": teacher.name, "told": told, "backbone": weights}
    return fingerprint(identity, training)


def _check_rows(
    images: Sequence[ImageSource] | Pixels,
    target_images: Sequence[ImageSource] | Pixels,
    training: TrainingSet,
) -> None:
    target = 0 if training.target_images is None else len(training.target_images)
    if (len(images), len(target_images)) != (len(training.images), target):
        raise DataError(
            f"{len(images)} + {len(target_images)} pictures do not go with features of "
            f"{len(training.images)} + {target}; give the pictures that they were made of"
        )
