"""Baselines that also train on unlabeled target items, by the transfer step of THN.

A published baseline learns from auxiliary items alone, so a comparison with THN mixes two effects:
the method, and the data it uses. A transductive baseline is fitted, matches target items with
auxiliary ones by its own projections, and is refitted on both, with the relations that target items
take over and a center for each domain (P, Q, S⁺ and κ are those of thn/transfer.py).
"""

from __future__ import annotations

# super() of the mixin is a baseline, whose methods are not abstract, but mypy looks at Hasher's.
# mypy: disable-error-code="safe-super"
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from transhash.data.relation import ExtendedRelation
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, FitOptions, Hasher, Learner
from transhash.hashers.cvh import CVH
from transhash.hashers.dcmh import DCMH
from transhash.hashers.imh import IMH
from transhash.hashers.modules import Center
from transhash.hashers.projection import check_width
from transhash.hashers.qch import QCH
from transhash.hashers.settings import NonNegativeInt, Positive, Proportion
from transhash.hashers.thn.transfer import MAX_TARGET_ITEMS, ModalityData, sample_target
from transhash.progress import tracked

LearnerT = TypeVar("LearnerT", bound=Learner)
_CENTERS = ("image.auxiliary", "image.target", "text.auxiliary", "text.target")


@dataclass
class Transductive(Hasher):
    """A mixin that precedes the class of a baseline, which `super()` then refers to."""

    matching_rounds: NonNegativeInt = 4  # as in THN
    matching_temperature: Positive = 0.05  # τ
    target_centering: Proportion = 0.5  # κ

    @property
    def uses_target(self) -> bool:
        return True

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        relation = training.relation
        n, m = relation.shape
        image_counts = relation.times(np.ones((m, 1)))
        text_counts = relation.transposed_times(np.ones((n, 1)))
        target_images = self._sample_target(training.target_images, n)
        target_texts = self._sample_target(training.target_texts, m)
        images = ModalityData(training.images, image_counts, target_images)
        texts = ModalityData(training.texts, text_counts, target_texts)
        super()._fit(TrainingSet(images.auxiliary, texts.auxiliary, relation), options)
        has_target = images.target is not None or texts.target is not None
        matching = self.matching_temperature, self.target_centering
        for _ in tracked(range(self.matching_rounds * has_target), "matching target items"):
            images.match_target(super().project_images, *matching)
            texts.match_target(super().project_texts, *matching)
            extended = ExtendedRelation(relation, images.match, texts.match)
            super()._fit(TrainingSet(images.stacked(), texts.stacked(), extended), options)
        centers = images.center, images.target_center, texts.center, texts.target_center
        self.centers_ = dict(zip(_CENTERS, centers, strict=True))

    def _sample_target(self, features: Features | None, auxiliary: int) -> Features | None:
        return sample_target(features, MAX_TARGET_ITEMS, self.seed)

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        return super().project_images(self._centered(images, "image.target"))

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        return super().project_texts(self._centered(texts, "text.target"))

    def project_auxiliary(self, images: Features, texts: Features) -> tuple[Array, Array]:
        x, y = self._centered(images, "image.auxiliary"), self._centered(texts, "text.auxiliary")
        return super().project_images(x), super().project_texts(y)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        image, text = super().modules()
        return (
            nn.Sequential(Center(self.centers_["image.target"]), image),
            nn.Sequential(Center(self.centers_["text.target"]), text),
        )

    def state(self) -> dict[str, Array]:
        state = super().state()
        return {**state, **{f"center.{name}": center for name, center in self.centers_.items()}}

    def restore(self, state: Mapping[str, Array]) -> Self:
        missing = [f"center.{name}" for name in _CENTERS if f"center.{name}" not in state]
        if missing:
            raise DataError(f"The saved {self.name} lacks {', '.join(missing)}. Refit the model.")
        self.centers_ = {name: state[f"center.{name}"] for name in _CENTERS}
        return super().restore(state)

    def _centered(self, features: Features, name: str) -> Features:
        if not hasattr(self, "centers_"):
            raise self.not_fitted_error()
        center = self.centers_[name]
        modality = name.partition(".")[0] + "s"
        return np.asarray(check_width(features, len(center), modality) - center, np.float64)


def with_concept_settings(hasher: LearnerT, user_settings: Container[str] = ()) -> LearnerT:
    """Return the method as it learns from built-in concepts: target items are matched once.

    Concepts are single things but target images are scenes, so that matches get worse with every
    round (docs/auxiliary-set.md). A number of rounds is kept if `user_settings` names it, or if it
    differs from the default.
    """
    default = {field.name: field.default for field in fields(hasher)}.get("matching_rounds")
    if default is None or "matching_rounds" in user_settings:
        return hasher
    if hasher.settings()["matching_rounds"] != default:
        return hasher
    return replace(hasher, **{"matching_rounds": 1})


@dataclass
class TransductiveIMH(Transductive, IMH):
    name: ClassVar[str] = "IMH+target"

    def _sample_target(self, features: Features | None, auxiliary: int) -> Features | None:
        return sample_target(features, max(0, self.max_items - auxiliary), self.seed)


@dataclass
class TransductiveCVH(Transductive, CVH):
    name: ClassVar[str] = "CVH+target"


@dataclass
class TransductiveQCH(Transductive, QCH):
    name: ClassVar[str] = "QCH+target"


@dataclass
class TransductiveDCMH(Transductive, DCMH):
    name: ClassVar[str] = "DCMH+target"
