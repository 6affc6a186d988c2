"""A process that decodes may crash, hang or run out of memory: that costs one image."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transhash.errors import EngineError
from transhash.features.decode import (
    DecodedFile,
    ImageReader,
    ImageResult,
    ImageTask,
    Pixels,
    decode,
    render,
    summary_task,
)
from transhash.features.decode_processes import (
    _POOLS,
    DecoderPool,
    DecoderProcess,
    decode_batches,
    decode_isolated,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stops processes by signals")


def encoded(kind: str = "PNG", size: tuple[int, int] = (64, 48), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, 77).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def decoder() -> Iterator[DecoderProcess]:
    decoder = DecoderProcess()
    yield decoder
    decoder.close()


def same(a: ImageResult | str, b: ImageResult | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return np.array_equal(a.pixels, b.pixels) and a[1:] == b[1:]  # type: ignore[arg-type]


def test_the_process_gives_what_decoding_here_gives(decoder: DecoderProcess) -> None:
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (90, 70, 4), dtype=np.uint8)).save(buffer, "PNG")
    files = [buffer.getvalue(), encoded("JPEG"), encoded("GIF", mode="P"), b"just words", b""]
    tasks = [
        ImageTask(16),
        summary_task(16),
        ImageTask(200, upscale=False),
        ImageTask(40, pixels=False, jpeg_side=40, jpeg_quality=60),
    ]
    for content in files:
        for task in tasks:
            assert same(decoder.render(content, task), render(content, task))


def test_an_image_whose_decoder_dies_is_unreadable_and_the_next_is_decoded(
    decoder: DecoderProcess,
) -> None:
    for fault in (signal.SIGKILL, signal.SIGSEGV):
        decoder.start()
        pid = decoder.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # as if it decoded for long
        replies: list[ImageResult | str] = []
        thread = threading.Thread(
            target=lambda: replies.append(decoder.render(encoded(), ImageTask(8)))  # noqa: B023
        )
        thread.start()
        while not os.fstat(decoder._file).st_size:  # until the process has work
            time.sleep(0.001)
        os.kill(pid, fault)
        os.kill(pid, signal.SIGCONT)
        thread.join(60)
        assert isinstance(replies[0], str)
        assert fault.name in replies[0]
        assert isinstance(decoder.render(encoded(), ImageTask(8)), ImageResult)
        assert decoder.pid != pid


def test_a_decoder_that_died_while_it_was_idle_costs_no_image(decoder: DecoderProcess) -> None:
    decoder.start()
    assert decoder.pid is not None
    os.kill(decoder.pid, signal.SIGKILL)
    while Path(f"/proc/{decoder.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.001)
    assert isinstance(decoder.render(encoded(), ImageTask(8)), ImageResult)


def test_a_decoder_that_hangs_is_stopped() -> None:
    decoder = DecoderProcess(seconds=0.2)
    decoder.start()
    assert decoder.pid is not None
    os.kill(decoder.pid, signal.SIGSTOP)
    result = decoder.render(encoded(), ImageTask(8))
    assert isinstance(result, str)
    assert "seconds" in result
    decoder.close()


def test_an_image_that_needs_more_memory_than_allowed_is_unreadable() -> None:
    decoder = DecoderProcess(memory=32 << 20)
    result = decoder.render(encoded(size=(6000, 6000)), ImageTask(8))
    assert isinstance(result, str)
    assert "memory" in result
    assert isinstance(decoder.render(encoded(), ImageTask(8)), ImageResult)
    decoder.close()


def test_memory_of_a_large_image_is_bounded_and_given_back(decoder: DecoderProcess) -> None:
    decoder.render(encoded(), ImageTask(8))
    status = Path(f"/proc/{decoder.pid}/status")

    def megabytes(name: str) -> int:
        return int(status.read_text().split(f"{name}:")[1].split()[0]) >> 10

    before = megabytes("VmRSS")
    content = encoded(size=(8000, 4000), mode="RGBA")
    assert isinstance(decoder.render(content, ImageTask(224)), ImageResult)
    assert megabytes("VmHWM") - before < 350  # 8 bytes per pixel and what the file takes
    assert megabytes("VmRSS") - before < 60


@dataclass(frozen=True)
class DyingReader(ImageReader):
    """Ends its process at files named killer."""

    def __call__(self, position: int, source: Path | bytes) -> tuple[DecodedFile, Pixels | None]:
        if isinstance(source, Path) and source.stem == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(position, source)


@pytest.mark.slow
def test_a_worker_that_dies_costs_only_the_file_that_it_was_decoding(tmp_path: Path) -> None:
    path, killer = tmp_path / "a.png", tmp_path / "killer.png"
    path.write_bytes(encoded())
    killer.write_bytes(encoded())
    paths = [path] * 400
    for position in (0, 33, 34, 399):
        paths[position] = killer
    files = [
        file
        for batch in decode_batches(paths, DyingReader(8), 50, workers=2)
        for file in batch.files
    ]
    crashed = {i: file.reason for i, file in enumerate(files) if file.state == "unreadable"}
    assert list(crashed) == [0, 33, 34, 399]
    assert all("SIGKILL" in reason for reason in crashed.values())


@pytest.mark.slow
def test_a_worker_that_dies_between_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    others = set(multiprocessing.active_children())  # of services that other tests started
    batches = decode_batches([tmp_path / "a.png"] * 2000, ImageReader(8), 16, workers=1)
    next(batches)
    (child,) = set(multiprocessing.active_children()) - others
    asleep = 0
    while asleep < 20:  # it has decoded ahead as far as it may
        state = Path(f"/proc/{child.pid}/stat").read_text().split()[2]
        asleep = asleep + 1 if state == "S" else 0
        time.sleep(0.02)
    child.kill()
    with pytest.raises(EngineError, match="--workers"):
        list(batches)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[DecoderPool]:
    """The pool of this process, without the decoders of other tests."""
    with DecoderPool() as pool:
        monkeypatch.setitem(_POOLS, os.getpid(), pool)
        yield pool


def test_one_image_is_decoded_in_a_process_that_may_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: DecoderPool
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded())
    expected = decode(path, 8)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("decoded in this process")

    monkeypatch.setattr("transhash.features.decode._open_upright", fail)
    assert np.array_equal(decode_isolated(path, 8), expected)
    (decoder,) = pool._idle
    assert decoder.pid is not None
    os.kill(decoder.pid, signal.SIGSTOP)
    replies: list[Pixels | str] = []
    thread = threading.Thread(target=lambda: replies.append(decode_isolated(path, 8)))
    thread.start()
    while not os.fstat(decoder._file).st_size:  # until the process has work
        time.sleep(0.001)
    os.kill(decoder.pid, signal.SIGSEGV)
    os.kill(decoder.pid, signal.SIGCONT)
    thread.join(60)
    assert "SIGSEGV" in str(replies[0])
    assert np.array_equal(decode_isolated(path.read_bytes(), 8), expected)
    assert "cannot be read" in str(decode_isolated(tmp_path / "none.png", 8))


def test_a_forked_process_does_not_use_the_decoder_of_its_parent() -> None:
    assert not isinstance(decode_isolated(encoded(), 8), str)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if not isinstance(decode_isolated(encoded("JPEG"), 8), str) else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert not isinstance(decode_isolated(encoded("GIF"), 8), str)
