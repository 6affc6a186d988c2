"""The loop: pictures -> backbone -> head -> activations, down C against the teacher's texts."""

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
    ViewDraw,
    decode_all,
    estimate_norms,
    rows_of,
)
from transhash.hashers.fine_tuning.teacher import fit_head, teacher_targets
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
    PairLoss,
    PseudoLabelTerm,
    Quantization,
    RelationTerm,
    Term,
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

# What can be set in a fine-tuning.

_VIEWS = 4  # kept of each image on a CPU: lower blocks are passed four times, not every step


@dataclass
class FineTuning:
    """All of it is ours: the paper fine-tunes AlexNet without target images, teacher or average."""

    blocks: PositiveInt | None = None  # the last so many are trained; None: all
    steps: PositiveInt = 300
    minutes: Positive | None = None  # at most so long: steps by the speed measured at the start
    batch_size: PositiveInt = 96  # auxiliary images a step
    target_batch_size: PositiveInt = 96  # unlabelled target images a step
    text_batch: PositiveInt = 256  # auxiliary texts, and as many target texts, a step
    learning_rate: Positive = 4e-4
    weight_decay: NonNegative = 1e-4
    ema_decay: ProportionBelowOne = 0.99  # decay of the weights' moving average, 0: none
    weight_interpolation: Proportion = (
        0.7  # the weights end so far on the way from their start to what was learned
    )
    augment: bool = True  # random crops, mirror images and colours
    cached_views: NonNegativeInt | None = (
        None  # kept of each image at the lowest trained block; 0: none
    )
    batch_norm_statistics: Literal["frozen", "target"] = (
        "frozen"  # target: statistics of the target images
    )
    use_target: bool = True  # target images take part
    soft_label_fraction: Proportion = 0.5  # how much of s_ij is its calibrated probability
    pseudo_label_weight: NonNegative = 1.5  # ν: each kind of pairs with a target item counts half
    quantization_weight: NonNegative = 1e-3  # λ, as in THN
    alignment_weight: NonNegative = 0.3  # µ, as in THN
    logit_scale: Positive | None = None  # 3 / bits, at most 0.15, as in THN
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def settings(self) -> Setting:
        return asdict(self)

    def first_stage(self, name: str, stages: int) -> int:
        """The lowest stage that is trained."""
        if self.blocks is not None and self.blocks > stages:
            raise DataError(f"{name} has {stages} blocks, so its last {self.blocks} cannot learn")
        return 0 if self.blocks is None else stages - self.blocks

    def kept_views(self, first: int, device: str) -> int:
        """How many views of an image are computed once, up to the lowest trained stage.

        Beside a GPU none: there, every step's own crops cost little.
        """
        if first == 0:
            if self.cached_views:
                raise DataError("views are kept below the trained blocks; give blocks, too")
            return 0
        if self.cached_views is None:
            views = 0 if device.startswith("cuda") else _VIEWS
        else:
            views = self.cached_views
        return min(views, 1) if not self.augment else views

    def objective(self, bits: int, steps: int) -> Objective:
        """C over image activations; texts keep the teacher's, so D_d and Q of texts stand still."""
        scale = min(0.15, 3.0 / bits) if self.logit_scale is None else self.logit_scale
        pair_loss: PairLoss = partial(relation_loss, scale=scale)
        terms: list[Term] = [RelationTerm(pair_loss, True, self.soft_label_fraction)]
        if self.quantization_weight:
            terms.append(Quantization(self.quantization_weight, 0.5 * steps, target=True))
        if self.pseudo_label_weight:
            terms.append(PseudoLabelTerm(pair_loss, True, self.pseudo_label_weight))
        if self.alignment_weight:
            terms.append(Alignment(self.alignment_weight, 0.5 * steps, WIDTHS))
        return Objective(*terms)


# How many views and steps fit into the minutes: measured once, decided once.

