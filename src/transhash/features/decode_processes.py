"""Decode images in processes of their own: a decoder that crashes costs one image.

`DecoderProcess` decodes one image at a time for a thread that waits. `decode_batches` decodes
files ahead of the caller, into shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import struct
import sys
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from transhash.errors import EngineError
from transhash.features.decode import (
    MAX_DECODE_BYTES,
    DecodedFile,
    ImageReader,
    ImageResult,
    ImageTask,
    Pixels,
    decode,
    read_content,
    render,
)
from transhash.features.metadata import ImageMetadata
from transhash.storage import read_at, write_at
from transhash.threads import cpu_count

_DECODE_SECONDS = 60.0  # the largest images take a few
_START_SECONDS = 120.0
_CHUNK_IMAGES = 16  # images of one task
_SLOTS = 4  # batches in shared memory: one in use, the others ready or being filled
_MIN_FOR_PROCESSES = 256  # fewer images are decoded before worker processes have started
_LARGE_BYTES = 8 << 20  # blocks that malloc gets from the kernel and gives back
_TASK = struct.Struct("<QI??II?")  # bytes of the file and an ImageTask
_REPLY = struct.Struct("<?IIIII")  # whether readable, height, width, sizes of three parts


class DecoderProcess:
    """A process that decodes one image at a time, started when needed and after it died.

    An image that crashes it, takes too long or needs more than `memory` bytes is unreadable.
    """

    def __init__(self, *, memory: int = MAX_DECODE_BYTES, seconds: float = _DECODE_SECONDS) -> None:
        self._memory, self._seconds = memory, seconds
        self._process: Any = None
        self._file = -1  # in memory, with the content: a pipe would take half as long as decoding
        self._file_name = ""
        self._connection: Any = None  # Connection, or on Windows PipeConnection
        self._lock = threading.Lock()  # held while the process starts or an image is decoded

    def start(self) -> None:
        with self._lock:
            self._ensure_started()

    def render(self, content: bytes, task: ImageTask) -> ImageResult | str:
        """Do what `features.decode.render` does, in the process."""
        with self._lock:
            self._ensure_started()
            try:
                _write_all(self._file, content)
                self._connection.send_bytes(_TASK.pack(len(content), *task))
                if not self._connection.poll(self._seconds):
                    self._stop()
                    return _stopped(self._seconds)
                result = _parse_reply(self._connection.recv_bytes(), self._connection.recv_bytes)
                os.ftruncate(self._file, 0)
                return result
            except (EOFError, OSError):
                process = self._process
                self._stop()
                return _crashed(process.exitcode)

    def close(self) -> None:
        """Stop the process, even while it decodes; `render` starts it again."""
        process = self._process
        with suppress(AttributeError):  # none, or one that is being started
            process.kill()  # the thread that waits for it sees its end
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def _ensure_started(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._stop()
        context = get_context("spawn")  # a forked child of a process with torch threads can hang
        self._connection, other = context.Pipe()
        self._file, self._file_name = _memory_file(0)
        self._process = context.Process(
            target=_serve_decoder, args=(other, self._file_name, self._memory), daemon=True
        )
        with _hide_main_module():
            self._process.start()
        other.close()  # only the process holds this end now, so its death closes the pipe
        try:
            if self._connection.poll(_START_SECONDS):
                self._connection.recv_bytes()
                return
        except (EOFError, OSError):
            pass
        self._stop()
        raise EngineError(
            "The process that decodes images cannot be started. Free memory, then try again."
        )

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None
            _close_memory_file(self._file, self._file_name)


class DecoderPool:
    """As many decoder processes as threads use it at the same time."""

    def __init__(self) -> None:
        self._idle: list[DecoderProcess] = []
        self._all: list[DecoderProcess] = []
        self._lock = threading.Lock()

    def render(self, content: bytes, task: ImageTask) -> ImageResult | str:
        with self._lock:
            decoder = self._idle.pop() if self._idle else DecoderProcess()
            if decoder not in self._all:
                self._all.append(decoder)
        try:
            return decoder.render(content, task)
        finally:
            with self._lock:
                self._idle.append(decoder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for decoder in self._all:
            decoder.close()


@contextlib.contextmanager
def isolated_reader(reader: ImageReader) -> Iterator[ImageReader]:
    """Yield a reader that decodes in processes, as many as threads call it."""
    if current_process().daemon:  # which may not start processes
        yield reader
        return
    with DecoderPool() as pool:
        yield replace(reader, render=pool.render)


_POOLS: dict[int, DecoderPool] = {}  # by process: a forked one must not use those of its parent


def decode_isolated(source: Path | bytes, size: int) -> Pixels | str:
    """Return what `features.decode.decode` does, decoded in a process that stays for the next."""
    content = read_content(source)
    if isinstance(content, str):
        return content
    if current_process().daemon:  # which may not start processes
        return decode(content, size)
    result = _POOLS.setdefault(os.getpid(), DecoderPool()).render(content, ImageTask(size))
    if isinstance(result, str):
        return result
    assert result.pixels is not None
    return result.pixels


def _stopped(seconds: float) -> str:
    return f"decoding it took more than {seconds:.0f} seconds (convert it to JPEG or PNG)"


def _crashed(exit_code: int | None) -> str:
    cause = f"exit code {exit_code}"
    if exit_code is not None and exit_code < 0:
        with suppress(ValueError):
            cause = signal.Signals(-exit_code).name
    return f"its decoder crashed with {cause} (convert it to JPEG or PNG)"


def _parse_reply(head: bytes, receive: Callable[[], bytes]) -> ImageResult | str:
    is_readable, height, width, *sizes = _REPLY.unpack(head)
    body = receive()
    if not is_readable:
        return body.decode("utf-8", "replace")
    raw, jpeg, fingerprint, metadata = (
        body[start : start + size]
        for start, size in zip(np.cumsum([0, *sizes]), [*sizes, len(body)])
    )
    pixels = np.frombuffer(bytearray(raw), np.uint8).reshape(height, width, 3) if raw else None
    described = ImageMetadata.from_json(metadata) if metadata else None
    return ImageResult(pixels, jpeg or None, fingerprint, described)


def _serve_decoder(connection: Connection, file_name: str, memory: int) -> None:
    """Run in a decoder process: decode until the other end is closed."""
    _prepare_decoder()
    file = os.open(file_name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    connection.send_bytes(b"ready")
    while True:
        try:
            size, *task = _TASK.unpack(connection.recv_bytes())
            _limit_memory(memory + size)
            result = render(_read_all(file, size), ImageTask(*task))
            if isinstance(result, str):
                connection.send_bytes(_REPLY.pack(False, 0, 0, 0, 0, 0))
                connection.send_bytes(result.encode("utf-8", "replace"))
                continue
            height, width = (0, 0) if result.pixels is None else result.pixels.shape[:2]
            pixels = b"" if result.pixels is None else result.pixels.tobytes()
            parts = (pixels, result.jpeg or b"", result.fingerprint)
            connection.send_bytes(_REPLY.pack(True, height, width, *map(len, parts)))
            metadata = b"" if result.metadata is None else result.metadata.to_json()
            connection.send_bytes(b"".join((*parts, metadata)))
        except (EOFError, OSError):
            return  # the parent closed the pipe or ended


def _prepare_decoder() -> None:
    """Make a process that only decodes ready for untrusted images."""
    warnings.filterwarnings("ignore", module=r"PIL\b")  # about odd metadata
    Image.MAX_IMAGE_PIXELS = None  # `open_image` has limits of its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    with suppress(OSError):  # libtiff prints a line about every damaged file
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # One thread decodes: stacks and memory of more would count against the limit.
    with suppress(ImportError, AttributeError):
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    with suppress(ImportError):
        from pillow_heif import options

        options.DECODE_THREADS = 1
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            m_mmap_threshold, m_arena_max = -3, -8
            libc.mallopt(m_mmap_threshold, _LARGE_BYTES)
            libc.mallopt(m_arena_max, 1)


def _limit_memory(size: int) -> None:
    """Let this process take `size` more bytes, where the system can limit it."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = pages * resource.getpagesize() + size
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


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
    with ThreadPoolExecutor(max(1, threads)) as pool, isolated_reader(reader) as reader:
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
    file, name = _memory_file(int(np.prod(shape)) + 8 * workers)
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
        _close_memory_file(file, name)


