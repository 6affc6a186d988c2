"""What hashers compute, as torch modules that can be traced: for runtimes other than this one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.features.images import ImageFeatures
from transhash.features.onnx import FromHwcBytes, onnx_graph, torch_network
from transhash.hashers.base import Hasher

_PLACES = [128, 64, 32, 16, 8, 4, 2, 1]  # of the bits in a byte, as numpy.packbits has them


class Affine(nn.Module):
    """(x - c) W / s - t in float64, rounded to float32 at the end."""

    centre: Tensor | None
    weights: Tensor | None
    offset: Tensor | None

    def __init__(
        self,
        weights: npt.NDArray[Any] | None = None,
        offset: npt.NDArray[Any] | None = None,
        centre: npt.NDArray[Any] | None = None,
        size: float = 1.0,
    ) -> None:
        super().__init__()
        for name, array in (("weights", weights), ("offset", offset), ("centre", centre)):
            fixed = None if array is None else torch.from_numpy(np.array(array, np.float64))
            self.register_buffer(name, fixed)
        self.size = size

    @property
    def width(self) -> int:
        """How long the vectors are that it takes."""
        known = self.centre if self.weights is None else self.weights
        assert known is not None
        return len(known)

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()
        if self.centre is not None:
            x = x - self.centre
        if self.weights is not None:
            x = x @ self.weights
        if self.size != 1.0:
            x = x / self.size
        if self.offset is not None:
            x = x - self.offset
        return x.float()


class Center(nn.Module):
    """x - c, left in float64."""

    centre: Tensor

    def __init__(self, centre: npt.NDArray[Any]) -> None:
        super().__init__()
        self.register_buffer("centre", torch.from_numpy(np.array(centre, np.float64)))

    def forward(self, x: Tensor) -> Tensor:
        return x.double() - self.centre


class Translate(nn.Module):
    """C' sgn(z)."""

    translator: Tensor

    def __init__(self, translator: npt.NDArray[Any]) -> None:
        super().__init__()
        self.register_buffer("translator", torch.from_numpy(np.array(translator, np.float64)))

    def forward(self, z: Tensor) -> Tensor:
        own = (z > 0).double() * 2 - 1
        return (own @ self.translator).float()


class Concat(nn.Module):
    """The columns of two modules, side by side."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


class ProjectAndPack(nn.Module):
    """Projections and their codes, as `Codes.packed` has them."""

    def __init__(self, projecting: nn.Module) -> None:
        super().__init__()
        self.projecting = projecting

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projecting(x)
        bits = (z > 0).to(torch.int32).reshape(-1, z.shape[1] // 8, 8)
        places = torch.tensor(_PLACES, dtype=torch.int32)
        return z, (bits * places).sum(dim=2).to(torch.uint8)


# The two functions of a hasher as ONNX files: pixels or features in, projections and codes out.

OUTPUTS = ("projections", "code")


def image_graph(hasher: Hasher, features: ImageFeatures | None) -> bytes:
    """`pixels` (n, size, size, 3) of uint8 -> code; of precomputed features, those -> code."""
    image, _ = hasher.modules()
    if features is None:
        return _of_features(image)
    network = features.network()
    if network is not None:
        image = nn.Sequential(torch_network(network), image)
    example = torch.zeros((1, features.size, features.size, 3), dtype=torch.uint8)
    return onnx_graph(ProjectAndPack(FromHwcBytes(image)), example, "pixels", OUTPUTS)


def text_graph(hasher: Hasher) -> bytes:
    """`features` (n, d) of float32 -> code."""
    return _of_features(hasher.modules()[1])


def _of_features(module: nn.Module) -> bytes:
    width = next(part.width for part in module.modules() if isinstance(part, Affine))
    return onnx_graph(ProjectAndPack(module), torch.zeros((1, width)), "features", OUTPUTS)
