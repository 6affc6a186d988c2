"""Reading and writing at a place where the system has no call for it, against one that has."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transhash.errors import EngineError
from transhash.storage import WriterLock, atomic_file, seek_and_read, seek_and_write


def test_threads_that_seek_and_read_get_the_bytes_of_their_own_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        with ThreadPoolExecutor(8) as pool:
            places = [place * 7919 % (1 << 14) for place in range(2000)]
            found = list(pool.map(lambda place: seek_and_read(descriptor, 5, place), places))
        whole = path.read_bytes()
        assert found == [whole[place : place + 5] for place in places]
        assert seek_and_read(descriptor, 5, 1 << 20) == b""
        assert seek_and_write(descriptor, b"abc", 1000) == 3
        assert path.read_bytes() == whole[:1000] + b"abc" + whole[1003:]
    finally:
        os.close(descriptor)


def test_a_folder_has_one_writer_and_the_next_one_comes_in_when_it_is_released(
    tmp_path: Path,
) -> None:
    first = WriterLock(tmp_path)
    with pytest.raises(EngineError, match=f"being written by process {os.getpid()}"):
        WriterLock(tmp_path)
    first.release()
    second = WriterLock(tmp_path)
    assert second.held
    second.release()


def test_a_file_is_replaced_as_soon_as_nobody_reads_it_any_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    reader = path.open("rb")
    with ThreadPoolExecutor(1) as pool:

        def write() -> None:
            with atomic_file(path) as file:
                file.write(b"new")

        writing = pool.submit(write)
        assert reader.read() == b"old"  # Windows has the writer wait meanwhile
        reader.close()
        writing.result()
    assert path.read_bytes() == b"new"
