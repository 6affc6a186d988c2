"""Image files -> RGB pixels, in threads or in processes; a bad file is a reason, not a crash."""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from transhash.errors import EngineError

# Of odd metadata and large files; here, because a filter for each call is not safe in threads.
warnings.filterwarnings("ignore", module=r"PIL\b")
Pixels = npt.NDArray[np.uint8]  # (size, size, 3)
MAX_PIXELS = 100_000_000  # a 100-megapixel photograph is real, a larger file is an attack or a slip
_CHUNK = 16  # images of one task
_SLOTS = 3  # batches in shared memory: one in use, one ready, one being filled
_WORTH = 256  # fewer images are decoded before worker processes have started
_memory: Pixels  # in a worker process: where it writes to
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")


def decode(source: Path | bytes, size: int) -> Pixels | str:
    """The image as (size, size, 3) RGB bytes, or the reason why it cannot be had."""
    opened = open_image(source, size)
    if isinstance(opened, str):
        return opened
    resized = opened.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized)  # a copy: torch warns of arrays it may not write to


def open_image(source: Path | bytes, size: int | None = None) -> Image.Image | str:
    """An upright RGB image of whatever mode and size the file has, or what is wrong with it."""
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        image: Image.Image = Image.open(file, formats=_FORMATS)
        if image.width * image.height > MAX_PIXELS:
            return f"{image.width} x {image.height} pixels are more than {MAX_PIXELS:,}"
        if size is not None:
            image.draft("RGB", (size, size))  # JPEG only: decode at a fraction of the size
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            # Transparent pixels hide arbitrary colours; show what a viewer would: white paper.
            paper = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(paper, image)
        elif image.mode.startswith("I;16") or image.mode == "I":
            image = image.convert("I").point(lambda value: value / 256).convert("L")
        return image if image.mode == "RGB" else image.convert("RGB")
    except UnidentifiedImageError:
        return "not an image (JPEG, PNG, WebP, BMP, GIF and TIFF are read)"
    except Image.DecompressionBombError:
        return f"more than {MAX_PIXELS:,} pixels"
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError) as error:
        return f"damaged image ({error})"


class Batch(NamedTuple):
    """Some images of a sequence; `pixels` is overwritten once the next batch is asked for."""

    good: list[int]  # positions in the sequence
    pixels: Pixels  # of those, (n, size, size, 3)
    bad: list[tuple[int, str]]  # position and reason


def decode_batches(
    paths: Sequence[Path],
    size: int,
    batch: int,
    *,
    workers: int = 0,
    threads: int = 1,
    on_memory: Callable[[Pixels], None] = lambda _: None,
) -> Iterator[Batch]:
    """Every path decoded, in order.

    With `workers` processes decode ahead of the caller; else `threads` decode a batch when it is
    asked for, which is better where the caller keeps all cores busy in between. `on_memory` gets
    the memory that all batches will lie in, before the first one.
    """
    batch = min(batch, max(1, len(paths)))
    if workers > 0 and len(paths) >= _WORTH:
        yield from _ahead(paths, size, batch, workers, on_memory)
        return
    memory = np.empty((batch, size, size, 3), np.uint8)
    on_memory(memory)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for start in range(0, len(paths), batch):
            part = paths[start : start + batch]
            cuts = [slice(cut, cut + _CHUNK) for cut in range(0, len(part), _CHUNK)]
            chunks = pool.map(_fill, [memory[cut] for cut in cuts], [part[cut] for cut in cuts])
            yield _batch(
                start, memory[: len(part)], [reason for chunk in chunks for reason in chunk]
            )


def default_workers() -> int:
    return max(1, min(32, (os.cpu_count() or 2) - 1))


def _ahead(
    paths: Sequence[Path], size: int, batch: int, workers: int, on_memory: Callable[[Pixels], None]
) -> Iterator[Batch]:
    """Batches filled by processes that write into memory shared with this one."""
    shape = (_SLOTS, batch, size, size, 3)
    file, name = _memory_file(int(np.prod(shape)))
    memory: Pixels = np.memmap(name, np.uint8, "r+", shape=shape)
    on_memory(memory)
    # spawn: a forked child of a process that has run torch threads can hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _attach, (name, shape))
    starts = iter(range(0, len(paths), batch))
    filling: deque[tuple[int, list[Future[list[str | None]]]]] = deque()

    def fill_next() -> None:
        start = next(starts, None)
        if start is None:
            return
        slot = start // batch % _SLOTS
        part = paths[start : min(start + batch, len(paths))]
        filling.append(
            (
                start,
                [
                    pool.submit(_fill_shared, slot, cut, part[cut : cut + _CHUNK])
                    for cut in range(0, len(part), _CHUNK)
                ],
            )
        )

    try:
        for _ in range(_SLOTS - 1):
            fill_next()
        while filling:
            start, chunks = filling.popleft()
            reasons = [reason for chunk in chunks for reason in chunk.result()]
            fill_next()  # into the slot the caller has just given back
            yield _batch(start, memory[start // batch % _SLOTS, : len(reasons)], reasons)
    except BrokenProcessPool:
        raise EngineError(
            "a process that decodes images died, perhaps for want of memory; use fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(file)
        if not name.startswith("/proc/"):
            os.unlink(name)


def _memory_file(size: int) -> tuple[int, str]:
    """A file in memory under a name that other processes of this user can open."""
    if hasattr(os, "memfd_create"):  # gone with this process, however it ends
        file = os.memfd_create("transhash-pixels")
        path = f"/proc/{os.getpid()}/fd/{file}"
    else:
        file, path = tempfile.mkstemp(prefix="transhash-pixels-")
    os.ftruncate(file, size)
    return file, path


def _batch(start: int, pixels: Pixels, reasons: Sequence[str | None]) -> Batch:
    good = [i for i, reason in enumerate(reasons) if reason is None]
    bad = [(start + i, reason) for i, reason in enumerate(reasons) if reason is not None]
    return Batch([start + i for i in good], pixels[good] if bad else pixels, bad)


def _fill(memory: Pixels, paths: Sequence[Path]) -> list[str | None]:
    """Decode into the first rows of `memory`; what is wrong with each, if anything."""
    reasons: list[str | None] = []
    for row, path in zip(memory, paths):
        pixels = decode(path, len(row))
        if isinstance(pixels, str):
            reasons.append(pixels)
        else:
            row[:] = pixels
            reasons.append(None)
    return reasons


def _attach(name: str, shape: tuple[int, ...]) -> None:
    """In a worker process: the shared memory, mapped once for all its tasks."""
    global _memory
    _memory = np.memmap(name, np.uint8, "r+", shape=shape)


def _fill_shared(slot: int, cut: int, paths: Sequence[Path]) -> list[str | None]:
    return _fill(_memory[slot, cut:], paths)
