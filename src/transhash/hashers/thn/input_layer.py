"""The input layer: the fixed first layer of both towers, applied and stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, check_width
from transhash.hashers.canonical import Matrix, chunks

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class AffineMap:
    """The affine map of one modality, with different centers for auxiliary and target items."""

    axes: Matrix | None  # (d, k); None: identity
    center: Matrix  # of auxiliary items
    target_center: Matrix
    scale: float = 1.0  # divides
    residual_axes: Matrix | None = None  # (d, f): bits that distinguish items of a class

    def apply(self, features: Features, target: bool = True) -> npt.NDArray[np.float32]:
        check_width(features, len(self.center), "features")
        width = features.shape[1] if self.axes is None else self.axes.shape[1]
        out = np.empty((len(features), width), np.float32)
        for rows, centered in self._centered(features, target):
            projected = centered if self.axes is None else centered @ self.axes
            out[rows] = projected / self.scale
        return out

    def append_residual_bits(
        self, z: npt.NDArray[np.float32], features: Features, target: bool
    ) -> npt.NDArray[np.float32]:
        """Append the residual bits of these features to their tower outputs z."""
        if self.residual_axes is None or not len(z):
            return z
        residual = np.empty((len(z), self.residual_axes.shape[1]), np.float32)
        for rows, centered in self._centered(features, target):
            residual[rows] = centered @ self.residual_axes
        return np.hstack([z, residual])

    def module(self, tower: nn.Module) -> nn.Module:
        """Return this map, the tower and the residual bits of target items as one module."""
        from torch import nn

        from transhash.hashers.modules import Affine, Concat

        first = Affine(self.axes, center=self.target_center, scale=self.scale)
        tower = nn.Sequential(first, tower)
        if self.residual_axes is None:
            return tower
        return Concat(tower, Affine(self.residual_axes, center=self.target_center))

    def _centered(self, features: Features, target: bool) -> Iterator[tuple[slice, Matrix]]:
        return chunks(features, self.target_center if target else self.center)


@dataclass(frozen=True)
class TowerInputs:
    """What the towers are trained on."""

    images: Array
    texts: Array
    target_images: Array | None = None
    target_texts: Array | None = None
    image_weight: Array | None = None  # in MMD, by the target items matched with it
    text_weight: Array | None = None
    calibration: tuple[float, float] | None = None  # P(s = 1) = sigmoid(a cos(x, y) + c)


@dataclass(frozen=True)
class InputLayer:
    """The maps of both modalities."""

    image: AffineMap | None  # None: pixels
    text: AffineMap

    @property
    def residual_bits(self) -> int:
        return 0 if self.text.residual_axes is None else self.text.residual_axes.shape[1]

    def state(self) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for name, layer in (("image", self.image), ("text", self.text)):
            if layer is None:
                continue
            state[f"input_layer.{name}.center"] = layer.center
            state[f"input_layer.{name}.target_center"] = layer.target_center
            state[f"input_layer.{name}.scale"] = np.array([layer.scale])
            if layer.axes is not None:
                state[f"input_layer.{name}.axes"] = layer.axes
            if layer.residual_axes is not None:
                state[f"input_layer.{name}.residual_axes"] = layer.residual_axes
        return state

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> InputLayer:
        def restore_map(name: str) -> AffineMap | None:
            prefix = f"input_layer.{name}"
            if f"{prefix}.center" not in state:
                return None
            return AffineMap(
                state.get(f"{prefix}.axes"),
                state[f"{prefix}.center"],
                state[f"{prefix}.target_center"],
                float(state[f"{prefix}.scale"][0]),
                state.get(f"{prefix}.residual_axes"),
            )

        text = restore_map("text")
        if text is None:
            raise DataError("The saved THN lacks input_layer.text.center. Refit the model.")
        return cls(restore_map("image"), text)


def centered_input_layer(training: TrainingSet, use_target: bool) -> tuple[InputLayer, TowerInputs]:
    """Return features with one center and one scale, as in the paper; pixels are unchanged."""
    image = None if training.images.ndim > 2 else _standardize(training.images)
    text = _standardize(training.texts)
    target_images = training.target_images if use_target else None
    target_texts = training.target_texts if use_target else None
    return InputLayer(image, text), TowerInputs(
        training.images if image is None else image.apply(training.images),
        text.apply(training.texts),
        target_images if target_images is None or image is None else image.apply(target_images),
        None if target_texts is None else text.apply(target_texts),
    )


def _standardize(features: Features) -> AffineMap:
    center = features.mean(axis=0, dtype=np.float64)
    squares = sum(float((part**2).sum()) for _, part in chunks(features, center))
    scale = max(float(np.sqrt(squares / max(features.size, 1))), 1e-9)
    return AffineMap(None, center, center, scale)
