"""Image files -> RGB pixels, in threads or in processes; a bad file is a reason, not a crash."""

from __future__ import annotations

import io
import itertools
import os
import signal
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
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
_SLOTS = 4  # batches in shared memory: one in use, the others ready or being filled
_WORTH = 256  # fewer images are decoded before worker processes have started
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
    pool = _Workers(workers, name, shape)
    starts = iter(range(0, len(paths), batch))
    filling: deque[tuple[int, int]] = deque()

    def fill_next() -> None:
        for start in itertools.islice(starts, 1):
            end = min(start + batch, len(paths))
            pool.send(start // batch % _SLOTS, start, paths[start:end])
            filling.append((start, end))

    try:
        for _ in range(_SLOTS - 1):
            fill_next()
        while filling:
            start, end = filling.popleft()
            reasons = pool.receive(start, end)
            fill_next()  # into the slot the caller has just given back
            yield _batch(start, memory[start // batch % _SLOTS, : end - start], reasons)
    finally:
        pool.close()
        os.close(file)
        if not name.startswith("/proc/"):
            os.unlink(name)


class _Workers:
    """Decoding processes with one queue of tasks.

    Not an executor: its workers wait for a thread of this process to hand them each task, and
    that thread waits for the interpreter lock while the caller keeps a GPU busy.
    """

    def __init__(self, count: int, memory: str, shape: tuple[int, ...]) -> None:
        # spawn: a forked child of a process that has run torch threads can hang.
        context = get_context("spawn")
        self._tasks = context.Queue()
        self._processes = []
        self._answers: list[Connection] = []
        self._reasons: dict[int, str | None] = {}  # by position, of what was decoded ahead
        for _ in range(count):
            reader, writer = context.Pipe(duplex=False)
            arguments = (self._tasks, writer, memory, shape)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            writer.close()  # the worker's end alone is open now: its death is the end of the pipe
            self._processes.append(process)
            self._answers.append(reader)

    def send(self, slot: int, start: int, paths: Sequence[Path]) -> None:
        for cut in range(0, len(paths), _CHUNK):
            part = [str(path) for path in paths[cut : cut + _CHUNK]]
            self._tasks.put((slot, cut, start + cut, part))

    def receive(self, start: int, end: int) -> list[str | None]:
        """What is wrong with each image of the range, once all of them are decoded."""
        while not all(i in self._reasons for i in range(start, end, _CHUNK)):
            for reader in wait(self._answers):
                assert isinstance(reader, Connection)
                try:
                    first, reasons = reader.recv()
                except EOFError:
                    raise EngineError(
                        "a process that decodes images died: for want of memory (use fewer "
                        "--workers), or because the script that calls transhash does not keep its "
                        "work under `if __name__ == '__main__':`"
                    ) from None
                self._reasons.update(enumerate(reasons, first))
        return [self._reasons.pop(i) for i in range(start, end)]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._tasks.cancel_join_thread()
        self._tasks.close()


def _work(
    tasks: Queue[tuple[int, int, int, list[str]]],
    answers: Connection,
    name: str,
    shape: tuple[int, ...],
) -> None:
    """A worker: tasks in, pixels into the shared memory, reasons out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it ends
    memory: Pixels = np.memmap(name, np.uint8, "r+", shape=shape)
    parent = parent_process()
    while parent is not None and parent.is_alive():
        try:
            slot, cut, first, paths = tasks.get(timeout=5)
            answers.send((first, _fill(memory[slot, cut:], [Path(path) for path in paths])))
        except Empty:
            continue  # nothing to do, or nobody there any more
        except BrokenPipeError:
            return


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