class _Task(NamedTuple):
    """Consecutive images that one worker decodes."""

    slot: int
    at: int  # row of the first in the slot
    start: int  # position of the first
    paths: list[Path | bytes]
    skipped: dict[int, str]  # positions of images that ended a worker, with the reason


class _Workers:
    """Decoding processes with one queue of tasks.

    An executor would be slower: a thread of this process hands each task to its workers, and
    that thread waits for the interpreter lock while the caller keeps a GPU busy. A worker that
    dies while it decodes costs that image: another one continues with the rest of its task.
    """

    def __init__(
        self, count: int, memory: str, shape: tuple[int, ...], reader: ImageReader
    ) -> None:
        self._context = get_context("spawn")  # see DecoderProcess
        self._arguments = memory, shape, reader
        self._tasks: Queue[_Task] = self._context.Queue()
        self._positions = _worker_positions(memory, shape, count)
        self._submitted: dict[int, _Task] = {}  # by position of the first image, until received
        self._files: dict[int, DecodedFile] = {}  # by position, received but not yet returned
        self._processes: list[Any] = []
        self._results: list[Any] = []  # Connection, or on Windows PipeConnection
        for worker in range(count):
            process, result = self._start(worker)
            self._processes.append(process)
            self._results.append(result)

    def submit(self, slot: int, start: int, paths: Sequence[Path | bytes]) -> None:
        for at in range(0, len(paths), _CHUNK_IMAGES):
            task = _Task(slot, at, start + at, list(paths[at : at + _CHUNK_IMAGES]), {})
            self._submitted[task.start] = task
            self._tasks.put(task)

    def receive(self, start: int, end: int) -> list[DecodedFile]:
        """Wait until all images of the range are decoded, and return their results."""
        while not all(i in self._files for i in range(start, end, _CHUNK_IMAGES)):
            ready = wait(self._results, _DECODE_SECONDS * _CHUNK_IMAGES)
            if not ready:  # none has finished a task for long: end those that decode
                for process, position in zip(self._processes, self._positions):
                    if position:
                        process.kill()
            for worker, result in enumerate(self._results):
                if result not in ready:
                    continue
                try:
                    first, files = result.recv()
                except EOFError:
                    self._replace(worker)
                    continue
                self._submitted.pop(first, None)
                self._files.update(enumerate(files, first))
        return [self._files.pop(i) for i in range(start, end)]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._tasks.cancel_join_thread()
        self._tasks.close()

    def _start(self, worker: int) -> tuple[Any, Any]:
        result, writer = self._context.Pipe(duplex=False)
        arguments = (self._tasks, writer, worker, len(self._positions), *self._arguments)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        with _hide_main_module():
            process.start()
        writer.close()  # only the worker holds this end now, so its death closes the pipe
        return process, result

    def _replace(self, worker: int) -> None:
        """Start a worker in place of one that died, and skip the image that it was decoding."""
        process, position = self._processes[worker], int(self._positions[worker]) - 1
        process.join()
        tasks = self._submitted.values()
        task = next((t for t in tasks if 0 <= position - t.start < len(t.paths)), None)
        if task is None:
            raise EngineError(
                "A process that decodes images died, probably out of memory. Use fewer --workers."
            )
        task.skipped[position] = _crashed(process.exitcode)
        self._results[worker].close()
        self._positions[worker] = 0
        self._processes[worker], self._results[worker] = self._start(worker)
        self._tasks.put(task)


