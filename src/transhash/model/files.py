"""Files of a saved model: config.json, the digests of the other files, and trained votes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from transhash import __version__
from transhash.data.collection import AuxiliaryCollection
from transhash.data.feedback import FeedbackRelation
from transhash.errors import DataError, TranshashError, check_type
from transhash.features import BACKBONE_FILE
from transhash.features.texts import TextFeatures, load_text
from transhash.hashers import make_hasher
from transhash.hashers.methods import HASHER_FORMAT, MODEL_VERSION
from transhash.storage import content_digest, file_digest, read_json, read_regular, write_json

if TYPE_CHECKING:
    from transhash.hashers import Hasher

PRECOMPUTED = "precomputed"
TRAINED_VOTES_FILE = "learned_votes.json"
IMAGE_SAMPLE_FILE = "image_sample.safetensors"
_FILES = (
    "hasher.safetensors", "text.safetensors", "vocabulary.json", BACKBONE_FILE,
    TRAINED_VOTES_FILE, IMAGE_SAMPLE_FILE,
)  # fmt: skip
_FORMAT = "transhash-encoder"


def require_run(path: str | Path) -> Path:
    """Return `path` if it is a folder."""
    check_type(path, (str, os.PathLike), "The run", "a folder created by `transhash fit`")
    if not Path(path).is_dir():
        raise DataError(f"{path} is not a run folder. Pass a folder created by `transhash fit`.")
    if not (Path(path) / "config.json").exists() and (Path(path) / "metrics.jsonl").exists():
        raise DataError(f"The fit of {path} was interrupted. Run the same command again to resume.")
    return Path(path)


def write_config(folder: Path, content: dict[str, Any]) -> None:
    """Write config.json with the digests of the other files and of itself."""
    files = {name: file_digest(folder / name) for name in _FILES if (folder / name).exists()}
    header = {"format": _FORMAT, "version": MODEL_VERSION, "transhash": __version__}
    config = {**header, **content, "files": files}
    write_json(folder / "config.json", {**config, "digest": _config_digest(config)})


def read_config(folder: Path, *, hasher_only: bool = False) -> dict[str, Any]:
    """Return config.json after checking its fields and its digest, but not the other files."""
    path = require_run(folder) / "config.json"
    config = read_json(path)
    formats = (_FORMAT, HASHER_FORMAT) if hasher_only else (_FORMAT,)
    if not isinstance(config, dict) or config.get("format") not in formats:
        raise DataError(f"{path} does not describe a transhash model. Refit the run.")
    if config.get("version") != MODEL_VERSION:
        raise DataError(
            f"{path} has format version {config.get('version')}, but this transhash needs "
            f"{MODEL_VERSION}. Refit the run."
        )
    fields: dict[str, type] = {"method": str, "settings": dict, "files": dict}
    if config["format"] == _FORMAT:
        fields |= {"image_features": str, "text_features": str, "digest": str}
    for name, kind in fields.items():
        if not isinstance(config.get(name), kind):
            raise DataError(f"{path} has no valid {name}. Refit the run.")
    if not isinstance(config["settings"].get("bits"), int):
        raise DataError(f"{path} has no valid code length. Refit the run.")
    content = {name: value for name, value in config.items() if name != "digest"}
    if config["format"] == _FORMAT and config["digest"] != _config_digest(content):
        raise DataError(f"{path} was changed after saving. Restore a backup or refit the run.")
    return config


def check_files(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a missing or changed file: one flipped bit can change codes."""
    for name, digest in config["files"].items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing. Restore a backup or refit the run.")
        if file_digest(path) != digest:
            raise DataError(f"{path} was changed after saving. Restore a backup or refit the run.")


def read_bits(run: Path) -> int:
    """Return the code length of a run without loading its model."""
    return int(read_config(run)["settings"]["bits"])


def model_digest(run: Path) -> str:
    """Return the digest that identifies a run's model: codes of other models are not comparable."""
    return str(read_config(run)["digest"])


