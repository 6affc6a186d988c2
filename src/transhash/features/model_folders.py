"""Folders and names of models that other libraries wrote: found, fetched, told from one another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from transhash.errors import DataError

_FETCHED = ["*.json", "*.safetensors", "*.txt", "*/*.json", "*/*.safetensors", "*.model"]
_DIGESTED = (".json", ".safetensors", ".txt", ".model", ".bin")


def folder_digest(folder: Path) -> str:
    """Of all weights, vocabularies and settings in it."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.suffix in _DIGESTED and path.is_file():
            digest.update(str(path.relative_to(folder)).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def fetched_folder(
    named: str, remedy: str, on_hub: str | None = None, files: Sequence[str] = _FETCHED
) -> Path:
    """The folder of a model known by name: in the cache, or from the hub.

    There it may have another name. Fetched here because libraries try for a minute to reach a hub.
    """
    if find_spec("huggingface_hub") is None or named.startswith((".", "/", "~")):
        raise DataError(f"{named} is not a folder; {remedy}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(on_hub or named, allow_patterns=list(files)))
    except Exception as error:  # of the network, the hub or the name, each in its own class
        raise DataError(
            f"{named} is not a folder and cannot be fetched ({type(error).__name__}); give the "
            "folder of a model, or its name on huggingface.co where that can be reached"
        ) from None


def need_library(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise DataError(f"{module} is not installed; pip install 'transhash[{extra}]'")


@contextmanager
def read_by(library: str, model: str | Path) -> Iterator[None]:
    """What a library makes of a broken or missing model, in a sentence."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # whatever a library makes of files that are not its own
        said = str(error).strip().splitlines()
        raise DataError(
            f"{model} cannot be read by {library} ({said[0] if said else type(error).__name__}); "
            "give the whole folder of a model"
        ) from None
