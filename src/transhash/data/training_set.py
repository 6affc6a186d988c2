"""What a hasher learns from. Target parts carry no labels: the types leave no place for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.relation import Relation, Rows
from transhash.errors import DataError

Features = npt.NDArray[Any]  # (n, d) float features, or (n, 3, h, w) uint8 pixels
_ROWS = 8192  # looked at together
MAX_ABS_VALUE = 1e15  # of a feature: sums of 10^8 squares still fit into float32


@dataclass(frozen=True)
class AuxiliarySet:
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
        _check_values("auxiliary image", self.images)
        _check_values("auxiliary text", self.texts)

    def split(self, share: float, seed: int) -> tuple[AuxiliarySet, AuxiliarySet]:
        """A larger and a held-out part, images and texts drawn independently.

        Where pairs are few, the held-out texts are first of all partners of held-out images:
        independent draws would tear most pairs apart.
        """
        rng = np.random.default_rng(seed)
        n, m = self.relation.shape
        held_x = np.sort(rng.permutation(n)[: max(1, round(share * n))])
        order = rng.permutation(m)
        if self.relation.positives < 10 * max(n, m):
            order = np.concatenate([self.relation.sample_partners(held_x, rng), order])
            order = order[np.sort(np.unique(order, return_index=True)[1])]  # first of each
        held_y = np.sort(order[: max(1, round(share * m))])
        rest_x, rest_y = np.setdiff1d(np.arange(n), held_x), np.setdiff1d(np.arange(m), held_y)
        return self._take(rest_x, rest_y), self._take(held_x, held_y)

    def _take(self, rows: Rows, columns: Rows) -> AuxiliarySet:
        return AuxiliarySet(
            self.images[rows], self.texts[columns], self.relation.subset(rows, columns)
        )


@dataclass(frozen=True)
class TrainingSet(AuxiliarySet):
    """Auxiliary data plus unlabelled target items, which only THN can use."""

    target_images: Features | None = None
    target_texts: Features | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("target_images", "target_texts"):
            if (part := getattr(self, name)) is not None and not len(part):
                object.__setattr__(self, name, None)  # none at all are none
        for kind, target, own in (
            ("image", self.target_images, self.images),
            ("text", self.target_texts, self.texts),
        ):
            _refuse_zeros(f"auxiliary {kind}", own)
            if target is None:
                continue
            if target.shape[1:] != own.shape[1:]:
                raise DataError(
                    f"target {kind}s have shape {target.shape[1:]} each, "
                    f"auxiliary {kind}s {own.shape[1:]}; use the same features for both"
                )
            _check_values(f"target {kind}", target)
            _refuse_zeros(f"target {kind}", target)
        if self.relation.positives == 0:
            raise DataError(
                "no auxiliary image and text are related; give shared labels, pairs or a relation"
            )
        if self.relation.positives == self.relation.known:
            raise DataError(
                "every known pair of auxiliary image and text is related, so nothing tells them "
                "apart; give items of more than one class, or unrelated pairs (value 0) too"
            )


def _check_values(name: str, part: Features) -> None:
    """Refuse the first row with a value that no method can compute with."""
    if part.dtype.kind not in "fiub":
        raise DataError(f"{name}s must be numbers, got an array of {part.dtype}")
    if part.dtype == np.uint8:  # pixels
        return
    limit = (
        min(MAX_ABS_VALUE, float(np.finfo(part.dtype).max))
        if part.dtype.kind == "f"
        else MAX_ABS_VALUE
    )
    for start in range(0, len(part), _ROWS):  # no mask of all: there may be a million rows
        some = part[start : start + _ROWS]
        sound = (some >= -limit) & (some <= limit)  # NaN and infinity are not
        if not sound.all():
            break
    else:
        return
    at = int(np.argmin(sound.reshape(len(some), -1).all(axis=1)))
    row, value = start + at, some[at][~sound[at]][0]
    if np.isfinite(value):
        raise DataError(
            f"{name} {row} has the feature {value:.3g}; beyond {MAX_ABS_VALUE:.0e} squares overflow: "
            "divide the features by their standard deviation"
        )
    raise DataError(f"{name} {row} has a feature that is not a finite number ({value})")


def _refuse_zeros(name: str, part: Features) -> None:
    # A single zero row is a text without a known word; all of them are a mistake.
    if part.dtype != np.uint8 and len(part) and not part.any():
        raise DataError(f"every {name} is a row of zeros; nothing can be learned from them")
