"""One image file -> an upright RGB picture, pixels and thumbnail, or what is wrong with it."""

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
from PIL import features as built_in

from transhash.errors import EngineError
from transhash.storage import content_digest

Pixels = npt.NDArray[np.uint8]  # (size, size, 3)
_MAX_PIXELS = 100_000_000  # decoded: 300 MB; a larger file that is no JPEG is an attack or a slip
_MAX_JPEG_PIXELS = 1_000_000_000  # a JPEG is decoded at an eighth of its size
_THUMBNAIL = 256  # pixels of the longer side
_FORMATS = ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]
_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"hevm", b"mif1", b"msf1")  # of HEIF

if built_in.check("avif"):
    _FORMATS.append("AVIF")
with suppress(ImportError):  # an extra
    import pillow_heif

    pillow_heif.register_heif_opener()
    _FORMATS.append("HEIF")


def readable_formats() -> str:
    """As a sentence says them."""
    names = {"WEBP": "WebP", "HEIF": "HEIC"}
    *most, last = (names.get(name, name) for name in _FORMATS)
    return f"{', '.join(most)} and {last}"


def decode(source: Path | bytes, size: int) -> Pixels | str:
    """The image as (size, size, 3) RGB bytes, or the reason why it cannot be had."""
    opened = open_image(source, size)
    return opened if isinstance(opened, str) else square(opened, size)


def square(image: Image.Image, size: int) -> Pixels:
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized)  # a copy: torch warns of arrays it may not write to


def thumbnail_of(image: Image.Image) -> bytes:
    """A small JPEG, encoded anew so that nothing of the original file but pixels survives."""
    image.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def thumbnail(source: bytes) -> bytes | None:
    """A small JPEG of an image file's bytes."""
    image = open_image(source, 512)
    return None if isinstance(image, str) else thumbnail_of(image)


def open_image(source: Path | bytes, size: int | None = None) -> Image.Image | str:
    """An upright RGB image of whatever mode and size the file has, or what is wrong with it.

    With `size` a JPEG, whatever its size, is decoded no larger than that needs.
    """
    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
        image = _opened(content, size)
        if image.width * image.height > _MAX_PIXELS:
            return (
                f"{image.width} x {image.height} pixels are more than {_MAX_PIXELS:,}; save it "
                "smaller, or as JPEG"
            )
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
        return _unknown(content)
    except Image.DecompressionBombError:
        return f"more than {_MAX_PIXELS:,} pixels; save it smaller, or as JPEG"
    except (
        OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, Warning
    ) as error:  # fmt: skip  # Warning: where a caller has made errors of them
        return f"damaged image ({' '.join(str(error).split())})"  # some libraries break lines


def _opened(content: bytes, size: int | None) -> Image.Image:
    if content[:3] != b"\xff\xd8\xff":
        return Image.open(io.BytesIO(content), formats=_FORMATS)
    # Not by Image.open, which refuses large files before they can be asked for a smaller picture.
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(content))
    if image.width * image.height > _MAX_JPEG_PIXELS:
        raise Image.DecompressionBombError
    if size is not None:
        image.draft("RGB", (size, size))
    return image


def _unknown(content: bytes) -> str:
    """What to do about a file that no reader knows."""
    start = content[:256].lstrip().lower()
    if content[4:8] == b"ftyp" and content[8:12] in _BRANDS:
        return "a HEIC picture; pip install 'transhash[heic]' reads those"
    if start.startswith((b"<svg", b"<?xml")) and b"<svg" in content[:4096].lower():
        return "an SVG drawing, which has no pixels; export it as PNG"
    return f"not an image ({readable_formats()} are read)"


# Image files -> digest, RGB pixels and thumbnail, in threads or processes, each file read once.
#
# A bad file is a reason, not a crash.

_MAX_BYTES = 1 << 29  # a photograph of 100 megapixels without compression fits
_CHUNK = 16  # images of one task
_SLOTS = 4  # batches in shared memory: one in use, the others ready or being filled
_WORTH = 256  # fewer images are decoded before worker processes have started


