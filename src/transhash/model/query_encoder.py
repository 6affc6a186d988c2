"""Encode queries for a run; loads torch only if needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from transhash.errors import DataError
from transhash.model.files import PRECOMPUTED, check_files, read_config, read_text_features

if TYPE_CHECKING:
    from transhash.features.texts import TextFeatures
    from transhash.model.encoder import Encoder

TextProjections = npt.NDArray[np.float32]
TextProjector = Callable[[npt.NDArray[np.floating]], TextProjections]
_LINEAR = {"weights_x", "offset_x", "weights_y", "offset_y"}


def numpy_arrays_for_texts(names: Iterable[str]) -> list[str] | None:
    """Return the names of the arrays that project texts, or None for other kinds of hashers."""
    known = set(names)
    if known == _LINEAR:
        return ["weights_y", "offset_y"]
    if {"input_layer.text.target_center", "towers.text.fch.weight"} <= known:
        return sorted(n for n in known if n.startswith(("input_layer.text.", "towers.text.")))
    return None


def make_text_projector(arrays: Mapping[str, npt.NDArray[np.floating]]) -> TextProjector:
    """Return the function from text features to projections.

    It equals `Hasher.project_texts` up to rounding, but does not need torch.
    """
    if "weights_y" in arrays:
        weights, offset = (arrays[name].astype(np.float64) for name in ("weights_y", "offset_y"))
        return lambda rows: _checked(
            rows, len(weights), lambda x: (x @ weights - offset).astype(np.float32)
        )
    center, scale = (arrays[f"input_layer.text.{name}"] for name in ("target_center", "scale"))
    axes = arrays.get("input_layer.text.axes")
    residual_axes = arrays.get("input_layer.text.residual_axes")

    def project(rows: npt.NDArray[np.float64]) -> TextProjections:
        x = rows - center
        z = _tower(arrays, ((x if axes is None else x @ axes) / scale[0]).astype(np.float32))
        return z if residual_axes is None else np.hstack([z, (x @ residual_axes).astype("f4")])

    return lambda rows: _checked(rows, len(center), project)


def _tower(arrays: Mapping[str, npt.NDArray[np.floating]], x: TextProjections) -> TextProjections:
    """Apply a Perceptron, or a Head: that has a linear path as well and normalizes its input."""
    linear = arrays.get("towers.text.linear.weight")
    if linear is not None:
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.maximum(lengths, np.float32(1e-12)) * np.float32(math.sqrt(x.shape[1]))
    hidden, layer = x, 0
    while (weight := arrays.get(f"towers.text.hidden.{layer}.weight")) is not None:
        hidden = np.maximum(hidden @ weight.T + arrays[f"towers.text.hidden.{layer}.bias"], 0)
        layer += 1
    out = hidden @ arrays["towers.text.fch.weight"].T + arrays["towers.text.fch.bias"]
    return np.asarray(out if linear is None else out + x @ linear.T, np.float32)


def _checked(
    rows: npt.NDArray[np.floating],
    width: int,
    project: Callable[[npt.NDArray[np.float64]], TextProjections],
) -> TextProjections:
    if rows.shape[1:] != (width,):
        raise DataError(
            f"Text features have shape {rows.shape[1:]}, but the model was trained on ({width},). "
            "Use the same features."
        )
    projections = project(rows.astype(np.float64))
    if not np.isfinite(projections).all():
        raise DataError("A text has a feature that is too large or not finite. Check the features.")
    return projections


class QueryEncoder:
    """Encoder of a run that checks all files when it is created and loads them when needed."""

    def __init__(self, run: Path) -> None:
        self._run, self._config = run, read_config(run)
        check_files(run, self._config)
        self.bits = int(self._config["settings"]["bits"])
        self.method, self.model_digest = str(self._config["method"]), str(self._config["digest"])

    @cached_property
    def encoder(self) -> Encoder:
        from transhash.model.encoder import Encoder  # imports torch

        return Encoder.from_config(self._run, self._config)

    @property
    def accepts_texts(self) -> bool:
        """Whether texts can be queries, which precomputed features do not allow."""
        return bool(self._config["text_features"] != PRECOMPUTED)

    @property
    def accepts_images(self) -> bool:
        return bool(self._config["image_features"] != PRECOMPUTED)

    @property
    def text_features(self) -> TextFeatures | None:
        return self.encoder.text_features if self._text_only is None else self._text_only[0]

    def project_texts(self, texts: Sequence[str]) -> TextProjections:
        """Return the projections whose signs are the codes of these texts."""
        if self._text_only is None:
            return self.encoder.project_texts(texts)
        features, project = self._text_only
        return project(features.transform(texts))

    @cached_property
    def _text_only(self) -> tuple[TextFeatures, TextProjector] | None:
        """The text features and the projection of texts, or None if these need the encoder."""
        if "text_model" in self._config or not self.accepts_texts:
            return None
        path = self._run / "hasher.safetensors"
        try:
            with safe_open(path, framework="numpy") as file:
                names = numpy_arrays_for_texts(file.keys())
                if names is None:
                    return None
                project = make_text_projector({name: file.get_tensor(name) for name in names})
        except (SafetensorError, OSError, KeyError):
            return None  # loading the encoder reports the error
        return read_text_features(self._run, self._config, project), project