_TRIED = 2  # steps whose time is taken
_LEAST = 20  # steps that a budget of minutes leaves in any case
_SOME = 32  # images whose time is taken


class TimeBudget:
    """How many views and steps: decided once by the speed of the machine, then kept."""

    def __init__(self, folder: Path | None, name: str, world: World) -> None:
        self.path = None if folder is None else folder / "plan.json"
        self.name, self.world = name, world
        self.views, self.steps, self.finished = world.first(self._read)

    def keep(self, views: int, steps: int) -> None:
        """What the first process decides, for all."""
        self.views, self.steps = self.world.first(lambda: (views, steps))
        self._write()

    def finish(self, digest: str) -> None:
        """The backbone of that digest has been saved."""
        self.finished = digest
        self._write()

    def _write(self) -> None:
        if self.path is not None and self.world.rank == 0:
            numbers = {"views": self.views, "steps": self.steps}
            write_json(self.path, {"name": self.name, **numbers, "finished": self.finished})

    def _read(self) -> tuple[int | None, int | None, str | None]:
        if self.path is None or not self.path.exists():
            return None, None, None
        found = read_json(self.path)
        if found.get("name") != self.name:
            return None, None, None
        return int(found["views"]), int(found["steps"]), found.get("finished")


def steps_within(seconds: float, of_a_step: float, most: int) -> int:
    """As many steps as fit into the time, but no more than asked for and not next to none."""
    return max(min(_LEAST, most), min(most, int(seconds / max(of_a_step, 1e-9))))


def steps_within_budget(
    asked: FineTuning, begun: float, step: Callable[[], Mapping[str, Tensor]]
) -> int:
    """The steps asked for, or what `step` shows to fit into the minutes since `begun`."""
    if asked.minutes is None:
        return asked.steps
    step()  # the first one is slower
    start = time.monotonic()
    for _ in range(_TRIED):
        sum(float(term.detach()) for term in step().values())  # waits for a GPU
    now = time.monotonic()
    return steps_within(60 * asked.minutes - (now - begun), (now - start) / _TRIED, asked.steps)


