"""Pillow's bilinear resize, to the last bit, of many small pictures at once on a device.

A core spends most of a small picture's time on making it larger; a GPU does that in passing.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BITS = 22  # of a weight, as Pillow rounds them
_TOGETHER = 128  # pictures: what lies between in double precision takes 2.4 MB each


def enlarged(pixels: Tensor, shapes: npt.NDArray[np.int64]) -> Tensor:
    """Pictures (n, size, size, 3) whose upper left (height, width) is filled, brought to size.

    Weights are whole numbers and their sums fit into the 53 bits of a float64, so every sum is
    exact in whatever order a device adds.
    """
    size = pixels.shape[1]
    rows = np.flatnonzero((shapes != size).any(axis=1))
    if not len(rows):
        return pixels
    found = pixels.clone()
    for start in range(0, len(rows), _TOGETHER):
        own = shapes[rows[start : start + _TOGETHER]]
        some = torch.from_numpy(rows[start : start + _TOGETHER]).to(pixels.device)
        height, width = own.max(axis=0).tolist()
        down, across = (
            _weights(own[:, axis], longest, size, pixels.device)
            for axis, longest in enumerate((height, width))
        )
        part = pixels[some, :height, :width].transpose(2, 3).flatten(1, 2).double()
        part = _rounded(part @ across.mT)  # (n, height * 3, size)
        part = _rounded(down @ part.view(-1, height, 3 * size))
        found[some] = part.view(-1, size, 3, size).transpose(2, 3).byte()
    return found


def _rounded(sums: Tensor) -> Tensor:
    return sums.add_(1 << (_BITS - 1)).mul_(2.0**-_BITS).floor_().clamp_(0, 255)


def _weights(
    lengths: npt.NDArray[np.int64], longest: int, size: int, device: torch.device
) -> Tensor:
    """(n, size, longest): of each picture's own length, and nothing of what lies beyond it."""
    known, which = np.unique(lengths, return_inverse=True)
    table = np.zeros((len(known), size, longest))
    for row, length in zip(table, known.tolist()):
        row[:, :length] = _bilinear(length, size)
    return torch.from_numpy(table).to(device)[torch.from_numpy(which).to(device)]


@cache
def _bilinear(length: int, size: int) -> npt.NDArray[np.float64]:
    scale = length / size
    reach = max(scale, 1.0)
    centre = (np.arange(size) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(int), 0)
    last = np.minimum((centre + reach + 0.5).astype(int), length)
    place = np.arange(length)
    weights = np.maximum(1 - np.abs((place - centre[:, None] + 0.5) / reach), 0)
    weights *= (place >= first[:, None]) & (place < last[:, None])
    weights /= weights.sum(axis=1, keepdims=True)
    whole: npt.NDArray[np.float64] = np.floor(0.5 + weights * (1 << _BITS))
    return whole
