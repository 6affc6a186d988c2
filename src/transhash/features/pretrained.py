"""Networks that others trained, by the library that reads them and a name or folder.

`open_clip:ViT-B-32/laion2b_s34b_b79k`, `timm:resnet50`, `transformers:FOLDER`. A joint model reads
texts, too: with both sides from it, images and texts lie in one space.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from transhash.errors import DataError
from transhash.features import named_library
from transhash.features.backbone import extract_pixels, weights_digest
from transhash.features.decode import Pixels
from transhash.features.words import TextRows, tokenize

Channels = tuple[float, ...]  # a number each for red, green and blue
_TEXTS = 64  # a pass


@dataclass(frozen=True)
class PretrainedModel:
    """What a library made of a folder or a name."""

    images: nn.Module  # (n, 3, size, size), scaled by the two below -> rows
    size: int
    mean: Channels  # of pixels 0..255
    deviation: Channels
    digest: str  # of weights and settings
    texts: Callable[[Sequence[str]], Tensor] | None = None  # -> rows of the same space


class NormalizedNetwork(nn.Module):
    """Bytes (n, 3, size, size) -> rows, of unit length where texts have such, too."""

    def __init__(self, model: PretrainedModel) -> None:
        super().__init__()
        self.images, self.joint = model.images, model.texts is not None
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(model.mean)[:, None, None])
        self.register_buffer("deviation", torch.tensor(model.deviation)[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        x = (pixels.float() - self.mean) / self.deviation
        with torch.autocast("cuda", torch.float16, enabled=pixels.is_cuda):
            rows: Tensor = self.images(x).float()
        return functional.normalize(rows, dim=1) if self.joint else rows


class PretrainedFeatures:
    """Image features of such a network; pictures are made square, not cropped."""

    def __init__(self, named: str, device: str = "cpu") -> None:
        self.name, self._model = load_pretrained(named, device)
        self.in_folder = is_folder(self.name)
        self.size, self.digest = self._model.size, self._model.digest
        self.device = device
        self.batch_size = 128 if device.startswith("cuda") else 4
        self._network = NormalizedNetwork(self._model).eval().to(device)

    def cache_key(self) -> str:
        scaled = f"{self.size}:{self._model.mean}:{self._model.deviation}"
        precision_key = "float32" if self.device == "cpu" else "float16"
        return f"{named_library(self.name)}:{scaled}:1:{precision_key}:{self.digest}"

    def network(self) -> nn.Module:
        return self._network

    def extract(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        return extract_pixels(self._network, pixels, self.batch_size, self.device)


class JointModelTextFeatures:
    """Text features of a joint model: rows of unit length in the space of its images."""

    def __init__(self, named: str, device: str = "cpu") -> None:
        self.name, model = load_pretrained(named, device)
        self.in_folder = is_folder(self.name)
        self.digest = model.digest
        if model.texts is None:
            raise DataError(
                f"{self.name} reads no texts; give a joint model such as a CLIP, or leave out "
                "--text-features"
            )
        self._rows = model.texts

    def fit(self, *collections: Sequence[str], seed: int = 0) -> Self:
        return self  # somebody else did

    def transform(self, texts: Sequence[str]) -> TextRows:
        parts = []
        with torch.inference_mode():
            for start in range(0, max(1, len(texts)), _TEXTS):
                rows = self._rows(list(texts[start : start + _TEXTS]) or [""])
                parts.append(functional.normalize(rows.float(), dim=1).cpu().numpy())
        return np.asarray(np.concatenate(parts)[: len(texts)], np.float32)

    def known_words(self, text: str) -> list[str]:
        return tokenize(text)  # letter by letter, if need be

    def unknown_words(self, text: str) -> list[str]:
        return []

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def lists(self) -> list[str]:
        return []


def external_model_record(key: str, features: object) -> dict[str, Any]:
    """What a run says, under that key, of a model that it does not hold; of others nothing."""
    if not isinstance(features, PretrainedFeatures | JointModelTextFeatures):
        return {}
    return {key: {"kind": "pretrained", "name": features.name, "digest": features.digest}}


def check_same_model(
    features: PretrainedFeatures | JointModelTextFeatures, record: Any, run: Path
) -> None:
    """Refuse another model than the one that was there when the run was fitted."""
    if not isinstance(record, dict) or features.digest != record.get("digest"):
        raise DataError(
            f"{features.name} is not the model that {run} was fitted with; put that one back or "
            "fit anew"
        )


def is_folder(name: str) -> bool:
    """Whether a full name stands for a folder of this machine."""
    return Path(name.partition(":")[2]).is_dir()


def load_pretrained(named: str, device: str) -> tuple[str, PretrainedModel]:
    """Its full name, and the model; the two sides of one model share it."""
    library, _, model = named.partition(":")
    folder = Path(model).expanduser()
    if not model:
        raise DataError(f"{named} names no model; give {library}:NAME or {library}:FOLDER")
    if folder.is_dir():
        model = str(folder.resolve())
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        stamps = tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)
    else:
        stamps = ()
    return f"{library}:{model}", _load(library, model, device, stamps)


@lru_cache(maxsize=1)
def _load(library: str, model: str, device: str, stamps: tuple[Any, ...]) -> PretrainedModel:
    """`stamps`: of the folder's files, so that a changed one is read anew."""
    if library == "open_clip":
        from transhash.features.loaders import load_open_clip

        return load_open_clip(model, device)
    if library == "timm":
        from transhash.features.loaders import load_timm

        return load_timm(model, device)
    from transhash.features.loaders import load_transformers

    return load_transformers(model, device)


def network_digest(network: nn.Module) -> str:
    """Of its weights, whatever file they came in."""
    state = network.state_dict().items()
    return weights_digest({name: value.float().cpu().numpy() for name, value in state})


def require_torchvision(library: str, always: bool = True) -> None:
    """Refuse, with the line that installs a pair: PyPI's does not import beside a CPU's torch.

    Not `always`: the library does without one, but not beside one that does not import.
    """
    missing = find_spec("torchvision") is None
    if missing and not always:
        return
    try:
        import torchvision  # noqa: F401
    except Exception:  # of another build: a RuntimeError
        number = torch.__version__.partition("+")[0]
        where = "" if torch.version.cuda else " --index-url https://download.pytorch.org/whl/cpu"
        raise DataError(
            f"{library} {'needs' if always else 'imports'} torchvision, which "
            f"{'is not installed' if missing else f'does not import beside torch {number}'}; pip "
            f"install --force-reinstall torch=={number} torchvision{where} gives a matching pair"
        ) from None


# Folders and names of models that other libraries wrote: found, fetched, told from one another.

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


def resolve_model_folder(
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


def require_library(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise DataError(f"{module} is not installed; pip install 'transhash[{extra}]'")


@contextmanager
def reading_with(library: str, model: str | Path) -> Iterator[None]:
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
