"""The fine-tuning loop: images pass backbone and head; C relates them to the teacher's texts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from transhash.data.collection import ImageSource
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.features.backbone import Backbone, FineTunedFeatures
from transhash.features.decode import Pixels
from transhash.hashers.base import Hasher, Setting
from transhash.hashers.deep import Device
from transhash.hashers.fine_tuning.batches import (
    CachedViews,
    FineTuningBatches,
    RandomViews,
    Views,
    backbone_rows,
    decode_all,
    estimate_batch_norm_statistics,
    fit_head,
    teacher_targets,
)
from transhash.hashers.losses import WIDTHS, relation_loss
from transhash.hashers.settings import (
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Proportion,
    ProportionBelowOne,
    Seed,
    check_settings,
)
from transhash.hashers.thn.objective import (
    Alignment,
    Objective,
    Quantization,
    default_logit_scale,
    make_objective,
)
from transhash.hashers.training_loop import (
    Checkpoint,
    TrainingLog,
    WeightAverage,
    check_finite_weights,
    fingerprint,
    make_optimizer,
    set_rate,
)
from transhash.hashers.world import SINGLE_PROCESS, World
from transhash.progress import Track, no_progress
from transhash.storage import read_json, write_json

_CACHED_VIEWS = 4  # of each image on a CPU, where the lower stages would take most of each step
_TIMED_STEPS = 2
_TIMED_IMAGES = 32
_MIN_STEPS = 20  # within any budget
_WARM_UP_STEPS = 50
_DEFAULT_STEPS = 300
_TARGET_PASSES = 15
_CHECK_STEPS = 10  # between checks and possible checkpoints


@dataclass
class FineTuning:
    """Settings; all ours, as the paper fine-tunes AlexNet without target images or teacher."""

    blocks: PositiveInt | None = None  # number of last blocks to train; None: all
    steps: PositiveInt | None = None  # None: 300, or 15 passes over the target images if more
    minutes: Positive | None = None  # limit; fewer steps by the speed measured at the start
    batch_size: PositiveInt = 96  # auxiliary images per step
    target_batch_size: PositiveInt = 96  # unlabeled target images per step
    text_batch: PositiveInt = 256  # auxiliary texts, and as many target texts, per step
    learning_rate: Positive = 4e-4
    weight_decay: NonNegative = 1e-4
    ema_decay: ProportionBelowOne = 0.99  # of the moving average of weights; 0: no average
    weight_interpolation: Proportion = 0.7  # between the initial (0) and the trained weights (1)
    augment: bool = True  # random crops, mirror images and colors
    # Views of each image at the lowest trained block that are computed once; 0: every step's own.
    cached_views: NonNegativeInt | None = None
    batch_norm_statistics: Literal["frozen", "target"] = "frozen"  # target: of the target images
    use_target: bool = True  # train on target images as well
    soft_label_fraction: Proportion = 0.5  # of s_ij that is a calibrated probability
    pseudo_label_weight: NonNegative = 1.5  # ν
    quantization_weight: NonNegative = 1e-3  # λ, as in THN
    alignment_weight: NonNegative = 0.3  # µ, as in THN
    logit_scale: Positive | None = None  # 3 / bits, at most 0.15, as in THN
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def settings(self) -> Setting:
        return asdict(self)

    def first_stage(self, name: str, stages: int) -> int:
        """Return the lowest stage to train."""
        if self.blocks is not None and self.blocks > stages:
            raise DataError(f"{name} has {stages} blocks, got blocks = {self.blocks}. Use fewer.")
        return 0 if self.blocks is None else stages - self.blocks

    def step_count(self, target_images: int) -> int:
        """Return how many steps to take without a time limit."""
        if self.steps is not None:
            return self.steps
        passes = math.ceil(_TARGET_PASSES * target_images / self.target_batch_size)
        return max(_DEFAULT_STEPS, passes)

    def view_count(self, first: int, device: str) -> int:
        """Return how many views of an image to cache; none on a GPU, where new crops are cheap."""
        if first == 0:
            if self.cached_views:
                raise DataError("cached_views needs frozen blocks. Set blocks as well.")
            return 0
        views = self.cached_views
        if views is None:
            views = 0 if device.startswith("cuda") else _CACHED_VIEWS
        return min(views, 1) if not self.augment else views

    def objective(self, bits: int, steps: int) -> Objective:
        """Return C over image activations; texts keep those of the teacher."""
        return make_objective(
            partial(relation_loss, scale=self.logit_scale or default_logit_scale(bits)),
            balanced=True,
            soft_label_fraction=self.soft_label_fraction,
            quantization=Quantization(self.quantization_weight, 0.5 * steps, target=True),
            pseudo_label_weight=self.pseudo_label_weight,
            alignment=Alignment(self.alignment_weight, 0.5 * steps, WIDTHS),
        )


class TimeBudget:
    """The numbers of views and steps that fit into the time, measured once and stored."""

    def __init__(self, folder: Path | None, name: str, world: World) -> None:
        self.path = None if folder is None else folder / "plan.json"
        self.name, self.world = name, world
        self.views, self.steps, self.digest = world.compute_once(self._read)

    def set(self, views: int, steps: int) -> None:
        """Use the first process's numbers in all."""
        self.views, self.steps = self.world.compute_once(lambda: (views, steps))
        self._write()

    def finish(self, digest: str) -> None:
        """Record the digest of the saved backbone."""
        self.digest = digest
        self._write()

    def _write(self) -> None:
        if self.path is not None and self.world.rank == 0:
            numbers = {"views": self.views, "steps": self.steps}
            write_json(self.path, {"name": self.name, **numbers, "digest": self.digest})

    def _read(self) -> tuple[int | None, int | None, str | None]:
        if self.path is None or not self.path.exists():
            return None, None, None
        plan = read_json(self.path)
        if plan.get("name") != self.name:
            return None, None, None
        return int(plan["views"]), int(plan["steps"]), plan.get("digest")