class DecodedFile(NamedTuple):
    """What was found out about one file, beside its pixels."""

    state: Literal["decoded", "cached", "unchanged", "unreadable"]
    digest: bytes = b""  # of the content
    thumbnail: bytes | None = None
    row: npt.NDArray[np.float32] | None = None  # of a known one: its features
    reason: str = ""  # why it is bad
    shape: tuple[int, int] = (0, 0)  # height and width of decoded pixels


@dataclass(frozen=True)
class ImageReader:
    """Reads a file once: digest first, then pixels and thumbnail as far as they are needed."""

    size: int
    thumbnails: bool = False
    cached: Callable[[bytes], npt.NDArray[np.float32] | None] | None = None  # features by digest
    is_unchanged: Callable[[int, bytes], bool] | None = None  # by position and digest: nothing is needed
    upscale: bool = True  # else a picture smaller than `size` stays so

    def __call__(self, position: int, source: Path | bytes) -> tuple[DecodedFile, Pixels | None]:
        try:
            size = len(source) if isinstance(source, bytes) else source.stat().st_size
            if size > _MAX_BYTES:
                return DecodedFile("unreadable", reason=f"more than {_MAX_BYTES >> 20} MB"), None
            content = source if isinstance(source, bytes) else source.read_bytes()
        except (OSError, ValueError) as error:
            return DecodedFile("unreadable", reason=f"cannot be read ({_why(error)})"), None
        digest = content_digest(content)
        if self.is_unchanged is not None and self.is_unchanged(position, digest):
            return DecodedFile("unchanged", digest), None
        row = None if self.cached is None else self.cached(digest)
        if row is not None and not self.thumbnails:
            return DecodedFile("cached", digest, row=row), None
        image = open_image(content, self.size)
        if isinstance(image, str):
            return DecodedFile("unreadable", digest, reason=image), None
        pixels = self._pixels(image) if row is None else None
        small = thumbnail_of(image) if self.thumbnails else None
        if pixels is None:
            return DecodedFile("cached", digest, small, row), None
        return DecodedFile("decoded", digest, small, shape=pixels.shape[:2]), pixels

    def _pixels(self, image: Image.Image) -> Pixels:
        if self.upscale or max(image.size) > self.size:
            return square(image, self.size)
        return np.array(image)


class PixelBatch(NamedTuple):
    """Some images of a sequence; `pixels` is overwritten once the next batch is asked for."""

    start: int  # position of the first
    files: list[DecodedFile]  # every image from there on
    pixels: Pixels  # of the decoded ones, (n, size, size, 3); a smaller one upper left
    shapes: npt.NDArray[np.int64]  # (n, 2): how much of each is filled


def decode_batches(
    paths: Sequence[Path | bytes],
    reader: ImageReader,
    batch: int,
    *,
    workers: int = 0,
    threads: int = 1,
    on_buffer: Callable[[Pixels], None] = lambda _: None,
) -> Iterator[PixelBatch]:
    """Every path read, in order.

    With `workers` processes decode ahead of the caller; else `threads` decode a batch when it is
    asked for, which is better where the caller keeps all cores busy in between. `on_buffer` gets
    the memory that all batches will lie in, before the first one.
    """
    batch = min(batch, max(1, len(paths)))
    if workers > 0 and len(paths) >= _WORTH:
        yield from _ahead(paths, reader, batch, workers, on_buffer)
        return
    memory = np.empty((batch, reader.size, reader.size, 3), np.uint8)
    on_buffer(memory)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for start in range(0, len(paths), batch):
            part = paths[start : start + batch]
            cuts = range(0, len(part), _CHUNK)
            chunks = pool.map(
                lambda cut, start=start, part=part: _fill(
                    memory[cut : cut + _CHUNK], reader, start + cut, part[cut : cut + _CHUNK]
                ),
                cuts,
            )
            yield _batch(start, memory[: len(part)], [seen for chunk in chunks for seen in chunk])


def default_workers() -> int:
    return max(1, min(32, (os.cpu_count() or 2) - 1))


