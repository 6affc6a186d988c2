"""The files of a model: config.json, which says what they are, and what it was saved with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from transhash import __version__
from transhash.errors import DataError, TranshashError
from transhash.features import BACKBONE_FILE
from transhash.features.text import TextFeatures, load_text
from transhash.hashers import make_hasher
from transhash.hashers.methods import HASHER_FORMAT
from transhash.runs.learned_votes import LEARNED_VOTES
from transhash.storage import file_digest, read_json, write_json

if TYPE_CHECKING:
    from transhash.hashers import Hasher

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
    return fitting_texts(folder, config, hasher.project_texts, device)


def fitting_texts(
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


def run_bits(run: Path) -> int:
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
