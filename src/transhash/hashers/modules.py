"""Hashers as traceable torch modules and ONNX graphs, for other runtimes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.features.images import ImageFeatures
from transhash.features.onnx import FromHwcBytes, onnx_graph, torch_network
from transhash.hashers.base import Hasher
from transhash.hashers.projection import affine

OUTPUTS = ("projections", "code")  # of the ONNX graphs
_BIT_VALUES = [128, 64, 32, 16, 8, 4, 2, 1]  # in the bit order of numpy.packbits


class Affine(nn.Module):
    """Computes (x - c) W / s - t in float64 and rounds the result to float32."""

    center: Tensor | None
    weights: Tensor | None
    offset: Tensor | None

    def __init__(
        self,
        weights: npt.NDArray[Any] | None = None,
        center: npt.NDArray[Any] | None = None,
        scale: float = 1.0,
        offset: npt.NDArray[Any] | None = None,
    ) -> None:
        super().__init__()
        for name, array in (("weights", weights), ("offset", offset), ("center", center)):
            self.register_buffer(name, None if array is None else _float64(array))
        self.scale = scale

    @property
    def input_width(self) -> int:
        rows = self.center if self.weights is None else self.weights
        assert rows is not None
        return len(rows)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = affine(x.double(), self.weights, self.center, self.scale, self.offset)
        return z.float()


class Center(nn.Module):
    """Computes x - c in float64."""

    center: Tensor

    def __init__(self, center: npt.NDArray[Any]) -> None:
        super().__init__()
        self.register_buffer("center", _float64(center))

    def forward(self, x: Tensor) -> Tensor:
        return x.double() - self.center


class Translate(nn.Module):
    """Computes C' sgn(z)."""

    translator: Tensor

    def __init__(self, translator: npt.NDArray[Any]) -> None:
        super().__init__()
        self.register_buffer("translator", _float64(translator))

    def forward(self, z: Tensor) -> Tensor:
        code = (z > 0).double() * 2 - 1
        return (code @ self.translator).float()


class Concat(nn.Module):
    """Joins the output columns of several modules."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


class ProjectAndPack(nn.Module):
    """Returns projections and their codes, packed as in `Codes.packed`."""

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projection(x)
        bits = (z > 0).to(torch.int32).reshape(-1, z.shape[1] // 8, 8)
        values = torch.tensor(_BIT_VALUES, dtype=torch.int32)
        return z, (bits * values).sum(dim=2).to(torch.uint8)


def image_graph(hasher: Hasher, features: ImageFeatures | None) -> bytes:
    """Return the ONNX graph from `pixels` (n, size, size, 3), uint8, or from features, to codes."""
    image, _ = hasher.modules()
    if features is None:
        return _feature_graph(image)
    network = features.network()
    if network is not None:
        image = nn.Sequential(torch_network(network), image)
    example = torch.zeros((1, features.size, features.size, 3), dtype=torch.uint8)
    return onnx_graph(ProjectAndPack(FromHwcBytes(image)), example, "pixels", OUTPUTS)


def text_graph(hasher: Hasher) -> bytes:
    """Return the ONNX graph from `features` (n, d), float32, to codes."""
    return _feature_graph(hasher.modules()[1])


def _feature_graph(module: nn.Module) -> bytes:
    width = next(part.input_width for part in module.modules() if isinstance(part, Affine))
    return onnx_graph(ProjectAndPack(module), torch.zeros((1, width)), "features", OUTPUTS)


def _float64(array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(array, np.float64))
