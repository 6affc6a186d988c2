"""Positioned reads and writes, the writer lock and atomic replacement."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transhash.errors import EngineError
from transhash.storage import WriterLock, atomic_file, seek_and_read, seek_and_write


def test_threads_read_the_bytes_at_their_own_offsets(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        with ThreadPoolExecutor(8) as pool:
            offsets = [i * 7919 % (1 << 14) for i in range(2000)]
            parts = list(pool.map(lambda offset: seek_and_read(descriptor, 5, offset), offsets))
        content = path.read_bytes()
        assert parts == [content[offset : offset + 5] for offset in offsets]
        assert seek_and_read(descriptor, 5, 1 << 20) == b""
        assert seek_and_write(descriptor, b"abc", 1000) == 3
        assert path.read_bytes() == content[:1000] + b"abc" + content[1003:]
    finally:
        os.close(descriptor)


def test_a_second_writer_waits_for_the_release_of_the_lock(tmp_path: Path) -> None:
    first = WriterLock(tmp_path)
    with pytest.raises(EngineError, match=f"locked by process {os.getpid()}"):
        WriterLock(tmp_path)
    first.release()
    second = WriterLock(tmp_path)
    assert second.held
    second.release()


def test_a_file_is_replaced_while_another_process_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    reader = path.open("rb")
    with ThreadPoolExecutor(1) as pool:

        def write() -> None:
            with atomic_file(path) as file:
                file.write(b"new")

        job = pool.submit(write)
        assert reader.read() == b"old"  # on Windows the writer waits
        reader.close()
        job.result()
    assert path.read_bytes() == b"new"
