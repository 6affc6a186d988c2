"""The formulas from features to projections, shared by training, ONNX graphs and NumPy queries.

Needs neither torch nor SciPy, so that text queries start fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError, check_type

if TYPE_CHECKING:
    from torch import nn

    from transhash.data.training_set import Features

Matrix = npt.NDArray[np.float64]
Projections = npt.NDArray[np.float32]
_CHUNK_ROWS = 4096  # rows converted to float64 at a time: 40 MB at 1,280 features


def affine(
    x: Any, weights: Any = None, center: Any = None, scale: float = 1.0, offset: Any = None
) -> Any:
    """Return (x - c) W / s - t of arrays or tensors, without the parts that are None."""
    if center is not None:
        x = x - center
    if weights is not None:
        x = x @ weights
    if scale != 1.0:
        x = x / scale
    return x if offset is None else x - offset


class TowerOps(Protocol):
    """The operations of a tower, of NumPy or torch."""

    def normalize(self, x: Any) -> Any: ...

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any: ...

    def relu(self, x: Any) -> Any: ...


def run_layers(
    ops: TowerOps,
    x: Any,
    hidden: Sequence[tuple[Any, Any]],
    fch: tuple[Any, Any],
    linear: Any = None,
) -> Any:
    """Return the (n, bits) outputs of a tower before tanh.

    A perceptron has hidden layers and fch. With `linear`, a linear path is added, and rows are
    normalized first: the relation is in directions; norms only tell how typical an item is.
    """
    if linear is not None:
        x = ops.normalize(x) * math.sqrt(x.shape[1])
    z = x
    for weight, bias in hidden:
        z = ops.relu(ops.linear(z, weight, bias))
    z = ops.linear(z, *fch)
    return z if linear is None else z + ops.linear(x, linear)


class _NumpyOps:
    def normalize(self, x: Projections) -> Projections:
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        return np.asarray(x / np.maximum(norms, np.float32(1e-12)))

    def linear(self, x: Projections, weight: Projections, bias: Any = None) -> Projections:
        return x @ weight.T if bias is None else np.asarray(x @ weight.T + bias)

    def relu(self, x: Projections) -> Projections:
        return np.maximum(x, 0)


def numpy_tower(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> Callable[[Any], Projections]:
    """Return the saved tower "image" or "text" as a function of NumPy arrays."""
    prefix = f"towers.{name}"
    hidden: list[tuple[Any, Any]] = []
    while (layer := f"{prefix}.hidden.{len(hidden)}") + ".weight" in arrays:
        hidden.append((arrays[f"{layer}.weight"], arrays[f"{layer}.bias"]))
    fch = arrays[f"{prefix}.fch.weight"], arrays[f"{prefix}.fch.bias"]
    linear = arrays.get(f"{prefix}.linear.weight")
    return lambda x: np.asarray(run_layers(_NumpyOps(), x, hidden, fch, linear), np.float32)


@dataclass(frozen=True)
class AffineMap:
    """The input layer of one modality, with different centers for auxiliary and target items."""

    axes: Matrix | None  # (d, k); None: identity
    center: Matrix  # of auxiliary items
    target_center: Matrix
    scale: float = 1.0  # divides
    residual_axes: Matrix | None = None  # (d, f): bits that distinguish items of a class

    def apply(self, features: Features, target: bool = True) -> Projections:
        check_width(features, len(self.center), "features")
        width = features.shape[1] if self.axes is None else self.axes.shape[1]
        out = np.empty((len(features), width), np.float32)
        for rows, centered in chunks(features, self.target_center if target else self.center):
            out[rows] = affine(centered, self.axes, scale=self.scale)
        return out

    def append_residual_bits(self, z: Projections, features: Features, target: bool) -> Projections:
        """Append the residual bits of these features to their tower outputs z."""
        if self.residual_axes is None or not len(z):
            return z
        residual = np.empty((len(z), self.residual_axes.shape[1]), np.float32)
        for rows, centered in chunks(features, self.target_center if target else self.center):
            residual[rows] = centered @ self.residual_axes
        return np.hstack([z, residual])

    def module(self, tower: nn.Module) -> nn.Module:
        """Return this map, the tower and the residual bits of target items as one module."""
        from torch import nn

        from transhash.hashers.modules import Affine, Concat

        tower = nn.Sequential(Affine(self.axes, self.target_center, self.scale), tower)
        if self.residual_axes is None:
            return tower
        return Concat(tower, Affine(self.residual_axes, self.target_center))

    def state(self, name: str) -> dict[str, npt.NDArray[Any]]:
        arrays = {
            "center": self.center,
            "target_center": self.target_center,
            "scale": np.array([self.scale]),
            "axes": self.axes,
            "residual_axes": self.residual_axes,
        }
        return {f"input_layer.{name}.{k}": v for k, v in arrays.items() if v is not None}

    @classmethod
    def from_state(cls, state: Mapping[str, npt.NDArray[Any]], name: str) -> AffineMap | None:
        """Return the map of "image" or "text" from saved arrays, or None if there is none."""
        prefix = f"input_layer.{name}"
        if f"{prefix}.center" not in state:
            return None
        return cls(
            state.get(f"{prefix}.axes"),
            state[f"{prefix}.center"],
            state[f"{prefix}.target_center"],
            float(state[f"{prefix}.scale"][0]),
            state.get(f"{prefix}.residual_axes"),
        )


def project_linear(
    features: Features, weights: Matrix, offset: Matrix, modality: str
) -> Projections:
    """Return x W - t, computed in float64."""
    check_width(features, len(weights), modality)
    out = np.empty((len(features), weights.shape[1]), dtype=np.float32)
    for rows, part in chunks(features):
        out[rows] = affine(part, weights, offset=offset)
    return check_finite(out, modality)


def chunks(features: Features, mean: Matrix | None = None) -> Iterator[tuple[slice, Matrix]]:
    """Yield chunks of rows in float64, minus the mean; callers must not write to them."""
    for start in range(0, len(features), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        part = features[rows]
        if mean is None or not mean.any():
            yield rows, part.astype(np.float64, copy=False)
        else:
            yield rows, part - mean


def check_width(features: Features, width: int, modality: str) -> Features:
    """Return `features` if they are vectors of `width` entries, or raise a DataError."""
    check_type(features, np.ndarray, f"The {modality}", "an array of features")
    if features.shape[1:] != (width,):
        raise DataError(
            f"The {modality} have shape {features.shape[1:]}, but the model was trained on vectors "
            f"of {width}. Use the same features as in training."
        )
    return features


def check_finite(projections: Projections, modality: str) -> Projections:
    """Return `projections` if they are finite, or raise a DataError for the first row."""
    finite = np.isfinite(projections).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"Row {row} of the {modality} has a value that is not finite. Remove it.")
    return projections
