"""Decode image files to RGB pixels, digests and thumbnails, in threads or processes.

Each file is read once. An unreadable file gives a reason instead of an exception.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import signal
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError
from PIL import features as pillow_features

from transhash.errors import EngineError
from transhash.storage import content_digest
from transhash.threads import cpu_count

Pixels = npt.NDArray[np.uint8]  # (size, size, 3)
_MAX_BYTES = 1 << 29  # enough for 100 megapixels without compression
_MAX_PIXELS = 100_000_000  # 300 MB once decoded: more is an attack or a mistake
_MAX_JPEG_PIXELS = 1_000_000_000  # a JPEG is decoded at an eighth of its size
_MAX_SIDE = 65_535  # as in a JPEG; resizing an image of 99,000,000 x 1 pixels takes gigabytes
_THUMBNAIL_SIZE = 256  # pixels of the longer side
_CHUNK_IMAGES = 16  # images of one task
_SLOTS = 4  # batches in shared memory: one in use, the others ready or being filled
_MIN_FOR_PROCESSES = 256  # fewer images are decoded before worker processes have started
_FORMATS = ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"hevm", b"mif1", b"msf1")

if pillow_features.check("avif"):
    _FORMATS.append("AVIF")
with suppress(ImportError):  # an extra
    import pillow_heif

    pillow_heif.register_heif_opener()
    _FORMATS.append("HEIF")


def decode(source: Path | bytes, size: int) -> Pixels | str:
    """Return RGB bytes (size, size, 3), or the reason why the image is unreadable."""
    image = open_image(source, size)
    return image if isinstance(image, str) else square(image, size)


def square(image: Image.Image, size: int) -> Pixels:
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized)  # a copy: torch warns about read-only arrays


def thumbnail(source: bytes) -> bytes | None:
    """Return a small JPEG of an image file's bytes, or None if it is unreadable."""
    image = open_image(source, 2 * _THUMBNAIL_SIZE)
    return None if isinstance(image, str) else _encode_thumbnail(image)


