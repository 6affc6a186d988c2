"""Image files -> rows, a part at a time, in order: the one way from pictures to features.

Each file is read once. Its digest tells whether the caller needs it at all and whether its features
are kept from an earlier time; if not it is decoded and computed. Memory is bounded: a few parts are
on their way at any time, whatever the number of files.
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

from transhash.features.cache import FeatureCache
from transhash.features.decode import (
    DecodedFile,
    ImageReader,
    PixelBatch,
    Pixels,
    decode_batches,
    default_workers,
)
from transhash.features.images import ImageFeatures
from transhash.progress import Track, no_progress

# Pillow's bilinear resize, to the last bit, of many small pictures at once on a device.
#
# A core spends most of a small picture's time on making it larger; a GPU does that in passing.

_BITS = 22  # of a weight, as Pillow rounds them
_TOGETHER = 128  # pictures: what lies between in double precision takes 2.4 MB each


def upscale(pixels: Tensor, shapes: npt.NDArray[np.int64]) -> Tensor:
    """Pictures (n, size, size, 3) whose upper left (height, width) is filled, brought to size.

    Weights are whole numbers and their sums fit into the 53 bits of a float64, so every sum is
    exact in whatever order a device adds.
    """
    size = pixels.shape[1]
    rows = np.flatnonzero((shapes != size).any(axis=1))
    if not len(rows):
        return pixels
    found = pixels.clone()
    for start in range(0, len(rows), _TOGETHER):
        own = shapes[rows[start : start + _TOGETHER]]
        some = torch.from_numpy(rows[start : start + _TOGETHER]).to(pixels.device)
        height, width = own.max(axis=0).tolist()
        down, across = (
            _weights(own[:, axis], longest, size, pixels.device)
            for axis, longest in enumerate((height, width))
        )
        part = pixels[some, :height, :width].transpose(2, 3).flatten(1, 2).double()
        part = _rounded(part @ across.mT)  # (n, height * 3, size)
        part = _rounded(down @ part.view(-1, height, 3 * size))
        found[some] = part.view(-1, size, 3, size).transpose(2, 3).byte()
    return found


def _rounded(sums: Tensor) -> Tensor:
    return sums.add_(1 << (_BITS - 1)).mul_(2.0**-_BITS).floor_().clamp_(0, 255)


def _weights(
    lengths: npt.NDArray[np.int64], longest: int, size: int, device: torch.device
) -> Tensor:
    """(n, size, longest): of each picture's own length, and nothing of what lies beyond it."""
    known, which = np.unique(lengths, return_inverse=True)
    table = np.zeros((len(known), size, longest))
    for row, length in zip(table, known.tolist()):
        row[:, :length] = _bilinear(length, size)
    return torch.from_numpy(table).to(device)[torch.from_numpy(which).to(device)]


@cache
def _bilinear(length: int, size: int) -> npt.NDArray[np.float64]:
    scale = length / size
    reach = max(scale, 1.0)
    centre = (np.arange(size) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(int), 0)
    last = np.minimum((centre + reach + 0.5).astype(int), length)
    place = np.arange(length)
    weights = np.maximum(1 - np.abs((place - centre[:, None] + 0.5) / reach), 0)
    weights *= (place >= first[:, None]) & (place < last[:, None])
    weights /= weights.sum(axis=1, keepdims=True)
    whole: npt.NDArray[np.float64] = np.floor(0.5 + weights * (1 << _BITS))
    return whole


_AHEAD = 16  # parts that threads may be ahead of the caller, while it writes to disk


@dataclass(frozen=True)
class FeatureBatch:
    """Some items of a sequence, in order; positions are those in the sequence."""

    readable: list[int]
    vectors: npt.NDArray[Any]  # of the good ones
    digests: list[bytes]  # of their contents
    thumbnails: list[bytes | None]  # small JPEGs, where asked for
    unchanged: list[int]  # those the caller knows
    unreadable: list[tuple[int, str]]  # and why

    def __len__(self) -> int:
        return len(self.readable) + len(self.unchanged) + len(self.unreadable)

    def cut(self, end: int) -> tuple[FeatureBatch, FeatureBatch]:
        """What lies before position `end`, and the rest."""
        good = sum(i < end for i in self.readable)
        same = sum(i < end for i in self.unchanged)
        bad = sum(i < end for i, _ in self.unreadable)

        def part(g: slice, s: slice, b: slice) -> FeatureBatch:
            return FeatureBatch(
                self.readable[g], self.vectors[g], self.digests[g], self.thumbnails[g], self.unchanged[s],
                self.unreadable[b],
            )  # fmt: skip

        before = part(slice(good), slice(same), slice(bad))
        return before, part(slice(good, None), slice(same, None), slice(bad, None))


