"""What a saved hasher makes of texts, in NumPy: a question need not wait for torch.

The same numbers up to rounding as `Hasher.project_texts`, from hasher.safetensors alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError

TextProjections = npt.NDArray[np.float32]
Projector = Callable[[npt.NDArray[np.floating]], TextProjections]
_LINEAR = {"weights_x", "offset_x", "weights_y", "offset_y"}


def needed_arrays(names: Iterable[str]) -> list[str] | None:
    """Which of a saved hasher's arrays project texts; None if this cannot be done here."""
    known = set(names)
    if known == _LINEAR:
        return ["weights_y", "offset_y"]
    if {"bridge.text.target_centre", "towers.text.fch.weight"} <= known:
        return sorted(n for n in known if n.startswith(("bridge.text.", "towers.text.")))
    return None


def text_projector(arrays: Mapping[str, npt.NDArray[np.floating]]) -> Projector:
    """From feature rows to projections, by the arrays that `needed_arrays` names."""
    if "weights_y" in arrays:
        weights, offset = (arrays[name].astype(np.float64) for name in ("weights_y", "offset_y"))
        return lambda rows: _checked(
            rows, len(weights), lambda x: (x @ weights - offset).astype(np.float32)
        )
    centre, size = arrays["bridge.text.target_centre"], float(arrays["bridge.text.size"][0])
    axes, finer = arrays.get("bridge.text.axes"), arrays.get("bridge.text.finer")

    def project(rows: npt.NDArray[np.float64]) -> TextProjections:
        shifted = rows - centre
        z = _tower(arrays, ((shifted if axes is None else shifted @ axes) / size).astype("f4"))
        return z if finer is None else np.hstack([z, (shifted @ finer).astype(np.float32)])

    return lambda rows: _checked(rows, len(centre), project)


def _tower(arrays: Mapping[str, npt.NDArray[np.floating]], x: TextProjections) -> TextProjections:
    """A Perceptron, or a Head, which has a straight path beside it and looks at directions."""
    straight = arrays.get("towers.text.straight.weight")
    if straight is not None:
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.maximum(lengths, np.float32(1e-12)) * np.float32(math.sqrt(x.shape[1]))
    hidden, layer = x, 0
    while (weight := arrays.get(f"towers.text.hidden.{layer}.weight")) is not None:
        hidden = np.maximum(hidden @ weight.T + arrays[f"towers.text.hidden.{layer}.bias"], 0)
        layer += 1
    out = hidden @ arrays["towers.text.fch.weight"].T + arrays["towers.text.fch.bias"]
    return np.asarray(out if straight is None else out + x @ straight.T, np.float32)


def _checked(
    rows: npt.NDArray[np.floating],
    width: int,
    project: Callable[[npt.NDArray[np.float64]], TextProjections],
) -> TextProjections:
    if rows.shape[1:] != (width,):
        raise DataError(
            f"texts have shape {rows.shape[1:]} each, the method learned from ({width},); use the "
            "same features for both"
        )
    found = project(rows.astype(np.float64))
    if not np.isfinite(found).all():
        raise DataError("a text has a feature that is not a finite number, or too large")
    return found
