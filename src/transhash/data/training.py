"""What a hasher learns from. Target parts carry no labels: the types leave no place for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.relation import Relation
from transhash.errors import DataError

Features = npt.NDArray[Any]  # (n, d) float features, or (n, 3, h, w) uint8 pixels


@dataclass(frozen=True)
class Related:
    """Auxiliary images and texts with their relation S."""

    images: Features  # X
    texts: Features  # Y
    relation: Relation  # S

    def __post_init__(self) -> None:
        if self.relation.shape != (len(self.images), len(self.texts)):
            raise DataError(
                f"the relation is {self.relation.shape[0]} x {self.relation.shape[1]}, but there "
                f"are {len(self.images)} images and {len(self.texts)} texts"
            )
        for name, part in (("image", self.images), ("text", self.texts)):
            if not np.issubdtype(part.dtype, np.uint8) and not np.isfinite(part).all():
                row = int(np.argmin(np.isfinite(part).reshape(len(part), -1).all(axis=1)))
                raise DataError(f"auxiliary {name} {row} has a feature that is not a finite number")

    def split(self, share: float, seed: int) -> tuple[Related, Related]:
        """A larger and a held-out part, images and texts drawn independently."""
        rng = np.random.default_rng(seed)
        cuts = []
        for n in (len(self.images), len(self.texts)):
            order = rng.permutation(n)
            held = max(1, round(share * n))
            cuts.append((np.sort(order[held:]), np.sort(order[:held])))
        (x_rest, x_held), (y_rest, y_held) = cuts
        return self._take(x_rest, y_rest), self._take(x_held, y_held)

    def _take(self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Related:
        return Related(self.images[rows], self.texts[columns], self.relation.subset(rows, columns))


@dataclass(frozen=True)
class TrainingSet(Related):
    """Auxiliary data plus unlabelled target items, which only THN can use."""

    target_images: Features | None = None
    target_texts: Features | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relation.positives == 0:
            raise DataError(
                "no auxiliary image and text are related; give shared labels, pairs or a relation"
            )
        for name, target, own in (
            ("images", self.target_images, self.images),
            ("texts", self.target_texts, self.texts),
        ):
            if target is not None and target.shape[1:] != own.shape[1:]:
                raise DataError(
                    f"target {name} have shape {target.shape[1:]} each, "
                    f"auxiliary {name} {own.shape[1:]}; use the same features for both"
                )