def stream_images(
    features: ImageFeatures,
    paths: Sequence[Path | bytes],
    *,
    cache: bool = True,
    workers: int | None = None,
    thumbnails: bool = False,
    is_unchanged: Callable[[int, bytes], bool] | None = None,
) -> Iterator[FeatureBatch]:
    """Every file once, in order.

    `cache` looks for features that are kept, and keeps new ones. `workers`: threads on a CPU,
    decoding processes beside a GPU (None: as is best). Where `same` is true of a position and a
    digest, nothing is computed.
    """
    key = features.cache_key() if cache else None
    kept = None if key is None else FeatureCache(key)
    reader = ImageReader(features.size, thumbnails, kept.get if kept else None, is_unchanged)
    if features.device.startswith("cuda"):
        parts = _by_processes(features, paths, reader, workers)
    else:
        parts = _by_threads(features, paths, reader, workers)
    try:
        for part, fresh in parts:
            if kept is not None and fresh:
                kept.put([part.digests[i] for i in fresh], part.vectors[fresh])
            yield part
    finally:
        parts.close()
        if kept is not None:
            kept.close()


def extract_all(
    features: ImageFeatures, paths: Sequence[Path | bytes], track: Track = no_progress
) -> tuple[npt.NDArray[Any], list[tuple[int, str]]]:
    """All rows at once, for those who learn from them, and the bad files."""
    rows: npt.NDArray[Any] = np.empty((0, 0), np.float32)
    bad: list[tuple[int, str]] = []
    count = 0
    for part in with_progress(stream_images(features, paths), track, "image features", len(paths)):
        if part.readable:
            if not count:  # room for all, of the first one's kind
                rows = np.empty((len(paths), *part.vectors.shape[1:]), part.vectors.dtype)
            rows[count : count + len(part.readable)] = part.vectors
            count += len(part.readable)
        bad += part.unreadable
    return rows[:count], bad


def with_progress(
    parts: Iterable[FeatureBatch], track: Track, description: str, total: int, start: int = 0
) -> Iterator[FeatureBatch]:
    """The parts, while a bar counts their items."""
    part: FeatureBatch | None = None

    def ticks() -> Iterator[int]:
        nonlocal part
        for part in parts:
            yield from range(len(part))

    for tick in track(ticks(), description, total=total, start=start):
        if tick == 0 and part is not None:
            yield part


_Fresh = list[int]  # which of a part's rows were computed just now


def _by_threads(
    features: ImageFeatures, paths: Sequence[Path | bytes], reader: ImageReader, workers: int | None
) -> Generator[tuple[FeatureBatch, _Fresh], None, None]:
    """Each thread has its own images from file to features, so that none waits for another."""

    def compute(start: int) -> tuple[FeatureBatch, _Fresh]:
        seen, pixels = [], []
        for i in range(start, min(start + features.batch_size, len(paths))):
            one, picture = reader(i, paths[i])
            seen.append(one)
            if picture is not None:
                pixels.append(picture)
        rows = features.extract(np.stack(pixels)) if pixels else None
        return _assemble(start, seen, rows)

    if len(paths) <= features.batch_size:
        if paths:
            yield compute(0)
        return
    features.network()  # loaded here, or every thread would
    before = torch.get_num_threads()
    threads = workers or before
    ahead: deque[Future[tuple[FeatureBatch, _Fresh]]] = deque()
    with ThreadPoolExecutor(threads, "features", torch.set_num_threads, (1,)) as pool:
        try:
            for start in range(0, len(paths), features.batch_size):
                ahead.append(pool.submit(compute, start))
                if len(ahead) > 2 * threads + _AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
            torch.set_num_threads(before)  # for threads to come; it is 1 in those of the pool


