"""Rows of a backbone -> activations while it is trained; afterwards a hasher learns from rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.data.training import Features
from transhash.hashers.fine_tuning.lessons import Lessons

_RIDGE = 1e-3  # relative to the mean size of a feature


class ImageHead(nn.Module):
    """Linear, with a shift of its own for the target domain, as THN has a centre of its own."""

    def __init__(self, weight: Tensor, bias: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.shift = nn.Parameter(shift)

    def forward(self, rows: Tensor, target: bool) -> Tensor:  # (n, d) -> (n, bits), before tanh
        z = rows @ self.weight + self.bias
        return z + self.shift if target else z


def started_head(lessons: Lessons, images: Features, target: Features | None) -> ImageHead:
    """The head that says most nearly what the teacher says, by ridge regression."""
    x, z = images.astype(np.float64), lessons.images.astype(np.float64)
    centre, aim = x.mean(axis=0), z.mean(axis=0)
    x, z = x - centre, z - aim
    shift = np.zeros(z.shape[1])
    if target is not None and lessons.target_images is not None:
        # With its own intercept each domain is regressed around its own means.
        more, wanted = target.astype(np.float64), lessons.target_images.astype(np.float64)
        target_centre, target_aim = more.mean(axis=0), wanted.mean(axis=0)
        x = np.concatenate([x, more - target_centre])
        z = np.concatenate([z, wanted - target_aim])
    gram = x.T @ x
    gram[np.diag_indices_from(gram)] += max(_RIDGE * float(np.trace(gram)) / len(gram), 1e-9)
    weight = np.linalg.solve(gram, x.T @ z)
    bias = aim - centre @ weight
    if target is not None and lessons.target_images is not None:
        shift = target_aim - target_centre @ weight - bias
    return ImageHead(_tensor(weight), _tensor(bias), _tensor(shift))


def _tensor(array: npt.NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))
