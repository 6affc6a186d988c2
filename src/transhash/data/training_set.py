"""The data a hasher is fitted on. Target items have no labels: the types have no field for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.draw import put_partners_first
from transhash.data.relation import Relation, Rows
from transhash.errors import DataError, check_type, type_name

Features = npt.NDArray[Any]  # (n, d) float features, or (n, 3, h, w) uint8 pixels
_CHUNK_ROWS = 8192
MAX_ABS_VALUE = 1e15  # sums of 10^8 squares of such features still fit into float32


_ARRAY = "an array of features, one row per item"


@dataclass(frozen=True)
class AuxiliarySet:
    """Auxiliary images and texts with their relation S."""

    images: Features  # X
    texts: Features  # Y
    relation: Relation  # S

    def __post_init__(self) -> None:
        check_type(self.images, np.ndarray, "The images", _ARRAY)
        check_type(self.texts, np.ndarray, "The texts", _ARRAY)
        if not isinstance(getattr(self.relation, "shape", None), tuple) or isinstance(
            self.relation, np.ndarray
        ):
            raise DataError(
                f"The relation is {type_name(self.relation)}. Pass a transhash.LabelRelation, "
                "SparseRelation or GradedRelation."
            )
        if self.relation.shape != (len(self.images), len(self.texts)):
            raise DataError(
                f"The relation is {self.relation.shape[0]} x {self.relation.shape[1]} but there "
                f"are {len(self.images)} images and {len(self.texts)} texts. Make them agree."
            )
        _check_values("auxiliary image", self.images)
        _check_values("auxiliary text", self.texts)

    def split(self, fraction: float, seed: int) -> tuple[AuxiliarySet, AuxiliarySet]:
        """Hold out a fraction of the images and of the texts; return the rest and the held-out set.

        Images and texts are drawn independently. If pairs are few, partners of held-out images are
        held out first, because independent draws would separate most pairs.
        """
        rng = np.random.default_rng(seed)
        n, m = self.relation.shape
        held_x = np.sort(rng.permutation(n)[: max(1, round(fraction * n))])
        order = rng.permutation(m)
        if self.relation.positives < 10 * max(n, m):
            order = put_partners_first(self.relation, held_x, order, rng)
        held_y = np.sort(order[: max(1, round(fraction * m))])
        rest_x, rest_y = np.setdiff1d(np.arange(n), held_x), np.setdiff1d(np.arange(m), held_y)
        return self._subset(rest_x, rest_y), self._subset(held_x, held_y)

    def _subset(self, rows: Rows, columns: Rows) -> AuxiliarySet:
        return AuxiliarySet(
            self.images[rows], self.texts[columns], self.relation.subset(rows, columns)
        )


@dataclass(frozen=True)
class TrainingSet(AuxiliarySet):
    """An auxiliary set plus unlabeled target items, for transductive methods."""

    target_images: Features | None = None
    target_texts: Features | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("target_images", "target_texts"):
            check_type(getattr(self, name), (np.ndarray, type(None)), name, _ARRAY)
            if (features := getattr(self, name)) is not None and not len(features):
                object.__setattr__(self, name, None)
        for item, target, auxiliary in (
            ("image", self.target_images, self.images),
            ("text", self.target_texts, self.texts),
        ):
            _check_not_all_zero(f"auxiliary {item}", auxiliary)
            if target is None:
                continue
            if target.shape[1:] != auxiliary.shape[1:]:
                raise DataError(
                    f"Target {item}s have features of shape {target.shape[1:]} but auxiliary "
                    f"{item}s {auxiliary.shape[1:]}. Use the same features for both."
                )
            _check_values(f"target {item}", target)
            _check_not_all_zero(f"target {item}", target)
        if self.relation.positives == 0:
            raise DataError(
                "No auxiliary image and text are related. Pass shared labels, pairs or a relation."
            )
        if self.relation.positives == self.relation.known:
            raise DataError(
                "All known pairs of auxiliary image and text are related. "
                "Add items of another class, or unrelated pairs (value 0)."
            )


def _check_values(name: str, features: Features) -> None:
    """Raise for the first row with a value that is not finite or too large."""
    if features.dtype.kind not in "fiub":
        raise DataError(f"The {name}s have the type {features.dtype}. Pass an array of numbers.")
    if features.dtype == np.uint8:  # pixels
        return
    limit = MAX_ABS_VALUE
    if features.dtype.kind == "f":
        limit = min(limit, float(np.finfo(features.dtype).max))
    for start in range(0, len(features), _CHUNK_ROWS):
        chunk = features[start : start + _CHUNK_ROWS]
        valid = (chunk >= -limit) & (chunk <= limit)  # false for NaN and infinity
        if not valid.all():
            i = int(np.argmin(valid.reshape(len(chunk), -1).all(axis=1)))
            value = chunk[i][~valid[i]][0]
            remedy = (
                "Divide the features by their standard deviation."
                if np.isfinite(value)
                else "Remove or correct it."
            )
            raise DataError(f"The {name} {start + i} has the feature {value:.3g}. {remedy}")


def _check_not_all_zero(name: str, features: Features) -> None:
    # A single zero row is a text without a known word.
    if features.dtype != np.uint8 and len(features) and not features.any():
        raise DataError(f"All {name} features are zero. Check how they were computed.")
