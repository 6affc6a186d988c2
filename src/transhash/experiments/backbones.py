"""Fine-tuned backbones of an experiment: one a teacher and split, for all methods and lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from transhash.data.benchmark import Benchmark
from transhash.experiments.plan import Plan
from transhash.features.backbone import TunedFeatures
from transhash.features.image import ImageFeatures
from transhash.hashers import make_hasher
from transhash.progress import Track, silent
from transhash.runs.fine_tune import (
    TuningRequest,
    backbone_of,
    split_pictures,
    tuned_features,
    tuned_task,
)
from transhash.runs.task import Task, build_task


@dataclass(frozen=True)
class Tasks:
    """The split of a seed, as a method is to see it."""

    benchmark: Benchmark
    features: ImageFeatures | None  # what can be fine-tuned; None: nothing is
    out: Path
    text_features: str | None = None
    image_components: int | None = None

    def __call__(self, seed: int, teacher: str, uses_target: bool) -> Task:
        task = build_task(
            self.benchmark, seed, uses_target=uses_target, texts=self.text_features,
            image_components=self.image_components,
        )  # fmt: skip
        if not teacher:
            return task
        tuned = TunedFeatures.load(self._place(teacher, seed), backbone_of(self.features))
        return tuned_task(task, self.benchmark, seed, tuned)

    def make_backbone(self, plan: Plan, teacher: str, seed: int, track: Track = silent) -> None:
        """Taught, unless it is there; a killed one is gone on with."""
        request = _seeded(plan.tunings[teacher], seed)
        task = build_task(
            self.benchmark, seed, uses_target=request.teacher.uses_target,
            texts=self.text_features,
        )  # fmt: skip
        tuned = tuned_features(
            request, task.training, split_pictures(self.benchmark, seed), self.features,
            self._place(teacher, seed), track=track,
        )  # fmt: skip
        tuned_task(task, self.benchmark, seed, tuned, track)  # rows are in the cache from now

    def _place(self, teacher: str, seed: int) -> Path:
        return self.out / "backbones" / f"{teacher}-{seed}"


def _seeded(request: TuningRequest, seed: int) -> TuningRequest:
    """Split, teacher and fine-tuning of one seed, as methods are."""
    told = {**request.teacher.settings(), "seed": seed}
    teacher = make_hasher(request.method, **told)
    return replace(request, teacher=teacher, settings=replace(request.settings, seed=seed))