def measured_views(asked: FineTuning, views: int, fresh: RandomViews, images: int) -> int:
    """Views whose making takes a quarter of the minutes at most; one in any case."""
    if asked.minutes is None:
        return views
    some = np.arange(min(_SOME, len(fresh.pixels)))
    start = time.monotonic()
    float(fresh.at(some, slice(None), [asked.seed]).sum())
    of_all = (time.monotonic() - start) / len(some) * images
    return max(1, min(views, int(15 * asked.minutes / max(of_all, 1e-9))))


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
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> FineTunedFeatures:
    """The backbone trained further: image features of their own, for any method to learn from.

    Pictures are files, or pixels (n, size, size, 3); `training` holds the backbone's rows of them,
    in this order, and the texts; `teacher` was fitted to it. With `folder`, metrics and checkpoints
    are kept there and resumed from, and the weights saved.
    """
    begun = time.monotonic()
    asked = settings or FineTuning()
    world.check_batch(asked.batch_size)
    world.check_batch(asked.target_batch_size)
    _check_rows(images, target_images, training)
    use_target = asked.use_target and training.target_images is not None
    device = Device(backbone.device)
    stages = backbone.trainable().eval().to(device.name)
    stages.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    first = asked.first_stage(backbone.name, len(stages.stages))
    views = asked.kept_views(first, device.name)
    lessons = world.first(lambda: teacher_targets(teacher, training, asked.seed, use_target))
    sources = [images, *([target_images] if use_target else [])]
    pixels = [decode_all(paths, backbone.size, device.name, track) for paths in sources]
    rows: list[Any] = [training.images, *([training.target_images] if use_target else [])]
    if asked.batch_norm_statistics == "target":
        if not use_target:
            raise DataError("norms takes frozen where no target images take part, got 'target'")
        estimate_norms(stages, pixels[1], device)
        rows = [rows_of(stages, part, device) for part in pixels]
    head = fit_head(lessons, rows[0], rows[1] if use_target else None).to(device.name)

    name = fine_tuning_name(backbone, teacher, asked, training)
    plan = TimeBudget(folder, name, world)
    pictures: list[ViewDraw] = []
    for stream, part in enumerate(pixels):
        fresh = RandomViews(part, stages, first, asked.augment, device)
        if views and not pictures:
            count = sum(map(len, pixels))
            views = plan.views or measured_views(asked, views, fresh, count)
            views = world.first(partial(int, views))
        seeds = [asked.seed, stream]
        pictures.append(CachedViews(fresh, views, seeds, track) if views else fresh)

    stages.requires_grad_(False)
    stages.stages[first:].requires_grad_(True)
    modules = nn.ModuleDict({"stages": stages, "head": head})
    parameters = [one for one in modules.parameters() if one.requires_grad]
    rate, decay = asked.learning_rate, asked.weight_decay
    group = {"params": parameters, "lr": rate, "base": rate, "weight_decay": decay}
    optimizer = make_optimizer("adam", [group])
    average = WeightAverage(parameters, asked.ema_decay) if asked.ema_decay else None
    begin = [one.detach().clone() for one in parameters]
    batches = FineTuningBatches(asked, training, lessons, pictures, device)

    def down(step: int, steps: int) -> dict[str, Tensor]:
        """The terms of C at a step, and its gradient in the parameters."""
        terms = asked.objective(lessons.bits, steps)(batches.at(step, modules, first, world), step)
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        return terms

    if plan.steps is None:
        plan.keep(views, steps_within_budget(asked, begun, lambda: down(0, asked.steps)))
    assert plan.steps is not None
    steps, checkpoint, start = plan.steps, None, 0
    if folder is not None:
        checkpoint = Checkpoint(folder, f"{name}-{views}-{steps}")
        start = checkpoint.load(modules, optimizer, average)
        world.check_start(start, folder)
    metrics = TrainingLog(folder if world.rank == 0 else None, start)
    for step in track(range(start, steps), "fine-tuning", steps, start):
        set_rate(optimizer, cosine_with_warmup(step, steps))
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
            check_finite_weights(parameters, f"at step {step + 1}", asked.learning_rate)
        except DataError:
            metrics.discard()
            raise
        metrics.flush()
        if checkpoint and world.rank == 0 and checkpoint.is_due():
            checkpoint.save(step + 1, modules, optimizer, average)
    metrics.close()
    if average:
        average.copy_to(parameters)
    _go_back(parameters, begin, asked.weight_interpolation)
    tuned = FineTunedFeatures(backbone, stages.weights())
    if folder is not None and world.rank == 0:
        tuned.save(folder)
        plan.finish(tuned.digest)
    if checkpoint and world.rank == 0:
        checkpoint.remove()  # after what came of it is on the disk
    world.barrier()
    return tuned


@torch.no_grad()
def _go_back(
    parameters: Sequence[Tensor], begin: Sequence[Tensor], weight_interpolation: float
) -> None:
    """Weights between the start, which knows more pictures, and what these few have taught."""
    if weight_interpolation < 1:
        torch._foreach_lerp_(list(parameters), list(begin), 1.0 - weight_interpolation)


def cosine_with_warmup(step: int, steps: int) -> float:
    """What the learning rate is multiplied by: 50 steps of warm-up, or a fifth; then a cosine."""
    rise = max(1, min(_WARM_UP, steps // 5))
    return min(1.0, (step + 1) / rise) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def fine_tuning_name(
    backbone: Backbone, teacher: Hasher, asked: FineTuning, training: TrainingSet
) -> str:
    """What a checkpoint must share: backbone, settings and data; it may be of another device."""
    told = {name: value for name, value in teacher.settings().items() if name != "device"}
    weights = FineTunedFeatures(backbone, backbone.trainable().weights()).digest
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
