"""What asks a run: its text side at once and without torch, its whole encoder when needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from transhash.errors import DataError
from transhash.hashers.numpy_texts import Projector, TextProjections, needed_arrays, text_projector
from transhash.runs.model_files import (
    PRECOMPUTED,
    check_files,
    fitting_texts,
    read_config,
    run_bits,
)

if TYPE_CHECKING:
    from transhash.features.text import TextFeatures
    from transhash.runs.encoder import Encoder


class Asker:
    """A run's model: checked when it is opened, read as far as is asked for."""

    def __init__(self, run: Path) -> None:
        if not run.is_dir():
            raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
        self._run, self._config = run, read_config(run)
        check_files(run, self._config)
        self.bits, self.method = run_bits(run), str(self._config["method"])
        if not self._is_sealed:
            self.encoder  # noqa: B018 - only loading it tells whether its files go together

    @classmethod
    def of(cls, encoder: Encoder, run: Path) -> Asker:
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
        from transhash.runs.encoder import Encoder  # imports torch

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
    def _quick(self) -> tuple[TextFeatures, Projector] | None:
        """The text side alone; None where it needs the encoder anyway."""
        reads = self._config.get("text_features")
        if not self._is_sealed or "text_model" in self._config or reads == PRECOMPUTED:
            return None
        path = self._run / "hasher.safetensors"
        try:
            with safe_open(path, framework="numpy") as file:
                names = needed_arrays(file.keys())
                if names is None:
                    return None
                project = text_projector({name: file.get_tensor(name) for name in names})
        except (SafetensorError, OSError, KeyError):
            return None  # loading the encoder says what is wrong
        return fitting_texts(self._run, self._config, project), project
