"""Features of external models, named by library and by model name or folder.

Examples: `open_clip:ViT-B-32/laion2b_s34b_b79k`, `timm:resnet50`, `transformers:FOLDER`. A joint
model embeds images and texts in one space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from transhash.features.backbone import extract_pixels
from transhash.features.decode import Pixels
from transhash.features.words import TextRows, tokenize
from transhash.progress import Track, no_progress, with_progress

Channels = tuple[float, ...]  # one value each for red, green and blue
_TEXT_BATCH = 64


@dataclass(frozen=True)
class PretrainedModel:
    """An external model as a loader returns it."""

    images: nn.Module  # normalized pixels (n, 3, size, size) -> (n, dimensions)
    size: int
    mean: Channels  # of pixels 0..255
    deviation: Channels
    digest: str  # of weights and settings
    texts: Callable[[Sequence[str]], Tensor] | None = None  # rows in the space of the images
    # Returns the weights (1000, dimensions) of an ImageNet classifier on the rows of the images.
    class_weights: Callable[[], npt.NDArray[np.float32] | None] | None = None


class NormalizedNetwork(nn.Module):
    """Map bytes (n, 3, size, size) to rows, of unit length if the model also embeds texts."""

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
    """Image features of an external model. Images are squeezed to a square, not cropped."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.name, self._model = load_pretrained(name, device)
        self.in_folder = is_folder(self.name)
        self.size, self.digest = self._model.size, self._model.digest
        self.device = device
        self.batch_size = 128 if device.startswith("cuda") else 4
        self._network = NormalizedNetwork(self._model).eval().to(device)

    def cache_key(self) -> str:
        pixels = f"{self.size}:{self._model.mean}:{self._model.deviation}"
        precision = "float32" if self.device == "cpu" else "float16"
        return f"{named_library(self.name)}:{pixels}:1:{precision}:{self.digest}"

    def network(self) -> nn.Module:
        return self._network

    def extract(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        return extract_pixels(self._network, pixels, self.batch_size, self.device)

    def class_weights(self, names: Sequence[str]) -> npt.NDArray[np.float32] | None:
        """Return weights of an ImageNet classifier on these rows, if there are any.

        `names` are those of the classes, which a joint model embeds.
        """
        if self._model.texts is not None:
            prompts = [f"a photo of a {name}" for name in names]
            return JointModelTextFeatures(self.name, self.device).transform(prompts)
        return None if self._model.class_weights is None else self._model.class_weights()


class JointModelTextFeatures:
    """Text features of a joint model: rows of unit length in the space of its images."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.name, model = load_pretrained(name, device)
        self.in_folder = is_folder(self.name)
        self.digest = model.digest
        if model.texts is None:
            raise DataError(
                f"{self.name} does not embed texts. Pass a joint model such as CLIP, or omit "
                "--text-features."
            )
        self._embed = model.texts

    def fit(self, *collections: Sequence[str], seed: int = 0, track: Track = no_progress) -> Self:
        return self  # pretrained

    def transform(self, texts: Sequence[str], track: Track = no_progress) -> TextRows:
        if not texts:  # one empty text tells the number of dimensions
            return self._rows([""])[:0]
        starts = range(0, len(texts), _TEXT_BATCH)
        batches = (self._rows(texts[start : start + _TEXT_BATCH]) for start in starts)
        return np.concatenate(list(with_progress(batches, track, "text features", len(texts))))

    def _rows(self, texts: Sequence[str]) -> TextRows:
        with torch.inference_mode():
            rows = functional.normalize(self._embed(list(texts)).float(), dim=1)
        return np.asarray(rows.cpu().numpy(), np.float32)

    def known_words(self, text: str) -> list[str]:
        return tokenize(text)  # subword tokens cover every word

    def unknown_words(self, text: str) -> list[str]:
        return []

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def word_lists(self) -> dict[str, list[str]]:
        return {}


def external_model_record(key: str, features: object) -> dict[str, Any]:
    """Return the config.json entry of an external model, which a run does not contain."""
    if not isinstance(features, PretrainedFeatures | JointModelTextFeatures):
        return {}
    return {key: {"kind": "pretrained", "name": features.name, "digest": features.digest}}


def check_same_model(
    features: PretrainedFeatures | JointModelTextFeatures, record: Any, run: Path
) -> None:
    """Refuse a model that changed since the run was fitted."""
    if not isinstance(record, dict) or features.digest != record.get("digest"):
        raise DataError(
            f"{features.name} is not the model that {run} was fitted with. Restore that model or "
            "refit the run."
        )


def is_folder(name: str) -> bool:
    """Return whether LIBRARY:NAME names a local folder."""
    return Path(name.partition(":")[2]).is_dir()


def load_pretrained(name: str, device: str) -> tuple[str, PretrainedModel]:
    """Return the resolved name and the model, which image and text features share."""
    library, _, model = name.partition(":")
    if not model:
        raise DataError(f"{name} lacks a model. Pass {library}:NAME or {library}:FOLDER.")
    folder = Path(model).expanduser()
    stamps: tuple[Any, ...] = ()
    if folder.is_dir():
        model = str(folder.resolve())
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        stamps = tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)
    return f"{library}:{model}", _load(library, model, device, stamps)


@lru_cache(maxsize=1)
def _load(library: str, model: str, device: str, stamps: tuple[Any, ...]) -> PretrainedModel:
    """Load a model; `stamps` of its files make the cache miss after a change."""
    from transhash.features.loaders import LOADERS

    return LOADERS[library](model, device)


def require_torchvision(library: str, always: bool = True) -> None:
    """Refuse a missing or broken torchvision (PyPI's does not import with a CPU build of torch).

    Pass `always=False` if the library works without torchvision, though not with a broken one.
    """
    missing = find_spec("torchvision") is None
    if missing and not always:
        return
    try:
        import torchvision  # noqa: F401
    except Exception:  # a RuntimeError if it was built for another torch
        version = torch.__version__.partition("+")[0]
        index = "" if torch.version.cuda else " --index-url https://download.pytorch.org/whl/cpu"
        problem = "is not installed" if missing else f"does not work with torch {version}"
        raise DataError(
            f"{library} {'needs' if always else 'imports'} torchvision, which {problem}. Run: "
            f"pip install --force-reinstall torch=={version} torchvision{index}"
        ) from None