def steps_within(seconds: float, step_seconds: float, max_steps: int) -> int:
    """Return how many steps fit into the time, at most `max_steps`, at least 20 if not fewer."""
    fitting = int(seconds / max(step_seconds, 1e-9))
    return max(min(_MIN_STEPS, max_steps), min(max_steps, fitting))


def steps_within_budget(
    minutes: float | None, steps: int, start: float, step: Callable[[], Mapping[str, Tensor]]
) -> int:
    """Return `steps`, or what fits into the minutes since `start` by timing `step`."""
    if minutes is None:
        return steps
    step()  # the first one is slower
    begin = time.monotonic()
    for _ in range(_TIMED_STEPS):
        sum(float(term.detach()) for term in step().values())  # waits for a GPU
    now = time.monotonic()
    remaining = 60 * minutes - (now - start)
    return steps_within(remaining, (now - begin) / _TIMED_STEPS, steps)


def views_within_budget(settings: FineTuning, views: int, random: RandomViews, images: int) -> int:
    """Return `views`, or fewer that take at most a quarter of the minutes; at least one."""
    if settings.minutes is None:
        return views
    rows = np.arange(min(_TIMED_IMAGES, len(random.pixels)))
    start = time.monotonic()
    float(random.draw(rows, slice(None), [settings.seed]).sum())
    seconds = (time.monotonic() - start) / len(rows) * images
    return max(1, min(views, int(15 * settings.minutes / max(seconds, 1e-9))))