def _encode_thumbnail(image: Image.Image) -> bytes:
    # Encoding again drops everything but pixels, such as the place where a photo was taken.
    image.thumbnail((_THUMBNAIL_SIZE, _THUMBNAIL_SIZE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def open_image(source: Path | bytes, size: int | None = None) -> Image.Image | str:
    """Return an upright RGB image, or the reason why it is unreadable.

    With `size`, a JPEG is decoded no larger than needed to resize it to that size.
    """
    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
        image = _open(content, size)
        if max(image.size) > _MAX_SIDE:
            return f"{image.width} x {image.height}, a side above {_MAX_SIDE:,} pixels (crop it)"
        if image.width * image.height > _MAX_PIXELS:
            return _too_large(f"{image.width} x {image.height}, ")
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            # Transparent pixels have arbitrary colors. Viewers show them on white.
            background = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(background, image)
        elif image.mode.startswith("I;16") or image.mode == "I":
            image = image.convert("I").point(lambda value: value / 256).convert("L")
        return image if image.mode == "RGB" else image.convert("RGB")
    except UnidentifiedImageError:
        return _unknown_format(content)
    except Image.DecompressionBombError:
        return _too_large()
    except Exception as error:  # a decoder may raise anything, and a bad file must not stop others
        return f"corrupt image ({' '.join(str(error).split())})"  # on one line


def _too_large(size: str = "") -> str:
    return f"{size}more than {_MAX_PIXELS:,} pixels (save it smaller, or as JPEG)"


def _open(content: bytes, size: int | None) -> Image.Image:
    if content[:3] != b"\xff\xd8\xff":
        return Image.open(io.BytesIO(content), formats=_FORMATS)
    # Image.open would refuse a large JPEG before `draft` can reduce it.
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(content))
    if image.width * image.height > _MAX_JPEG_PIXELS:
        raise Image.DecompressionBombError
    if size is not None:
        image.draft("RGB", (size, size))
    return image


def _unknown_format(content: bytes) -> str:
    start = content[:256].lstrip().lower()
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        return "a HEIC image (to read it: pip install 'transhash[heic]')"
    if start.startswith((b"<svg", b"<?xml")) and b"<svg" in content[:4096].lower():
        return "an SVG drawing (export it as PNG)"
    names = {"WEBP": "WebP", "HEIF": "HEIC"}
    *most, last = (names.get(name, name) for name in _FORMATS)
    return f"not an image (supported: {', '.join(most)} and {last})"


class DecodedFile(NamedTuple):
    """The result of reading one file, except for its pixels."""

    state: Literal["decoded", "cached", "unchanged", "unreadable"]
    digest: bytes = b""  # of the content
    thumbnail: bytes | None = None
    vector: npt.NDArray[np.float32] | None = None  # features of a cached file
    reason: str = ""  # why it is unreadable
    shape: tuple[int, int] = (0, 0)  # height and width of decoded pixels


@dataclass(frozen=True)
class ImageReader:
    """Reads a file once: digest first, then pixels and thumbnail if they are needed."""

    size: int
    thumbnails: bool = False
    cached: Callable[[bytes], npt.NDArray[np.float32] | None] | None = None  # vector by digest
    is_unchanged: Callable[[int, bytes], bool] | None = None  # by position and digest
    upscale: bool = True  # False: an image smaller than `size` keeps its size

    def __call__(self, position: int, source: Path | bytes) -> tuple[DecodedFile, Pixels | None]:
        try:
            size = len(source) if isinstance(source, bytes) else source.stat().st_size
            if size > _MAX_BYTES:
                return DecodedFile("unreadable", reason=f"more than {_MAX_BYTES >> 20} MB"), None
            content = source if isinstance(source, bytes) else source.read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return DecodedFile("unreadable", reason=f"cannot be read ({reason})"), None
        digest = content_digest(content)
        if self.is_unchanged is not None and self.is_unchanged(position, digest):
            return DecodedFile("unchanged", digest), None
        vector = None if self.cached is None else self.cached(digest)
        if vector is not None and not self.thumbnails:
            return DecodedFile("cached", digest, vector=vector), None
        image = open_image(content, self.size)
        if isinstance(image, str):
            return DecodedFile("unreadable", digest, reason=image), None
        pixels = self._pixels(image) if vector is None else None
        small = _encode_thumbnail(image) if self.thumbnails else None
        if pixels is None:
            return DecodedFile("cached", digest, small, vector), None
        return DecodedFile("decoded", digest, small, shape=pixels.shape[:2]), pixels

    def _pixels(self, image: Image.Image) -> Pixels:
        if self.upscale or max(image.size) > self.size:
            return square(image, self.size)
        return np.array(image)


class PixelBatch(NamedTuple):
    """Consecutive images. `pixels` is overwritten once the next batch is requested."""

    start: int  # position of the first
    files: list[DecodedFile]
    pixels: Pixels  # decoded files only, (n, size, size, 3), smaller images in the upper left
    shapes: npt.NDArray[np.int64]  # (n, 2): height and width of the filled area


def decode_batches(
    paths: Sequence[Path | bytes],
    reader: ImageReader,
    batch_size: int,
    *,
    workers: int = 0,
    threads: int = 1,
    on_buffer: Callable[[Pixels], None] = lambda _: None,
) -> Iterator[PixelBatch]:
    """Decode all files in order.

    Worker processes decode ahead of the caller. Without them, threads decode each batch when it
    is requested, which is better if the caller keeps all cores busy in between. `on_buffer`
    receives the memory of all batches before the first one.
    """
    batch_size = min(batch_size, max(1, len(paths)))
    if workers > 0 and len(paths) >= _MIN_FOR_PROCESSES:
        yield from _decode_ahead(paths, reader, batch_size, workers, on_buffer)
        return
    memory = np.empty((batch_size, reader.size, reader.size, 3), np.uint8)
    on_buffer(memory)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for start in range(0, len(paths), batch_size):
            batch = paths[start : start + batch_size]
            chunks = pool.map(
                lambda at, start=start, batch=batch: _decode_into(
                    memory[at : at + _CHUNK_IMAGES], reader, start + at,
                    batch[at : at + _CHUNK_IMAGES],
                ),
                range(0, len(batch), _CHUNK_IMAGES),
            )  # fmt: skip
            yield _make_batch(
                start, memory[: len(batch)], [file for part in chunks for file in part]
            )


def default_workers() -> int:
    return max(1, min(32, cpu_count() - 1))


def _decode_ahead(
    paths: Sequence[Path | bytes],
    reader: ImageReader,
    batch_size: int,
    workers: int,
    on_buffer: Callable[[Pixels], None],
) -> Iterator[PixelBatch]:
    """Decode batches in processes that write into shared memory."""
    shape = (_SLOTS, batch_size, reader.size, reader.size, 3)
    file, name = _memory_file(int(np.prod(shape)))
    memory: Pixels = np.memmap(name, np.uint8, "r+", shape=shape)
    on_buffer(memory)
    pool = _Workers(workers, name, shape, reader)
    starts = iter(range(0, len(paths), batch_size))
    pending: deque[tuple[int, int]] = deque()

    def submit_next() -> None:
        for start in itertools.islice(starts, 1):
            end = min(start + batch_size, len(paths))
            pool.submit(start // batch_size % _SLOTS, start, paths[start:end])
            pending.append((start, end))

    try:
        for _ in range(_SLOTS - 1):
            submit_next()
        while pending:
            start, end = pending.popleft()
            files = pool.receive(start, end)
            submit_next()  # into the slot that the caller has just released
            yield _make_batch(start, memory[start // batch_size % _SLOTS, : end - start], files)
    finally:
        pool.close()
        os.close(file)
        if not name.startswith("/proc/"):
            with suppress(PermissionError):  # on Windows, while the caller holds the pixels
                os.unlink(name)


class _Workers:
    """Decoding processes with one queue of tasks.

    An executor would be slower: a thread of this process hands each task to its workers, and
    that thread waits for the interpreter lock while the caller keeps a GPU busy.
    """

    def __init__(
        self, count: int, memory: str, shape: tuple[int, ...], reader: ImageReader
    ) -> None:
        # spawn: a forked child of a process that has run torch threads can hang.
        context = get_context("spawn")
        self._tasks = context.Queue()
        self._processes = []
        self._results: list[Any] = []  # Connection, or on Windows PipeConnection
        self._files: dict[int, DecodedFile] = {}  # by position, received but not yet returned
        for _ in range(count):
            result, writer = context.Pipe(duplex=False)
            arguments = (self._tasks, writer, memory, shape, reader)
            process = context.Process(target=_work, args=arguments, daemon=True)
            with _hide_main_module():
                process.start()
            writer.close()  # only the worker holds this end now, so its death closes the pipe
            self._processes.append(process)
            self._results.append(result)

    def submit(self, slot: int, start: int, paths: Sequence[Path | bytes]) -> None:
        for at in range(0, len(paths), _CHUNK_IMAGES):
            self._tasks.put((slot, at, start + at, list(paths[at : at + _CHUNK_IMAGES])))

    def receive(self, start: int, end: int) -> list[DecodedFile]:
        """Wait until all images of the range are decoded, and return their results."""
        while not all(i in self._files for i in range(start, end, _CHUNK_IMAGES)):
            ready = wait(self._results)
            for result in self._results:
                if result not in ready:
                    continue
                try:
                    first, files = result.recv()
                except EOFError:
                    raise EngineError(
                        "A process that decodes images died, probably out of memory. Use fewer "
                        "--workers."
                    ) from None
                self._files.update(enumerate(files, first))
        return [self._files.pop(i) for i in range(start, end)]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._tasks.cancel_join_thread()
        self._tasks.close()


@contextlib.contextmanager
def _hide_main_module() -> Iterator[None]:
    """Keep a new process from running the caller's script, which spawn does if it finds one."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(
    tasks: Queue[tuple[int, int, int, list[Path | bytes]]],
    results: Connection,
    name: str,
    shape: tuple[int, ...],
    reader: ImageReader,
) -> None:
    """Run in a worker process: take tasks, write pixels to shared memory, send results."""
    warnings.filterwarnings("ignore", module=r"PIL\b")  # about odd metadata
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    memory: Pixels = np.memmap(name, np.uint8, "r+", shape=shape)
    parent = parent_process()
    while parent is not None and parent.is_alive():
        try:
            slot, at, first, paths = tasks.get(timeout=5)
            results.send((first, _decode_into(memory[slot, at:], reader, first, paths)))
        except Empty:
            continue  # check whether the parent is alive
        except BrokenPipeError:
            return


def _memory_file(size: int) -> tuple[int, str]:
    """Create a file in memory with a name that other processes of this user can open."""
    if hasattr(os, "memfd_create"):  # released however this process ends
        file = os.memfd_create("transhash-pixels")
        path = f"/proc/{os.getpid()}/fd/{file}"
    else:
        file, path = tempfile.mkstemp(prefix="transhash-pixels-")
    os.ftruncate(file, size)
    return file, path


def _make_batch(start: int, pixels: Pixels, files: list[DecodedFile]) -> PixelBatch:
    decoded = [i for i, file in enumerate(files) if file.state == "decoded"]
    shapes = np.array([files[i].shape for i in decoded], np.int64).reshape(-1, 2)
    return PixelBatch(
        start, files, pixels if len(decoded) == len(files) else pixels[decoded], shapes
    )


def _decode_into(
    memory: Pixels, reader: ImageReader, start: int, paths: Sequence[Path | bytes]
) -> list[DecodedFile]:
    """Decode into the first rows of `memory`."""
    files = []
    for i, path in enumerate(paths):
        file, pixels = reader(start + i, path)
        if pixels is not None:
            height, width = file.shape
            memory[i, :height, :width] = pixels
        files.append(file)
    return files
