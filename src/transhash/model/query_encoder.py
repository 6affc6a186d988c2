"""What asks a run: its text side at once and without torch, its whole encoder when needed."""

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
from transhash.model.files import (
    PRECOMPUTED,
    check_files,
    check_text_features,
    read_bits,
    read_config,
)

if TYPE_CHECKING:
    from transhash.features.texts import TextFeatures
    from transhash.model.encoder import Encoder


# What a saved hasher makes of texts, in NumPy: a question need not wait for torch.
#
# The same numbers up to rounding as `Hasher.project_texts`, from hasher.safetensors alone.

TextProjections = npt.NDArray[np.float32]
TextProjector = Callable[[npt.NDArray[np.floating]], TextProjections]
_LINEAR = {"weights_x", "offset_x", "weights_y", "offset_y"}


def numpy_arrays_for_texts(names: Iterable[str]) -> list[str] | None:
    """Which of a saved hasher's arrays project texts; None if this cannot be done here."""
    known = set(names)
    if known == _LINEAR:
        return ["weights_y", "offset_y"]
    if {"input_layer.text.target_centre", "towers.text.fch.weight"} <= known:
        return sorted(n for n in known if n.startswith(("input_layer.text.", "towers.text.")))
    return None


def make_text_projector(arrays: Mapping[str, npt.NDArray[np.floating]]) -> TextProjector:
    """From feature rows to projections, by the arrays that `numpy_arrays_for_texts` names."""
    if "weights_y" in arrays:
        weights, offset = (arrays[name].astype(np.float64) for name in ("weights_y", "offset_y"))
        return lambda rows: _checked(
            rows, len(weights), lambda x: (x @ weights - offset).astype(np.float32)
        )
    centre, size = arrays["input_layer.text.target_centre"], float(arrays["input_layer.text.size"][0])
    axes, finer = arrays.get("input_layer.text.axes"), arrays.get("input_layer.text.finer")

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


class QueryEncoder:
    """A run's model: checked when it is opened, read as far as is asked for."""

    def __init__(self, run: Path) -> None:
        if not run.is_dir():
            raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
        self._run, self._config = run, read_config(run)
        check_files(run, self._config)
        self.bits, self.method = read_bits(run), str(self._config["method"])
        if not self._is_sealed:
            self.encoder  # noqa: B018 - only loading it tells whether its files go together

    @classmethod
    def of(cls, encoder: Encoder, run: Path) -> QueryEncoder:
        """For an encoder that is there already."""
        found = cls.__new__(cls)
        found._run, found._config = run, {}
        found.bits, found.method = encoder.bits, encoder.method
        found.__dict__["encoder"] = encoder
        return found

    @property
    def _is_sealed(self) -> bool:
        """Whether digests told that nothing changed since it was saved; older runs have none."""
        return "digest" in self._config and "files" in self._config

    @cached_property
    def encoder(self) -> Encoder:
        from transhash.model.encoder import Encoder  # imports torch

        return Encoder.load(self._run)

    @property
    def accepts_texts(self) -> bool:
        """Whether texts can be asked by; not where features came precomputed."""
        return self._accepts("text_features")

    @property
    def accepts_images(self) -> bool:
        return self._accepts("image_features")

    def _accepts(self, features: str) -> bool:
        if self._config:
            return bool(self._config[features] != PRECOMPUTED)
        return getattr(self.encoder, features) is not None

    @property
    def text_features(self) -> TextFeatures | None:
        return self.encoder.text_features if self._quick is None else self._quick[0]

    def project_texts(self, texts: Sequence[str]) -> TextProjections:
        """The real values whose signs are the codes of these texts."""
        if self._quick is None:
            return self.encoder.project_texts(texts)
        features, project = self._quick
        return project(features.transform(texts))

    @cached_property
    def _quick(self) -> tuple[TextFeatures, TextProjector] | None:
        """The text side alone; None where it needs the encoder anyway."""
        reads = self._config.get("text_features")
        if not self._is_sealed or "text_model" in self._config or reads == PRECOMPUTED:
            return None
        path = self._run / "hasher.safetensors"
        try:
            with safe_open(path, framework="numpy") as file:
                names = numpy_arrays_for_texts(file.keys())
                if names is None:
                    return None
                project = make_text_projector({name: file.get_tensor(name) for name in names})
        except (SafetensorError, OSError, KeyError):
            return None  # loading the encoder says what is wrong
        return check_text_features(self._run, self._config, project), project
