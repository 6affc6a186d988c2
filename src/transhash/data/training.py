"""What a hasher learns from. Target parts carry no labels: the types leave no place for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.relation import Relation, Rows
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
        """A larger and a held-out part, images and texts drawn independently.

        Where pairs are few, the held-out texts are first of all partners of held-out images:
        independent draws would tear most pairs apart.
        """
        rng = np.random.default_rng(seed)
        n, m = self.relation.shape
        held_x = np.sort(rng.permutation(n)[: max(1, round(share * n))])
        order = rng.permutation(m)
        if self.relation.positives < 10 * max(n, m):
            order = np.concatenate([self.relation.partners(held_x, rng), order])
            order = order[np.sort(np.unique(order, return_index=True)[1])]  # first of each
        held_y = np.sort(order[: max(1, round(share * m))])
        rest_x, rest_y = np.setdiff1d(np.arange(n), held_x), np.setdiff1d(np.arange(m), held_y)
        return self._take(rest_x, rest_y), self._take(held_x, held_y)

    def _take(self, rows: Rows, columns: Rows) -> Related:
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
