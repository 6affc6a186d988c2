"""The input layer: the fixed first layer of both towers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array
from transhash.hashers.projection import AffineMap, chunks


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
        image = {} if self.image is None else self.image.state("image")
        return {**image, **self.text.state("text")}

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> InputLayer:
        text = AffineMap.from_state(state, "text")
        if text is None:
            raise DataError("The saved THN lacks input_layer.text.center. Refit the model.")
        return cls(AffineMap.from_state(state, "image"), text)


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
