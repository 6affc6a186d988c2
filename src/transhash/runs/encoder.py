"""Encoder = features + hasher, one folder on disk: raw image or string -> Codes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash import __version__
from transhash.codes import Codes
from transhash.data.collection import Images, Problem, Texts
from transhash.errors import DataError
from transhash.features.decode import decode
from transhash.features.image import ImageFeatures, image_features
from transhash.features.text import BagOfWords
from transhash.hashers import Hasher, make_hasher
from transhash.hashers.base import HASHER_FORMAT
from transhash.progress import Track, silent
from transhash.storage import read_json, read_tensors, write_json, write_tensors

PRECOMPUTED = "precomputed"
_FORMAT, _VERSION = "transhash-encoder", 1


@dataclass
class Encoder:
    """Everything a query needs; None stands for features that come precomputed."""

    hasher: Hasher
    image_features: ImageFeatures | None
    text_features: BagOfWords | None
    method: str = "THN"

    @property
    def bits(self) -> int:
        return self.hasher.bits

    def encode_images(
        self, images: Images, track: Track = silent
    ) -> tuple[Codes, Images, list[Problem]]:
        """Codes of the readable images, those images, and what was wrong with the others."""
        features, kept, problems = image_rows(self.image_features, images, track)
        return self.hasher.encode_images(features), kept, problems

    def encode_texts(self, texts: Texts | Sequence[str]) -> Codes:
        return self.hasher.encode_texts(text_rows(self.text_features, texts))

    def encode_image(self, source: Path | bytes) -> Codes:
        """The code of one image file or its bytes."""
        if self.image_features is None:
            raise DataError(
                "this model was trained on precomputed image features and cannot read images; "
                "search with a row of features instead"
            )
        pixels = decode(source, self.image_features.size)
        if isinstance(pixels, str):
            name = "the image" if isinstance(source, bytes) else str(source)
            raise DataError(f"{name} cannot be used: {pixels}")
        return self.hasher.encode_images(self.image_features.of_pixels(pixels[None]))

    def save(self, folder: str | Path) -> None:
        """config.json, hasher.safetensors and, with bag of words, its vocabulary and weights."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.hasher.save_state(folder)
        if self.text_features is not None:
            write_json(folder / "vocabulary.json", self.text_features.vocabulary_)
            write_tensors(folder / "text.safetensors", self.text_features.state())
        # Last, because a folder with a config.json is a whole one.
        write_json(
            folder / "config.json",
            {
                "format": _FORMAT,
                "version": _VERSION,
                "transhash": __version__,
                "method": self.method,
                "settings": self.hasher.settings(),
                "image_features": self.image_features.name if self.image_features else PRECOMPUTED,
                "text_features": self.text_features.name if self.text_features else PRECOMPUTED,
            },
        )

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Encoder:
        folder = Path(folder)
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give one that `transhash fit` wrote")
        config = read_json(folder / "config.json")
        if config.get("format") != _FORMAT:
            raise DataError(f"{folder / 'config.json'} does not describe a transhash encoder")
        if config.get("version") != _VERSION:
            raise DataError(
                f"{folder} has format version {config.get('version')}, this transhash reads "
                f"{_VERSION}; fit it anew or install transhash {config.get('transhash')}"
            )
        hasher = _hasher(folder, config, device)
        named = config["image_features"]
        texts = None
        if config["text_features"] != PRECOMPUTED:
            texts = BagOfWords().restore(
                read_json(folder / "vocabulary.json"), read_tensors(folder / "text.safetensors")
            )
        images = None if named == PRECOMPUTED else image_features(named, device)
        return cls(hasher, images, texts, config["method"])


def load(folder: str | Path, device: str = "cpu") -> Encoder | Hasher:
    """What was saved there: the Encoder of a run, or a hasher alone."""
    config = read_json(Path(folder) / "config.json")
    if config.get("format") == HASHER_FORMAT:
        return _hasher(Path(folder), config, device)
    return Encoder.load(folder, device)


def _hasher(folder: Path, config: dict[str, Any], device: str) -> Hasher:
    """On the device asked for now: what was trained on a GPU must load where there is none."""
    settings = config["settings"]
    if "device" in settings:
        settings = {**settings, "device": device}
    return make_hasher(config["method"], **settings).load_state(folder)


def model_digest(run: Path) -> str:
    """What codes of one model have in common: those of another one mean something else."""
    learned = run / "hasher.safetensors"
    if not learned.is_file():
        raise DataError(f"{learned} is missing; is {run} a folder that `transhash fit` wrote?")
    digest = hashlib.blake2b(digest_size=16)
    for name in ("config.json", "hasher.safetensors", "text.safetensors", "vocabulary.json"):
        if (run / name).exists():
            digest.update(name.encode() + (run / name).read_bytes())
    return digest.hexdigest()


def image_rows(
    features: ImageFeatures | None, images: Images, track: Track = silent
) -> tuple[npt.NDArray[np.generic], Images, list[Problem]]:
    """Feature rows of the readable images, those images, and the problems of the others."""
    if images.features is not None:
        return images.features, images, []
    if features is None:
        raise DataError("this model takes precomputed image features; give a .npy, not image files")
    rows, bad = features.extract(images.items, track)
    problems = [Problem(str(images.items[i]), images.ids[i], reason) for i, reason in bad]
    skipped = {i for i, _ in bad}
    kept = images.take([i for i in range(len(images)) if i not in skipped]) if bad else images
    if not len(kept):
        raise DataError(
            f"none of the {len(images)} images can be read; first: {problems[0].reason}"
        )
    return rows, kept, problems


def text_rows(features: BagOfWords | None, texts: Texts | Sequence[str]) -> npt.NDArray[np.float32]:
    if not isinstance(texts, Sequence):
        if texts.features is not None:
            return texts.features
        texts = texts.items
    if features is None:
        raise DataError("this model takes precomputed text features; give a .npy, not texts")
    return features.transform(texts)
