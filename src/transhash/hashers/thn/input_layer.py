"""The fixed first layer of the towers, as it is applied and stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array
from transhash.hashers.canonical import Matrix, chunks

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class AffineMap:
    """One modality's affine map; auxiliary and target items have centres of their own."""

    axes: Matrix | None  # (d, k); None passes features on
    centre: Matrix  # of auxiliary items
    target_centre: Matrix
    size: float = 1.0  # divides
    finer: Matrix | None = None  # (d, f): further bits, that tell items of a class apart

    def apply(self, features: Features, target: bool = True) -> npt.NDArray[np.float32]:
        if features.shape[1:] != self.centre.shape:
            raise DataError(
                f"features have shape {features.shape[1:]} each, the method learned from "
                f"{self.centre.shape}; use the same features for both"
            )
        width = features.shape[1] if self.axes is None else self.axes.shape[1]
        found = np.empty((len(features), width), np.float32)
        for rows, shifted in self._shifted(features, target):
            moved = shifted if self.axes is None else shifted @ self.axes
            found[rows] = moved / self.size
        return found

    def with_finer(
        self, z: npt.NDArray[np.float32], features: Features, target: bool
    ) -> npt.NDArray[np.float32]:
        """A tower's projections z of these items, and the bits that stand beside it."""
        if self.finer is None or not len(z):
            return z
        more = np.empty((len(z), self.finer.shape[1]), np.float32)
        for rows, shifted in self._shifted(features, target):
            more[rows] = shifted @ self.finer
        return np.hstack([z, more])

    def module(self, tower: nn.Module) -> nn.Module:
        """This map, the tower above it and the bits beside it, of target items."""
        from torch import nn

        from transhash.hashers.modules import Affine, Concat

        first = Affine(self.axes, centre=self.target_centre, size=self.size)
        towers = nn.Sequential(first, tower)
        if self.finer is None:
            return towers
        return Concat(towers, Affine(self.finer, centre=self.target_centre))

    def _shifted(self, features: Features, target: bool) -> Iterator[tuple[slice, Matrix]]:
        """Centred rows in float64, never all of them: a million would be 10 GB."""
        return chunks(features, self.target_centre if target else self.centre)


@dataclass(frozen=True)
class TowerInputs:
    """What the towers are trained on."""

    images: Array
    texts: Array
    target_images: Array | None = None
    target_texts: Array | None = None
    image_weight: Array | None = None  # how much target mass an auxiliary item is matched with
    text_weight: Array | None = None
    calibration: tuple[float, float] | None = None  # P(s = 1) = sigmoid(a cos(x, y) + c)


@dataclass(frozen=True)
class InputLayer:
    """Both modalities' maps."""

    image: AffineMap | None  # None: pixels
    text: AffineMap

    @property
    def residual_bit_axes(self) -> int:
        """How many bits of a code are not the towers'."""
        return 0 if self.text.finer is None else self.text.finer.shape[1]

    def state(self) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for name, view in (("image", self.image), ("text", self.text)):
            if view is None:
                continue
            state[f"input_layer.{name}.centre"] = view.centre
            state[f"input_layer.{name}.target_centre"] = view.target_centre
            state[f"input_layer.{name}.size"] = np.array([view.size])
            if view.axes is not None:
                state[f"input_layer.{name}.axes"] = view.axes
            if view.finer is not None:
                state[f"input_layer.{name}.finer"] = view.finer
        return state

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> InputLayer:
        def view(name: str) -> AffineMap | None:
            if f"input_layer.{name}.centre" not in state:
                return None
            return AffineMap(
                state.get(f"input_layer.{name}.axes"),
                state[f"input_layer.{name}.centre"],
                state[f"input_layer.{name}.target_centre"],
                float(state[f"input_layer.{name}.size"][0]),
                state.get(f"input_layer.{name}.finer"),
            )

        text = view("text")
        if text is None:
            raise DataError("this is not a saved THN: it lacks input_layer.text.centre")
        return cls(view("image"), text)


def centered_input_layer(training: TrainingSet, use_target: bool) -> tuple[InputLayer, TowerInputs]:
    """Features with one centre and one global scale, as in the paper; pixels as they are."""
    image = None if training.images.ndim > 2 else _plain_view(training.images)
    text = _plain_view(training.texts)
    target_images = training.target_images if use_target else None
    target_texts = training.target_texts if use_target else None
    return InputLayer(image, text), TowerInputs(
        training.images if image is None else image.apply(training.images),
        text.apply(training.texts),
        target_images if target_images is None or image is None else image.apply(target_images),
        None if target_texts is None else text.apply(target_texts),
    )


def _plain_view(features: Features) -> AffineMap:
    centre = features.mean(axis=0, dtype=np.float64)
    squares = sum(float((part**2).sum()) for _, part in chunks(features, centre))
    size = max(float(np.sqrt(squares / max(features.size, 1))), 1e-9)
    return AffineMap(None, centre, centre, size)
