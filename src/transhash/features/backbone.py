"""Backbones that can be trained further, and the image features that come of it."""

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

_COUNTERS = "num_batches_tracked"  # of batch norms: nothing is computed from them


class Stages(nn.Module):
    """A network cut into stages: pixels 0..255 -> scaled -> each stage -> pooled, a row an image.

    Training may begin at any stage; what lies below it is then as it was.
    """

    def __init__(self, *stages: nn.Module) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def scaled(self, pixels: Tensor) -> Tensor:
        """What the first stage takes, of float pixels (n, 3, size, size)."""
        raise NotImplementedError

    def pooled(self, x: Tensor) -> Tensor:
        """Rows of the last stage's output: each channel's mean."""
        return x.mean(dim=(2, 3))

    def inference(self, device: str) -> nn.Module:
        """Bytes (n, 3, size, size) on the device -> float32 rows, as fast as can be."""
        return self.eval().to(device)

    def forward_until(self, pixels: Tensor, first: int) -> Tensor:
        """What stage `first` gets."""
        x = self.scaled(pixels)
        for stage in self.stages[:first]:
            x = stage(x)
        return x

    def forward_from(self, x: Tensor, first: int) -> Tensor:
        """Rows, of what stage `first` gets."""
        for stage in self.stages[first:]:
            x = stage(x)
        return self.pooled(x.float())  # a mean in half precision would be a coarse one

    def forward(self, pixels: Tensor) -> Tensor:
        return self.forward_from(self.forward_until(pixels.float(), 0), 0).float()

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """All that its rows depend on, by name."""
        return {
            name: value.detach().float().cpu().numpy()
            for name, value in self.state_dict().items()
            if not name.endswith(_COUNTERS)
        }


@runtime_checkable
class Backbone(Protocol):
    """Image features (`features.image`) of a network that can be trained further."""

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
        """The network before training, a fresh one at each call, in float32 on the CPU."""


class FineTunedFeatures:
    """Image features of a backbone that was trained further, told from others by their digest."""

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
                missing, strange = stages.load_state_dict(tensors, strict=False)
            except RuntimeError as error:
                raise self._misfit(str(error).splitlines()[-1].strip()) from None
            lost = [name for name in (*missing, *strange) if not name.endswith(_COUNTERS)]
            if lost:
                raise self._misfit(f"{lost[0]} is not in both")
            self._network = stages.inference(self.device)
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
            raise DataError(f"{path} holds numbers that are not finite; fit it anew")
        found = cls(base, weights)
        try:
            found.network()  # says what is wrong before the first picture comes
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        return found

    def _misfit(self, reason: str) -> DataError:
        return DataError(f"these are not weights of {self.base.name} ({reason}); fit it anew")


def extract_pixels(
    network: nn.Module, pixels: Pixels, step: int, device: str
) -> npt.NDArray[np.float32]:
    """Rows of (n, size, size, 3) images, `step` of them a pass."""
    parts = []
    with torch.inference_mode():
        for start in range(0, max(1, len(pixels)), step):  # of none, none
            x = torch.from_numpy(pixels[start : start + step]).to(device)
            parts.append(network(x.permute(0, 3, 1, 2)).cpu().numpy())  # channels last
    return np.concatenate(parts)


def weights_digest(weights: Mapping[str, npt.NDArray[Any]]) -> str:
    """What tells one set of weights from another."""
    digest = hashlib.blake2b(digest_size=8)
    for name, array in sorted(weights.items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