def read_hasher(folder: Path, config: dict[str, Any], device: str) -> Hasher:
    """Load the hasher on this device: one trained on a GPU must load on machines without any."""
    settings = config["settings"]
    if "device" in settings:
        settings = {**settings, "device": device}
    path, weights = folder / "config.json", folder / "hasher.safetensors"
    try:
        return make_hasher(config["method"], **settings).load_state(folder)
    except Exception as error:  # whatever a method raises for invalid settings or arrays
        if isinstance(error, TranshashError) and str(weights) in str(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{weights} does not match {path} ({reason}). Refit the run.") from None


def read_text_features(
    folder: Path,
    config: dict[str, Any],
    project: Callable[[npt.NDArray[Any]], object],
    device: str = "cpu",
) -> TextFeatures:
    """Load the text features and check that `project` accepts them."""
    path = folder / "text.safetensors"
    texts = load_text(folder, config, device)
    if not all(np.isfinite(array).all() for array in texts.state().values()):
        raise DataError(f"{path} has values that are not finite. Refit the run.")
    try:
        project(texts.transform([""]))
    except Exception as error:  # as in read_hasher
        raise DataError(
            f"{path} does not match {folder / 'hasher.safetensors'} ({error}). Refit the run."
        ) from None
    return texts


def _config_digest(config: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class TrainedVotes:
    """Votes that a model was trained on: their number, and digests of their images and texts.

    Scores exclude these images and texts.
    """

    up: int
    down: int
    images: frozenset[str]
    texts: frozenset[str]

    @classmethod
    def from_auxiliary(cls, auxiliary: AuxiliaryCollection) -> TrainedVotes | None:
        relation = auxiliary.relation
        if not isinstance(relation, FeedbackRelation):
            return None
        voted_images = relation.voted_images.nonzero()[0].tolist()
        voted_texts = relation.voted_texts.nonzero()[0].tolist()
        images = (auxiliary.images.items[row] for row in voted_images)
        texts = (auxiliary.texts.items[row] for row in voted_texts)
        return cls(
            relation.votes.positives,
            relation.votes.known - relation.votes.positives,
            frozenset(digest for image in images if (digest := image_file_digest(image))),
            frozenset(map(text_digest, texts)),
        )

    @property
    def counts(self) -> dict[str, int]:
        return {
            "up": self.up,
            "down": self.down,
            "images": len(self.images),
            "texts": len(self.texts),
        }

    def save(self, folder: Path) -> None:
        content = {**self.counts, "images": sorted(self.images), "texts": sorted(self.texts)}
        write_json(folder / TRAINED_VOTES_FILE, content)

    @classmethod
    def load(cls, folder: Path) -> TrainedVotes:
        content = read_json(folder / TRAINED_VOTES_FILE)
        try:
            images, texts = (frozenset(map(str, content[name])) for name in ("images", "texts"))
            return cls(int(content["up"]), int(content["down"]), images, texts)
        except (TypeError, KeyError, ValueError):
            raise DataError(
                f"{folder / TRAINED_VOTES_FILE} does not list votes. Refit the run."
            ) from None


def check_votes_allowed(hashers: Mapping[str, Hasher], *, target: bool, trials: int) -> None:
    """Refuse votes where they do harm: CVH, IMH and QCH lost more on other items than they gained.

    Transductive baselines would treat the weight of a vote as a proportion.
    """
    for name, hasher in hashers.items():
        if hasher.name != "THN" or not hasher.uses_target:
            raise DataError(
                f"{name} with these settings cannot be trained on votes. Use THN with target data."
            )
    if not target:
        raise DataError("Votes need the target set they were given on. Pass images or texts.")
    if trials:
        raise DataError(
            "Tuning does not work with votes. Tune without them, then pass the settings with --set."
        )


def image_file_digest(image: Path | bytes) -> str | None:
    """Return the digest of an image's content, or None if it cannot be read."""
    try:
        return content_digest(image if isinstance(image, bytes) else read_regular(image)).hex()
    except OSError:
        return None


def text_digest(text: str) -> str:
    return content_digest(text.encode("utf-8", "replace")).hex()
