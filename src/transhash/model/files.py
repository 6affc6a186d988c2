"""The files of a model: config.json, which says what they are, and what it was saved with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from transhash import __version__
from transhash.data.collection import AuxiliaryCollection
from transhash.data.feedback import FeedbackRelation
from transhash.errors import DataError, TranshashError
from transhash.features import BACKBONE_FILE
from transhash.features.texts import TextFeatures, load_text
from transhash.hashers import make_hasher
from transhash.hashers.methods import HASHER_FORMAT
from transhash.storage import content_digest, file_digest, read_json, write_json

if TYPE_CHECKING:
    from transhash.hashers import Hasher


# What a run has learned from votes: enough to mark it, and to leave voted items out of scores.

LEARNED_VOTES = "learned_votes.json"


@dataclass(frozen=True)
class TrainedVotes:
    """How many, and the digests of the pictures and texts they were on."""

    up: int
    down: int
    images: frozenset[str]
    texts: frozenset[str]

    @classmethod
    def of(cls, auxiliary: AuxiliaryCollection) -> TrainedVotes | None:
        relation = auxiliary.relation
        if not isinstance(relation, FeedbackRelation):
            return None
        rows, columns = (
            part.nonzero()[0].tolist() for part in (relation.voted_images, relation.voted_texts)
        )
        pictures = (auxiliary.images.items[row] for row in rows)
        return cls(
            relation.votes.positives,
            relation.votes.known - relation.votes.positives,
            frozenset(found for picture in pictures if (found := image_file_digest(picture))),
            frozenset(text_digest(auxiliary.texts.items[column]) for column in columns),
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
        write_json(folder / LEARNED_VOTES, content)

    @classmethod
    def load(cls, folder: Path) -> TrainedVotes:
        found = read_json(folder / LEARNED_VOTES)
        try:
            images, texts = (frozenset(map(str, found[name])) for name in ("images", "texts"))
            return cls(int(found["up"]), int(found["down"]), images, texts)
        except (TypeError, KeyError, ValueError):
            raise DataError(f"{folder / LEARNED_VOTES} lists no votes; fit it anew") from None


def check_votes_allowed(learners: Mapping[str, Hasher], *, target: bool, trials: int) -> None:
    """Refuse votes where they do harm: CVH, IMH and QCH lost elsewhere what they won, and more.

    Rivals that are shown the target take over relations in proportion, and would take the weight
    of a vote for a share.
    """
    for name, learner in learners.items():
        if learner.name != "THN" or not learner.uses_target:
            raise DataError(
                f"{name} takes no votes, or not with these settings; learn from them with thn, "
                "which is shown the target too"
            )
    if not target:
        raise DataError("votes are learned beside what they were given on: give images or texts")
    if trials:
        raise DataError("settings are not chosen by votes: tune without them, then give --set")


def image_file_digest(picture: Path | bytes) -> str | None:
    """Of a picture's content; None if it cannot be read."""
    try:
        data = picture if isinstance(picture, bytes) else picture.read_bytes()
    except OSError:
        return None
    return content_digest(data).hex()


def text_digest(text: str) -> str:
    return content_digest(text.encode("utf-8", "replace")).hex()


PRECOMPUTED = "precomputed"
_FILES = (
    "hasher.safetensors", "text.safetensors", "vocabulary.json", BACKBONE_FILE, LEARNED_VOTES
)  # fmt: skip  # beside config.json
_FORMAT, _VERSION = "transhash-encoder", 1


def write_config(folder: Path, content: dict[str, Any]) -> None:
    """config.json, with the digests of the files that it goes with and one of its own."""
    files = {name: file_digest(folder / name) for name in _FILES if (folder / name).exists()}
    head = {"format": _FORMAT, "version": _VERSION, "transhash": __version__}
    config = {**head, **content, "files": files}
    write_json(folder / "config.json", {**config, "digest": _own_digest(config)})