def _worker_positions(
    name: str, shape: tuple[int, ...], count: int
) -> np.memmap[Any, np.dtype[np.int64]]:
    """Map what each worker decodes now: the position of the image plus 1, or 0."""
    return np.memmap(name, np.int64, "r+", offset=int(np.prod(shape)), shape=(count,))


_main_module_lock = threading.Lock()


@contextlib.contextmanager
def _hide_main_module() -> Iterator[None]:
    """Keep a new process from running the caller's script, which spawn does if it finds one."""
    with _main_module_lock:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _work(
    tasks: Queue[_Task],
    results: Connection,
    worker: int,
    workers: int,
    name: str,
    shape: tuple[int, ...],
    reader: ImageReader,
) -> None:
    """Run in a worker process: take tasks, write pixels to shared memory, send results."""
    _prepare_decoder()
    memory: Pixels = np.memmap(name, np.uint8, "r+", shape=shape)
    positions = _worker_positions(name, shape, workers)
    parent = parent_process()
    while parent is not None and parent.is_alive():
        try:
            task = tasks.get(timeout=5)
        except Empty:
            continue  # check whether the parent is alive
        rows = memory[task.slot, task.at :]
        files = []
        for i, path in enumerate(task.paths):
            position = task.start + i
            if reason := task.skipped.get(position):
                files.append(DecodedFile("unreadable", reason=reason))
                continue
            positions[worker] = position + 1
            _limit_memory(MAX_DECODE_BYTES)
            files += _decode_into(rows[i:], reader, position, [path])
        positions[worker] = 0
        try:
            results.send((task.start, files))
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


def _write_all(file: int, content: bytes) -> None:
    end = 0
    while end < len(content):
        end += write_at(file, content[end:] if end else content, end)


def _read_all(file: int, size: int) -> bytes:
    content = b""
    while len(content) < size and (part := read_at(file, size - len(content), len(content))):
        content += part
    return content


def _close_memory_file(file: int, name: str) -> None:
    os.close(file)
    if not name.startswith("/proc/"):
        with suppress(PermissionError):  # on Windows, while the caller holds the pixels
            os.unlink(name)


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
