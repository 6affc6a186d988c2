"""Encode queries for a run; loads torch only if needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from transhash.data.inputs import to_text_list
from transhash.errors import TranshashError
from transhash.features import named_library
from transhash.hashers.projection import AffineMap, check_finite, numpy_tower, project_linear
from transhash.model.files import PRECOMPUTED, check_files, read_config, read_text_features
from transhash.storage import check_regular
from transhash.threads import single_blas_thread

if TYPE_CHECKING:
    from transhash.features.texts import TextFeatures
    from transhash.model.encoder import Encoder

TextProjections = npt.NDArray[np.float32]
TextProjector = Callable[[npt.NDArray[np.floating]], TextProjections]
_UNKNOWN_WORD = "qzxvjkwpfghyqzxvjkw"  # in no vocabulary
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
        return lambda rows: project_linear(rows, weights, offset, "texts")
    layer, tower = AffineMap.from_state(arrays, "text"), numpy_tower(arrays, "text")
    if layer is None:
        raise KeyError("input_layer.text.center")

    def project(rows: npt.NDArray[np.floating]) -> TextProjections:
        with np.errstate(invalid="ignore"):
            z = layer.append_residual_bits(tower(layer.apply(rows)), rows, target=True)
        return check_finite(z, "texts")

    return project


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

        texts = None if self._text_only is None else self._text_only[0]  # not a second copy
        return Encoder.from_config(self._run, self._config, text_features=texts)

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

    def warm_up(self) -> None:
        """Load and build what the first text would wait for; an unknown word needs more tables."""
        if self.accepts_texts:
            self.project_texts([_UNKNOWN_WORD])

    def project_texts(self, texts: Sequence[str]) -> TextProjections:
        """Return the projections whose signs are the codes of these texts."""
        texts = to_text_list(texts)
        if self._text_only is None:
            return self.encoder.project_texts(texts)
        features, project = self._text_only
        # Several threads would need longer for one query where other programs use the cores.
        with single_blas_thread():
            return project(features.transform(texts))

    @cached_property
    def _text_only(self) -> tuple[TextFeatures, TextProjector] | None:
        """The text features and the projection of texts, or None if these need the encoder."""
        if named_library(self._config["text_features"]) or not self.accepts_texts:
            return None
        path = self._run / "hasher.safetensors"
        try:
            check_regular(path)
            with safe_open(path, framework="numpy") as file:
                names = numpy_arrays_for_texts(file.keys())
                if names is None:
                    return None
                project = make_text_projector({name: file.get_tensor(name) for name in names})
        except (SafetensorError, OSError, KeyError, TranshashError):
            return None  # loading the encoder reports the error
        return read_text_features(self._run, self._config, project), project
