"""Image files to feature vectors, one batch at a time, in order.

Each file is read once. Its digest tells whether the caller needs it at all and whether its vector
is cached. Otherwise it is decoded and computed. Memory does not grow with the number of files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transhash.data.collection import Images, Problem
from transhash.errors import DataError
from transhash.features.cache import FeatureCache
from transhash.features.decode import DecodedFile, ImageReader, ImageSummary, Pixels
from transhash.features.decode_processes import (
    PixelBatch,
    decode_batches,
    default_workers,
    isolated_reader,
)
from transhash.features.images import ImageFeatures
from transhash.progress import Track, no_progress, with_progress
from transhash.threads import cpu_count

_AHEAD = 16  # batches that threads may be ahead of the caller, while it writes to disk
_WEIGHT_BITS = 22  # Pillow's fixed-point precision of resize weights
_CHUNK_IMAGES = 128  # intermediate results in double precision take 2.4 MB per image

_Fresh = list[int]  # rows of a batch that were computed rather than cached


@dataclass(frozen=True)
class FeatureBatch:
    """Consecutive items in order. Positions are those in the sequence."""

    readable: list[int]
    vectors: npt.NDArray[Any]  # of readable items, like the next two
    digests: list[bytes]  # of the contents
    summaries: list[ImageSummary | None]  # if requested
    unchanged: list[int]  # items that the caller already has
    unreadable: list[tuple[int, str]]  # with the reason

    def __len__(self) -> int:
        return len(self.readable) + len(self.unchanged) + len(self.unreadable)

    def cut(self, end: int) -> tuple[FeatureBatch, FeatureBatch]:
        """Split into the items before position `end` and the others."""
        r = sum(i < end for i in self.readable)
        u = sum(i < end for i in self.unchanged)
        f = sum(i < end for i, _ in self.unreadable)
        before, after = (
            FeatureBatch(
                self.readable[a], self.vectors[a], self.digests[a], self.summaries[a],
                self.unchanged[b], self.unreadable[c],
            )
            for a, b, c in (
                (slice(r), slice(u), slice(f)),
                (slice(r, None), slice(u, None), slice(f, None)),
            )
        )  # fmt: skip
        return before, after


def stream_images(
    features: ImageFeatures,
    paths: Sequence[Path | bytes],
    *,
    cache: bool = True,
    workers: int | None = None,
    summaries: bool = False,
    is_unchanged: Callable[[int, bytes], bool] | None = None,
) -> Iterator[FeatureBatch]:
    """Compute the features of all files, in order.

    `workers` are threads on a CPU, and decoding processes for a GPU (None: a good number).
    Nothing is computed where `is_unchanged` holds for a position and a digest.
    """
    key = features.cache_key() if cache else None
    store = None if key is None else FeatureCache(key)
    reader = ImageReader(features.size, summaries, store.get if store else None, is_unchanged)
    on_gpu = features.device.startswith("cuda")
    batches = (_with_processes if on_gpu else _with_threads)(features, paths, reader, workers)
    try:
        for batch, fresh in batches:
            if store is not None and fresh:
                store.put([batch.digests[i] for i in fresh], batch.vectors[fresh])
            yield batch
    finally:
        batches.close()
        if store is not None:
            store.close()


def extract_all(
    features: ImageFeatures, paths: Sequence[Path | bytes], track: Track = no_progress
) -> tuple[npt.NDArray[Any], list[tuple[int, str]]]:
    """Return the vectors of all readable files, and positions and reasons of the others."""
    vectors: npt.NDArray[Any] = np.empty((0, 0), np.float32)
    unreadable: list[tuple[int, str]] = []
    count = 0
    batches = stream_images(features, paths)
    for batch in with_progress(batches, track, "image features", len(paths)):
        if batch.readable:
            if not count:  # the first batch tells shape and type
                vectors = np.empty((len(paths), *batch.vectors.shape[1:]), batch.vectors.dtype)
            vectors[count : count + len(batch.readable)] = batch.vectors
            count += len(batch.readable)
        unreadable += batch.unreadable
    return vectors[:count], unreadable


def extract_readable(
    features: ImageFeatures | None, images: Images, track: Track = no_progress
) -> tuple[npt.NDArray[np.generic], Images, list[Problem]]:
    """Return the vectors of the readable images, those images, and the problems of the others."""
    if images.features is not None:
        return images.features, images, []
    vectors, unreadable = extract_all(require_image_features(features), images.items, track)
    return vectors, *split_readable(images, unreadable)


def split_readable(
    images: Images, unreadable: Sequence[tuple[int, str]]
) -> tuple[Images, list[Problem]]:
    """Return the readable images and the problems of the others; raise if none is readable."""
    problems = [Problem(images.describe(i), images.ids[i], reason) for i, reason in unreadable]
    skipped = {i for i, _ in unreadable}
    if len(skipped) == len(images):
        first = f" (first: {problems[0].location}: {problems[0].reason})" if problems else ""
        raise DataError(f"None of the {len(images)} images can be read{first}. Check the files.")
    readable = [i for i in range(len(images)) if i not in skipped]
    return images.take(readable) if skipped else images, problems


def require_image_features(features: ImageFeatures | None) -> ImageFeatures:
    if features is None:
        raise DataError("This model needs precomputed image features. Pass a .npy file.")
    return features


def _with_threads(
    features: ImageFeatures, paths: Sequence[Path | bytes], reader: ImageReader, workers: int | None
) -> Generator[tuple[FeatureBatch, _Fresh], None, None]:
    """Let each thread read, decode and compute its own images, so that none waits for another.

    Each has a process of its own that decodes.
    """
    with isolated_reader(reader) as reader:
        yield from _in_threads(features, paths, reader, workers)


def _in_threads(
    features: ImageFeatures, paths: Sequence[Path | bytes], reader: ImageReader, workers: int | None
) -> Generator[tuple[FeatureBatch, _Fresh], None, None]:
    size = features.batch_size

    def compute(start: int) -> tuple[FeatureBatch, _Fresh]:
        positions = range(start, min(start + size, len(paths)))
        files, images = zip(*(reader(i, paths[i]) for i in positions))
        pixels = [image for image in images if image is not None]
        return _assemble(start, files, features.extract(np.stack(pixels)) if pixels else None)

    if len(paths) <= size:
        if paths:
            yield compute(0)
        return
    features.network()  # load it once, before the threads need it
    threads_before = torch.get_num_threads()
    threads = workers or cpu_count()
    pending: deque[Future[tuple[FeatureBatch, _Fresh]]] = deque()
    with ThreadPoolExecutor(threads, "features", torch.set_num_threads, (1,)) as pool:
        try:
            for start in range(0, len(paths), size):
                pending.append(pool.submit(compute, start))
                if len(pending) > 2 * threads + _AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            torch.set_num_threads(threads_before)  # new threads inherit the number


def _with_processes(
    features: ImageFeatures, paths: Sequence[Path | bytes], reader: ImageReader, workers: int | None
) -> Generator[tuple[FeatureBatch, _Fresh], None, None]:
    """Decode in processes while the GPU computes. `is_unchanged` is called in this process."""
    is_unchanged = reader.is_unchanged
    # Small images are enlarged on the GPU, if pixels are sent there.
    reader = replace(reader, is_unchanged=None, upscale=features.network() is None)
    workers = default_workers() if workers is None else workers
    decode = partial(decode_batches, paths, reader, features.batch_size, workers=workers, threads=4)
    for batch, vectors in _run_network(features, decode):
        yield _assemble(batch.start, batch.files, vectors, is_unchanged)


def _run_network(
    features: ImageFeatures, batches: Callable[..., Iterable[PixelBatch]]
) -> Iterator[tuple[PixelBatch, npt.NDArray[Any] | None]]:
    """Yield batches with the vectors of their pixels.

    While a GPU computes, the next batch is copied and later ones are decoded.
    `batches(on_buffer=f)` must call f with the memory of its batches. The pixels of a yielded
    batch may already be overwritten.
    """
    network = features.network()
    if network is None:
        for batch in batches(on_buffer=lambda _: None):
            yield batch, features.extract(batch.pixels) if len(batch.pixels) else None
        return
    device = features.device
    copy_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    pinned: list[Tensor] = []

    def pin(memory: Pixels) -> None:
        # The driver copies from unpinned memory at half the speed.
        pinned.append(torch.from_numpy(memory))
        runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)

    def launch(batch: PixelBatch) -> Callable[[], npt.NDArray[Any]]:
        with torch.inference_mode():
            with torch.cuda.stream(copy_stream):
                x = torch.from_numpy(batch.pixels).to(device, non_blocking=True)
            copy_stream.synchronize()  # from here on the memory may be overwritten
            x.record_stream(torch.cuda.current_stream(device))
            rows = network(upscale(x, batch.shapes).permute(0, 3, 1, 2))
            vectors = torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)
            event = torch.cuda.current_stream(device).record_event()

        def result() -> npt.NDArray[Any]:
            event.synchronize()
            return np.array(vectors)

        return result

    previous: tuple[PixelBatch, Callable[[], npt.NDArray[Any] | None]] | None = None
    try:
        for batch in batches(on_buffer=pin):
            launched = (batch, launch(batch) if len(batch.pixels) else lambda: None)
            if previous is not None:
                yield previous[0], previous[1]()
            previous = launched
        if previous is not None:
            yield previous[0], previous[1]()
    finally:
        for memory in pinned:
            runtime.cudaHostUnregister(memory.data_ptr())


def _assemble(
    start: int,
    files: Sequence[DecodedFile],
    vectors: npt.NDArray[Any] | None,
    is_unchanged: Callable[[int, bytes], bool] | None = None,
) -> tuple[FeatureBatch, _Fresh]:
    """Merge computed and cached vectors in the order of the files."""
    computed = iter(() if vectors is None else vectors)
    rows: list[Any] = []
    fresh: _Fresh = []
    batch = FeatureBatch([], np.empty((0, 0), np.float32), [], [], [], [])
    for i, file in enumerate(files, start):
        vector = next(computed) if file.state == "decoded" else file.vector
        if file.state == "unreadable":
            batch.unreadable.append((i, file.reason))
        elif file.state == "unchanged" or (is_unchanged and is_unchanged(i, file.digest)):
            batch.unchanged.append(i)
        else:
            if file.state == "decoded":
                fresh.append(len(rows))
            rows.append(vector)
            batch.readable.append(i)
            batch.digests.append(file.digest)
            batch.summaries.append(file.summary)
    if vectors is None or len(fresh) < max(len(rows), len(vectors)):  # not only computed ones
        vectors = np.stack(rows) if rows else batch.vectors
    return replace(batch, vectors=vectors), fresh


def upscale(pixels: Tensor, shapes: npt.NDArray[np.int64]) -> Tensor:
    """Enlarge images to (n, size, size, 3) from their upper left (height, width).

    Gives exactly the bytes of Pillow's bilinear resize: weights are integers and their sums fit
    into the 53 bits of a float64, so sums are exact in any order. Enlarging takes a CPU core most
    of the time of a small image, and a GPU almost none.
    """
    size = pixels.shape[1]
    rows = np.flatnonzero((shapes != size).any(axis=1))
    if not len(rows):
        return pixels
    result = pixels.clone()
    for start in range(0, len(rows), _CHUNK_IMAGES):
        chunk = rows[start : start + _CHUNK_IMAGES]
        positions = torch.from_numpy(chunk).to(pixels.device)
        height, width = shapes[chunk].max(axis=0).tolist()
        down, across = (
            _resize_weights(shapes[chunk, axis], longest, size, pixels.device)
            for axis, longest in enumerate((height, width))
        )
        part = pixels[positions, :height, :width].transpose(2, 3).flatten(1, 2).double()
        part = _round_to_byte(part @ across.mT)  # (n, height * 3, size)
        part = _round_to_byte(down @ part.view(-1, height, 3 * size))
        result[positions] = part.view(-1, size, 3, size).transpose(2, 3).byte()
    return result


def _round_to_byte(sums: Tensor) -> Tensor:
    return sums.add_(1 << (_WEIGHT_BITS - 1)).mul_(2.0**-_WEIGHT_BITS).floor_().clamp_(0, 255)


def _resize_weights(
    lengths: npt.NDArray[np.int64], longest: int, size: int, device: torch.device
) -> Tensor:
    """Return weights (n, size, longest), zero beyond each image's own length."""
    distinct, inverse = np.unique(lengths, return_inverse=True)
    table = np.zeros((len(distinct), size, longest))
    for weights, length in zip(table, distinct.tolist()):
        weights[:, :length] = _bilinear(length, size)
    return torch.from_numpy(table).to(device)[torch.from_numpy(inverse).to(device)]


@cache
def _bilinear(length: int, size: int) -> npt.NDArray[np.float64]:
    scale = length / size
    reach = max(scale, 1.0)
    center = (np.arange(size) + 0.5) * scale
    first = np.maximum((center - reach + 0.5).astype(int), 0)
    last = np.minimum((center + reach + 0.5).astype(int), length)
    position = np.arange(length)
    weights = np.maximum(1 - np.abs((position - center[:, None] + 0.5) / reach), 0)
    weights *= (position >= first[:, None]) & (position < last[:, None])
    weights /= weights.sum(axis=1, keepdims=True)
    rounded: npt.NDArray[np.float64] = np.floor(0.5 + weights * (1 << _WEIGHT_BITS))
    return rounded
