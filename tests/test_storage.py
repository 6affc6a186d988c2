"""Positioned reads and writes, the writer lock and atomic replacement."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fault_injection.dying import Calls
from transhash import storage
from transhash.errors import EngineError
from transhash.storage import (
    WriterLock,
    atomic_file,
    atomic_folder,
    open_regular,
    read_json,
    recover_folder,
    seek_and_read,
    seek_and_write,
    write_bytes,
)


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


def write_folder(folder: Path, content: str) -> None:
    with atomic_folder(folder) as draft:
        (draft / "sub").mkdir()
        for name in ("config.json", "sub/other.json"):
            (draft / name).write_text(json.dumps(content))


def content_of(folder: Path) -> set[str]:
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "sub"]
    return {json.loads((folder / name).read_text()) for name in ("config.json", "sub/other.json")}


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("exists", [True, False])
def test_a_kill_at_any_call_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool, exists: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(storage, "_swap", lambda *_: False)
    elif sys.platform != "linux":
        pytest.skip("exchanges folders on Linux")
    functions = [(os, "replace"), (os, "fsync"), (shutil, "rmtree"), (storage, "_swap")]
    kills = 0
    while True:
        folder = tmp_path / f"{kills}" / "model"
        if exists:
            write_folder(folder, "old")
        calls = Calls(functions)
        pid = os.fork()
        if pid == 0:
            calls.watch(kills + 1)
            write_folder(folder, "new")
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            break
        kills += 1
        if exists and not can_exchange and not folder.exists():
            assert read_json(folder / "config.json") == "old"  # which moves it back
        if exists or folder.exists():
            assert content_of(folder) in ({"old"}, {"new"})
        monkeypatch.setattr(storage, "_ABANDONED_SECONDS", -1)
        storage._checked_folders.clear()
        write_folder(folder, "last")
        assert content_of(folder) == {"last"}
        assert os.listdir(folder.parent) == ["model"]
    assert kills > 6


def test_a_folder_is_replaced_in_one_step_where_the_system_can(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("exchanges folders on Linux")
    write_folder(tmp_path / "model", "old")
    (tmp_path / "other").mkdir()
    assert storage._swap(tmp_path / "other", tmp_path / "model")
    assert content_of(tmp_path / "other") == {"old"}
    assert not storage._swap(tmp_path / "other", tmp_path / "missing")


def test_drafts_of_living_processes_and_young_drafts_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = time.time() - 3600
    with atomic_folder(tmp_path / "model") as draft, atomic_file(tmp_path / "alive") as file:
        os.utime(draft, (old, old))
        os.utime(file.name, (old, old))
        dead = tmp_path / ".model.0123456789ab.draft"
        dead.mkdir()
        (dead / "weights").write_bytes(b"half")
        os.utime(dead, (old, old))
        young = tmp_path / ".file.0123456789ab.draft"
        young.write_bytes(b"half")
        storage._checked_folders.clear()
        write_bytes(tmp_path / "file", b"content")
        assert draft.exists()
        assert Path(file.name).exists()
        assert young.exists()
        assert not dead.exists()
    assert not recover_folder(tmp_path / "model")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_opened_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    os.mkfifo(tmp_path / "pipe")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"content"
    with pytest.raises(OSError, match="is not a regular file"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        open_regular(tmp_path)