def read_config(folder: Path, hasher_alone: bool = False) -> dict[str, Any]:
    """config.json, with everything in it that loading needs, and the files it was saved with."""
    path = folder / "config.json"
    config = read_json(path)
    formats = (_FORMAT, HASHER_FORMAT) if hasher_alone else (_FORMAT,)
    if not isinstance(config, dict) or config.get("format") not in formats:
        raise DataError(f"{path} does not describe a transhash model; fit it anew")
    if config.get("version") != _VERSION:
        raise DataError(
            f"{path} has format version {config.get('version')}, this transhash reads {_VERSION}; "
            f"fit it anew or install transhash {config.get('transhash', 'in a newer version')}"
        )
    needed: dict[str, type] = {"method": str, "settings": dict}
    if config["format"] == _FORMAT:
        needed |= {"image_features": str, "text_features": str}
    for name, kind in needed.items():
        if not isinstance(config.get(name), kind):
            raise DataError(f"{path} does not say its {name}; fit it anew")
    own = {name: value for name, value in config.items() if name != "digest"}
    if "digest" in config and config["digest"] != _own_digest(own):  # not noted before
        raise DataError(f"{path} is not as it was written; restore it from a copy or fit anew")
    return config


def check_files(folder: Path, config: dict[str, Any]) -> None:
    """Refuse files that are not those that were saved together: one changed bit changes codes."""
    files = config.get("files")  # not noted before
    for name, digest in files.items() if isinstance(files, dict) else ():
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; restore it from a copy or fit anew")
        if file_digest(folder / name) != digest:
            raise DataError(
                f"{folder / name} is not the one that was saved with {folder / 'config.json'}; "
                "restore it from a copy or fit anew"
            )


def read_hasher(folder: Path, config: dict[str, Any], device: str) -> Hasher:
    """On the device asked for now: what was trained on a GPU must load where there is none."""
    settings = config["settings"]
    if "device" in settings:
        settings = {**settings, "device": device}
    path, learned = folder / "config.json", folder / "hasher.safetensors"
    what = f"there is no such method as {path}"
    try:
        hasher = make_hasher(config["method"], **settings)
        what = f"{learned} is not what {path}"
        return hasher.load_state(folder)
    except TranshashError as error:
        if str(learned) in str(error):
            raise
        raise DataError(f"{what} describes: {error}; fit it anew") from None
    except Exception as error:  # whatever a method makes of arrays that are not its own
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{what} describes ({reason}); fit it anew") from None


def read_text_features(
    folder: Path, config: dict[str, Any], hasher: Hasher, device: str = "cpu"
) -> TextFeatures:
    """The text features that the hasher was trained with."""
    return check_text_features(folder, config, hasher.project_texts, device)


def check_text_features(
    folder: Path,
    config: dict[str, Any],
    project: Callable[[npt.NDArray[Any]], object],
    device: str = "cpu",
) -> TextFeatures:
    """The text features, if what projects texts can do with them."""
    texts = load_text(folder, config, device)
    if not all(np.isfinite(array).all() for array in texts.state().values()):
        raise DataError(f"{folder / 'text.safetensors'} holds no finite numbers; fit it anew")
    try:
        project(texts.transform([""]))
    except Exception as error:  # as in read_hasher
        raise DataError(
            f"{folder / 'text.safetensors'} and {folder / 'hasher.safetensors'} do not go "
            f"together ({error}); fit them anew"
        ) from None
    return texts


def read_bits(run: Path) -> int:
    """The code length of a run, without loading it."""
    bits = read_config(run)["settings"].get("bits")
    if not isinstance(bits, int):
        raise DataError(f"{run / 'config.json'} does not say its code length; fit it anew")
    return bits


def model_digest(run: Path) -> str:
    """What codes of one model have in common: those of another one mean something else."""
    learned = run / "hasher.safetensors"
    if not learned.is_file():
        raise DataError(f"{learned} is missing; is {run} a folder that `transhash fit` wrote?")
    digest = hashlib.blake2b(digest_size=16)
    for name in ("config.json", *_FILES):
        if (run / name).exists():
            digest.update(name.encode() + (run / name).read_bytes())
    return digest.hexdigest()


def _own_digest(config: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16).hexdigest()