def fine_tune(
    backbone: Backbone,
    images: Sequence[ImageSource] | Pixels,
    target_images: Sequence[ImageSource] | Pixels,
    training: TrainingSet,
    teacher: Hasher,
    settings: FineTuning | None = None,
    *,
    folder: Path | None = None,
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> FineTunedFeatures:
    """Return the fine-tuned backbone: image features that any method can be fitted on.

    Images are files, or pixels (n, size, size, 3); `training` has the backbone's rows of them, in
    this order, and the texts; `teacher` was fitted on it. With `folder`, metrics, checkpoints to
    resume from, and the weights are written there.
    """
    start_time = time.monotonic()
    settings = settings or FineTuning()
    world.check_batch_size(settings.batch_size)
    world.check_batch_size(settings.target_batch_size)
    _check_rows(images, target_images, training)
    use_target = settings.use_target and training.target_images is not None
    device = Device(backbone.device)
    stages = backbone.trainable().eval().to(device.name)
    stages.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    first = settings.first_stage(backbone.name, len(stages.stages))
    count = settings.view_count(first, device.name)
    targets = world.compute_once(
        lambda: teacher_targets(teacher, training, settings.seed, use_target)
    )
    sources = [images, *([target_images] if use_target else [])]
    pixels = [decode_all(paths, backbone.size, device.name, track) for paths in sources]
    rows: list[Any] = [training.images, *([training.target_images] if use_target else [])]
    if settings.batch_norm_statistics == "target":
        if not use_target:
            raise DataError(
                'batch_norm_statistics = "target" needs target images. Use "frozen" without them.'
            )
        estimate_batch_norm_statistics(stages, pixels[1], device)
        rows = [backbone_rows(stages, part, device) for part in pixels]
    head = fit_head(targets, rows[0], rows[1] if use_target else None).to(device.name)

    name = fine_tuning_name(backbone, teacher, settings, training)
    budget = TimeBudget(folder, name, world)
    random = [RandomViews(part, stages, first, settings.augment, device) for part in pixels]
    views: list[Views] = list(random)
    if count:
        total = sum(map(len, pixels))
        count = budget.views or views_within_budget(settings, count, random[0], total)
        count = world.compute_once(partial(int, count))
        views = [
            CachedViews(part, count, [settings.seed, stream], track)
            for stream, part in enumerate(random)
        ]

    stages.requires_grad_(False)
    stages.stages[first:].requires_grad_(True)
    modules = nn.ModuleDict({"stages": stages, "head": head})
    parameters = [one for one in modules.parameters() if one.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    group = {"params": parameters, "lr": rate, "base": rate, "weight_decay": decay}
    optimizer = make_optimizer("adam", [group])
    average = WeightAverage(parameters, settings.ema_decay) if settings.ema_decay else None
    initial = [one.detach().clone() for one in parameters]
    batches = FineTuningBatches(settings, training.relation, targets, views, first, device)

    def compute_gradients(step: int, steps: int) -> dict[str, Tensor]:
        """Return the terms of C at a step, and set the gradients of the parameters."""
        objective = settings.objective(targets.bits, steps)
        terms = objective(batches.batch_at(step, modules, world), step)
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        return terms

    if budget.steps is None:
        wanted = settings.step_count(len(pixels[1]) if use_target else 0)
        steps = steps_within_budget(
            settings.minutes, wanted, start_time, lambda: compute_gradients(0, wanted)
        )
        budget.set(count, steps)
    assert budget.steps is not None
    steps, checkpoint, start = budget.steps, None, 0
    if folder is not None:
        checkpoint = Checkpoint(folder, f"{name}-{count}-{steps}")
        start = checkpoint.load(modules, optimizer, average)
        world.check_start(start, folder)
    metrics = TrainingLog(folder if world.rank == 0 else None, start)
    for step in track(range(start, steps), "fine-tuning", steps, start):
        set_rate(optimizer, cosine_with_warmup(step, steps))
        terms = compute_gradients(step, steps)
        world.sum_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        if average:
            average.update(parameters, step)
        metrics.write(step, terms)
        if (step + 1) % _CHECK_STEPS and step + 1 < steps:
            continue
        try:
            check_finite_weights(parameters, f"at step {step + 1}", settings.learning_rate)
        except DataError:
            metrics.discard()
            raise
        metrics.flush()
        if checkpoint and world.rank == 0 and checkpoint.is_due():
            checkpoint.save(step + 1, modules, optimizer, average)
    metrics.close()
    if average:
        average.copy_to(parameters)
    # The initial weights have seen more images than these few.
    if settings.weight_interpolation < 1:
        with torch.no_grad():
            torch._foreach_lerp_([*parameters], initial, 1.0 - settings.weight_interpolation)
    features = FineTunedFeatures(backbone, stages.weights())
    if folder is not None and world.rank == 0:
        features.save(folder)
        budget.finish(features.digest)
    if checkpoint and world.rank == 0:
        checkpoint.remove()  # only after the result is saved
    world.barrier()
    return features


def cosine_with_warmup(step: int, steps: int) -> float:
    """Return the factor of the learning rate: 50 steps of warm-up, or a fifth; then a cosine."""
    warm_up = max(1, min(_WARM_UP_STEPS, steps // 5))
    return min(1.0, (step + 1) / warm_up) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def fine_tuning_name(
    backbone: Backbone, teacher: Hasher, settings: FineTuning, training: TrainingSet
) -> str:
    """Return a name of what a checkpoint must share: backbone, settings and data."""
    teacher_settings = {k: v for k, v in teacher.settings().items() if k != "device"}
    identity = {
        **settings.settings(),
        "teacher": teacher.name,
        "teacher_settings": teacher_settings,
        "backbone": FineTunedFeatures(backbone, backbone.trainable().weights()).digest,
    }
    return fingerprint(identity, training)


def _check_rows(
    images: Sequence[ImageSource] | Pixels,
    target_images: Sequence[ImageSource] | Pixels,
    training: TrainingSet,
) -> None:
    target = 0 if training.target_images is None else len(training.target_images)
    if (len(images), len(target_images)) != (len(training.images), target):
        raise DataError(
            f"Got {len(images)} + {len(target_images)} images, but features of "
            f"{len(training.images)} + {target}. Pass the images of these features."
        )
