"""Rivals that are shown the unlabelled target items too, by the transfer step that THN has.

A published rival learns from auxiliary items alone, so a comparison with THN mixes two things: what
a method makes of its data, and how much of it. A fed rival is fitted, matches target items with
auxiliary ones by its own projections, and is fitted again on both, with the relations that target
items inherit and a centre for each domain (thn/transfer.py: P, Q, S⁺ and κ are the same).
"""

from __future__ import annotations

# The mixin's super() is a rival, whose methods are not abstract; mypy sees Hasher's.
# mypy: disable-error-code="safe-super"
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from torch import nn

from transhash.data.relation import ExtendedRelation
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, Hasher, check_width
from transhash.hashers.cvh import CVH
from transhash.hashers.dcmh import DCMH
from transhash.hashers.modules import Center
from transhash.hashers.qch import QCH
from transhash.hashers.settings import NonNegativeInt, Positive, Proportion
from transhash.hashers.thn.transfer import ModalityData
from transhash.progress import Track, no_progress

_CENTRES = ("image", "text")


@dataclass
class Transductive(Hasher):
    """Stands before a rival's class: what it leaves to `super()` is the rival's own."""

    matching_rounds: NonNegativeInt = 4  # as THN's
    matching_temperature: Positive = 0.05  # τ
    target_centering: Proportion = 0.5  # κ

    @property
    def uses_target(self) -> bool:
        return True

    def fit(
        self, training: TrainingSet, *, folder: Path | None = None, track: Track = no_progress
    ) -> Self:
        relation = training.relation
        n, m = relation.shape
        images = ModalityData(
            training.images, relation.times(np.ones((m, 1))), training.target_images
        )
        texts = ModalityData(
            training.texts, relation.transposed_times(np.ones((n, 1))), training.target_texts
        )
        alone = TrainingSet(images.auxiliary, texts.auxiliary, relation)
        super().fit(alone, track=track)
        unmatched = images.target is None and texts.target is None
        for _ in range(0 if unmatched else self.matching_rounds):
            images.match_target(
                super().project_images, self.matching_temperature, self.target_centering
            )
            texts.match_target(
                super().project_texts, self.matching_temperature, self.target_centering
            )
            extended = ExtendedRelation(relation, images.match, texts.match)
            both = TrainingSet(images.both(), texts.both(), extended)
            super().fit(both, track=track)
        self.centres_ = {
            f"{name}.{domain}": centre
            for name, side in zip(_CENTRES, (images, texts), strict=True)
            for domain, centre in (("auxiliary", side.centre), ("target", side.target_centre))
        }
        return self

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        return super().project_images(self._centred(images, "image.target"))

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        return super().project_texts(self._centred(texts, "text.target"))

    def project_auxiliary(self, images: Features, texts: Features) -> tuple[Array, Array]:
        """Auxiliary items, which have a centre of their own."""
        x, y = self._centred(images, "image.auxiliary"), self._centred(texts, "text.auxiliary")
        return super().project_images(x), super().project_texts(y)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        image, text = super().modules()
        return (
            nn.Sequential(Center(self.centres_["image.target"]), image),
            nn.Sequential(Center(self.centres_["text.target"]), text),
        )

    def state(self) -> dict[str, Array]:
        own = super().state()
        return {**own, **{f"centre.{name}": centre for name, centre in self.centres_.items()}}

    def restore(self, state: Mapping[str, Array]) -> Self:
        self.centres_ = {
            name.removeprefix("centre."): array
            for name, array in state.items()
            if name.startswith("centre.")
        }
        if len(self.centres_) != 2 * len(_CENTRES):
            raise DataError(f"this is not a saved {self.name}: it lacks the domains' centres")
        return super().restore(state)

    def _centred(self, features: Features, which: str) -> Features:
        if not hasattr(self, "centres_"):
            raise self.not_fitted_error()
        centre = self.centres_[which]
        what = which.partition(".")[0]
        return np.asarray(check_width(features, len(centre), f"{what}s") - centre, np.float64)


@dataclass
class TransductiveCVH(Transductive, CVH):
    name: ClassVar[str] = "CVH+target"


@dataclass
class TransductiveQCH(Transductive, QCH):
    name: ClassVar[str] = "QCH+target"


@dataclass
class TransductiveDCMH(Transductive, DCMH):
    name: ClassVar[str] = "DCMH+target"
