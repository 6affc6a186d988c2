"""Backbones that can be fine-tuned, and image features of fine-tuned ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.errors import DataError
from transhash.features import BACKBONE_FILE, FINE_TUNED_SUFFIX
from transhash.features.decode import Pixels
from transhash.features.onnx import precision_key
from transhash.storage import read_tensors, write_tensors

_COUNTERS = "num_batches_tracked"  # of batch norms: outputs do not depend on them


class Stages(nn.Module):
    """A network as a list of stages, so that training can start at any of them.

    Pixels 0..255 are scaled, passed through every stage and pooled to one row per image.
    """

    def __init__(self, *stages: nn.Module) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def scale(self, pixels: Tensor) -> Tensor:
        """Return the input of the first stage for float pixels (n, 3, size, size)."""
        raise NotImplementedError

    def pool(self, x: Tensor) -> Tensor:
        """Return the mean of each channel of the last stage's output."""
        return x.mean(dim=(2, 3))

    def for_inference(self, device: str) -> nn.Module:
        """Return the fastest network on the device for bytes (n, 3, size, size)."""
        return self.eval().to(device)

    def forward_until(self, pixels: Tensor, first: int) -> Tensor:
        """Return the input of stage `first`."""
        x = self.scale(pixels)
        for stage in self.stages[:first]:
            x = stage(x)
        return x

    def forward_from(self, x: Tensor, first: int) -> Tensor:
        """Return rows for the input of stage `first`."""
        for stage in self.stages[first:]:
            x = stage(x)
        return self.pool(x.float())  # half precision is too coarse for a mean

    def forward(self, pixels: Tensor) -> Tensor:
        return self.forward_from(self.forward_until(pixels.float(), 0), 0).float()

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays that the output depends on, by name."""
        return {
            name: value.detach().float().cpu().numpy()
            for name, value in self.state_dict().items()
            if not name.endswith(_COUNTERS)
        }


@runtime_checkable
class Backbone(Protocol):
    """Image features (see `features.images`) of a network that can be fine-tuned."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    def cache_key(self) -> str | None: ...

    def extract(self, pixels: Pixels) -> npt.NDArray[Any]: ...

    def network(self) -> nn.Module | None: ...

    def trainable(self) -> Stages:
        """Return a new copy of the pretrained network, in float32 on the CPU."""


class FineTunedFeatures:
    """Image features of a fine-tuned backbone, identified by a digest of its weights."""

    def __init__(self, base: Backbone, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        self.base, self.weights = base, dict(weights)
        self.name, self.size = base.name + FINE_TUNED_SUFFIX, base.size
        self.device, self.batch_size = base.device, base.batch_size
        self.digest = weights_digest(self.weights)
        self._network: nn.Module | None = None

    def cache_key(self) -> str:
        return f"{self.name}:{self.size}:1:{precision_key(self.device)}:{self.digest}"

    def network(self) -> nn.Module:
        if self._network is None:
            stages = self.base.trainable()
            tensors = {name: torch.from_numpy(array) for name, array in self.weights.items()}
            try:
                missing, unexpected = stages.load_state_dict(tensors, strict=False)
            except RuntimeError as error:
                raise self._mismatch(str(error).splitlines()[-1].strip()) from None
            names = [name for name in (*missing, *unexpected) if not name.endswith(_COUNTERS)]
            if names:
                raise self._mismatch(f"{names[0]} is not in both")
            self._network = stages.for_inference(self.device)
        return self._network

    def extract(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        return extract_pixels(self.network(), pixels, self.batch_size, self.device)

    def save(self, folder: Path) -> None:
        write_tensors(folder / BACKBONE_FILE, self.weights)

    @classmethod
    def load(cls, folder: Path, base: Backbone) -> FineTunedFeatures:
        path = folder / BACKBONE_FILE
        weights = read_tensors(path)
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise DataError(f"{path} has values that are not finite. Refit the run.")
        features = cls(base, weights)
        try:
            features.network()  # fails here rather than at the first image
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        return features

    def _mismatch(self, reason: str) -> DataError:
        return DataError(f"The weights do not match {self.base.name} ({reason}). Refit the run.")


def extract_pixels(
    network: nn.Module, pixels: Pixels, batch_size: int, device: str
) -> npt.NDArray[np.float32]:
    """Return the rows of images (n, size, size, 3)."""
    batches = []
    with torch.inference_mode():
        # An empty batch still passes the network, which gives the number of dimensions.
        for start in range(0, max(1, len(pixels)), batch_size):
            x = torch.from_numpy(pixels[start : start + batch_size]).to(device)
            batches.append(network(x.permute(0, 3, 1, 2)).cpu().numpy())
    return np.concatenate(batches)


def weights_digest(weights: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return a digest of names, shapes, types and values."""
    digest = hashlib.blake2b(digest_size=8)
    for name, array in sorted(weights.items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