def _by_processes(
    features: ImageFeatures, paths: Sequence[Path | bytes], reader: ImageReader, workers: int | None
) -> Generator[tuple[FeatureBatch, _Fresh], None, None]:
    """Processes decode while the device computes; `same` is asked here, of what they have read."""
    # Where pixels go to the device anyway, it makes small pictures larger, too.
    enlarge = features.network() is None
    same, reader = reader.is_unchanged, replace(reader, is_unchanged=None, upscale=enlarge)
    workers = default_workers() if workers is None else workers
    decoding = partial(decode_batches, paths, reader, features.batch_size, workers=workers, threads=4)
    for batch, rows in _run_network(features, decoding):
        part, fresh = _assemble(batch.start, batch.files, rows)
        if same is not None:
            gone = {k for k, i in enumerate(part.readable) if same(i, part.digests[k])}
            left = [k for k in range(len(part.readable)) if k not in gone]
            fresh = [left.index(k) for k in fresh if k not in gone]
            part = FeatureBatch(
                [part.readable[k] for k in left],
                part.vectors[left],
                [part.digests[k] for k in left],
                [part.thumbnails[k] for k in left],
                [part.readable[k] for k in sorted(gone)],
                part.unreadable,
            )
        yield part, fresh


def _run_network(
    features: ImageFeatures, batches: Callable[..., Iterable[PixelBatch]]
) -> Iterator[tuple[PixelBatch, npt.NDArray[Any] | None]]:
    """The batches and the rows of their pixels.

    Beside a GPU's work the next batch is copied and others are decoded. `batches(on_memory=f)` must
    call f with the memory in which its batches will lie. The pixels of a yielded batch may be
    overwritten already.
    """
    network = features.network()
    if network is None:
        for batch in batches(on_buffer=lambda _: None):
            yield batch, features.extract(batch.pixels) if len(batch.pixels) else None
        return
    device = features.device
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    pinned: list[Tensor] = []

    def pin(memory: Pixels) -> None:
        # Copies from ordinary memory are staged by the driver at half the speed.
        pinned.append(torch.from_numpy(memory))
        runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)

    def launch(batch: PixelBatch) -> Callable[[], npt.NDArray[Any]]:
        with torch.inference_mode():
            with torch.cuda.stream(copying):
                x = torch.from_numpy(batch.pixels).to(device, non_blocking=True)
            copying.synchronize()  # from here on the memory may be written to again
            x.record_stream(torch.cuda.current_stream(device))
            rows = network(upscale(x, batch.shapes).permute(0, 3, 1, 2))
            arriving = torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)
            event = torch.cuda.current_stream(device).record_event()

        def arrived() -> npt.NDArray[Any]:
            event.synchronize()
            return np.array(arriving)

        return arrived

    waiting: tuple[PixelBatch, Callable[[], npt.NDArray[Any] | None]] | None = None
    try:
        for batch in batches(on_buffer=pin):
            launched = (batch, launch(batch) if len(batch.pixels) else lambda: None)
            if waiting is not None:
                yield waiting[0], waiting[1]()
            waiting = launched
        if waiting is not None:
            yield waiting[0], waiting[1]()
    finally:
        for memory in pinned:
            runtime.cudaHostUnregister(memory.data_ptr())


def _assemble(
    start: int, seen: Sequence[DecodedFile], rows: npt.NDArray[Any] | None
) -> tuple[FeatureBatch, _Fresh]:
    """Computed and kept rows in the order of the files."""
    good = [k for k, one in enumerate(seen) if one.state in ("decoded", "cached")]
    fresh = [j for j, k in enumerate(good) if seen[k].state == "decoded"]
    if rows is None or len(fresh) < len(good):
        fresh_rows = iter(() if rows is None else rows)
        each: list[Any] = [
            next(fresh_rows) if seen[k].state == "decoded" else seen[k].row for k in good
        ]
        rows = np.stack(each) if each else np.empty((0, 0), np.float32)
    part = FeatureBatch(
        [start + k for k in good],
        rows,
        [seen[k].digest for k in good],
        [seen[k].thumbnail for k in good],
        [start + k for k, one in enumerate(seen) if one.state == "unchanged"],
        [(start + k, one.reason) for k, one in enumerate(seen) if one.state == "unreadable"],
    )
    return part, fresh