def _ahead(
    paths: Sequence[Path | bytes],
    reader: ImageReader,
    batch: int,
    workers: int,
    on_buffer: Callable[[Pixels], None],
) -> Iterator[PixelBatch]:
    """Batches filled by processes that write into memory shared with this one."""
    shape = (_SLOTS, batch, reader.size, reader.size, 3)
    file, name = _memory_file(int(np.prod(shape)))
    memory: Pixels = np.memmap(name, np.uint8, "r+", shape=shape)
    on_buffer(memory)
    pool = _Workers(workers, name, shape, reader)
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
            seen = pool.receive(start, end)
            fill_next()  # into the slot the caller has just given back
            yield _batch(start, memory[start // batch % _SLOTS, : end - start], seen)
    finally:
        pool.close()
        os.close(file)
        if not name.startswith("/proc/"):
            with contextlib.suppress(PermissionError):  # Windows, while the caller holds the pixels
                os.unlink(name)


class _Workers:
    """Decoding processes with one queue of tasks.

    Not an executor: its workers wait for a thread of this process to hand them each task, and
    that thread waits for the interpreter lock while the caller keeps a GPU busy.
    """

    def __init__(
        self, count: int, memory: str, shape: tuple[int, ...], reader: ImageReader
    ) -> None:
        # spawn: a forked child of a process that has run torch threads can hang.
        context = get_context("spawn")
        self._tasks = context.Queue()
        self._processes = []
        self._answers: list[Any] = []  # Connection, or on Windows PipeConnection
        self._seen: dict[int, DecodedFile] = {}  # by position, of what was decoded ahead
        for _ in range(count):
            answer, writer = context.Pipe(duplex=False)
            arguments = (self._tasks, writer, memory, shape, reader)
            process = context.Process(target=_work, args=arguments, daemon=True)
            with _hide_main_module():
                process.start()
            writer.close()  # the worker's end alone is open now: its death is the end of the pipe
            self._processes.append(process)
            self._answers.append(answer)

    def send(self, slot: int, start: int, paths: Sequence[Path | bytes]) -> None:
        for cut in range(0, len(paths), _CHUNK):
            part = list(paths[cut : cut + _CHUNK])
            self._tasks.put((slot, cut, start + cut, part))

    def receive(self, start: int, end: int) -> list[DecodedFile]:
        """What was seen of each image of the range, once all of them are decoded."""
        while not all(i in self._seen for i in range(start, end, _CHUNK)):
            ready = wait(self._answers)
            for answer in self._answers:
                if answer not in ready:
                    continue
                try:
                    first, seen = answer.recv()
                except EOFError:
                    raise EngineError(
                        "a process that decodes images died, perhaps for want of memory: use fewer "
                        "--workers"
                    ) from None
                self._seen.update(enumerate(seen, first))
        return [self._seen.pop(i) for i in range(start, end)]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._tasks.cancel_join_thread()
        self._tasks.close()


@contextlib.contextmanager
def _hide_main_module() -> Iterator[None]:
    """A new process runs the caller's script first if it sees one: imports, or all of its work."""
    kept, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = kept


def _work(
    tasks: Queue[tuple[int, int, int, list[Path | bytes]]],
    answers: Connection,
    name: str,
    shape: tuple[int, ...],
    reader: ImageReader,
) -> None:
    """A worker: tasks in, pixels into the shared memory, what was seen out."""
    warnings.filterwarnings("ignore", module=r"PIL\b")  # of odd metadata; this process is ours
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it ends
    memory: Pixels = np.memmap(name, np.uint8, "r+", shape=shape)
    parent = parent_process()
    while parent is not None and parent.is_alive():
        try:
            slot, cut, first, paths = tasks.get(timeout=5)
            answers.send((first, _fill(memory[slot, cut:], reader, first, paths)))
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


def _batch(start: int, pixels: Pixels, seen: list[DecodedFile]) -> PixelBatch:
    decoded = [i for i, one in enumerate(seen) if one.state == "decoded"]
    shapes = np.array([seen[i].shape for i in decoded], np.int64).reshape(-1, 2)
    return PixelBatch(start, seen, pixels if len(decoded) == len(seen) else pixels[decoded], shapes)


def _fill(
    memory: Pixels, reader: ImageReader, start: int, paths: Sequence[Path | bytes]
) -> list[DecodedFile]:
    """Decode into the first rows of `memory`; what was seen of each."""
    found = []
    for i, path in enumerate(paths):
        seen, pixels = reader(start + i, path)
        if pixels is not None:
            height, width = seen.shape
            memory[i, :height, :width] = pixels
        found.append(seen)
    return found


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
