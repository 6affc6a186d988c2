"""Files of an index after corruption, crashes, forks and changes by other processes."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.errors import CorruptionError, EngineError
from transhash.index import Index, open_index
from transhash.index.grouped.grouped import GroupedIndex

keeps_open_files = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows cannot truncate or delete open files"
)
posix = pytest.mark.skipif(sys.platform == "win32", reason="fork is POSIX")


def random_codes(count: int, seed: int = 0) -> Codes:
    generator = np.random.default_rng(seed)
    return Codes(generator.integers(0, 256, (count, 4), dtype=np.uint8), 32)


def items(index: Index) -> dict[int, bytes]:
    ids, codes = index.export()
    return dict(zip(ids.tolist(), map(bytes, codes.packed)))


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments, deleted ids and a log of three records."""
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.flush_at = 100
    index.add(np.arange(900), random_codes(900))
    index.flush_at = 50
    index.remove(np.arange(0, 200, 4))  # a commit, but too few to rewrite the segment
    index.flush_at = 100
    index.add(np.arange(900, 1000), random_codes(100, 1))
    for step in range(3):
        index.add(2000 + step * 10 + np.arange(5), random_codes(5, step))
    index.close()
    assert sorted(path.name for path in (tmp_path / "index").glob("*.bin")) == [
        "dead-3-0.bin", "log-4.bin", "segment-2.bin", "segment-4.bin",
    ]  # fmt: skip
    return tmp_path / "index"


def test_a_flipped_bit_in_any_byte_of_a_record_head_is_reported(folder: Path) -> None:
    log = folder / "log-4.bin"
    whole = log.read_bytes()
    size = 20 + 5 * 12
    for at in (*range(8), *(8 + record * size + byte for record in range(3) for byte in range(20))):
        flip(log, at, at % 8)
        corrupt = log.read_bytes()
        with pytest.raises(EngineError, match=r"log-4\.bin"):
            open_index(folder, read_only=bool(at % 3))
        assert log.read_bytes() == corrupt
        log.write_bytes(whole)
    open_index(folder).close()


def test_a_record_that_a_crash_cut_off_anywhere_is_dropped(folder: Path) -> None:
    log = folder / "log-4.bin"
    content = log.read_bytes()
    with open_index(folder, read_only=True) as reader:
        expected = items(reader)
    last = [2020, 2021, 2022, 2023, 2024]
    for i in last:
        del expected[i]
    start = len(content) - (20 + 5 * 12)
    for end in range(start, len(content), 3):
        for tail in (b"", bytes(3000)) if end == start else (b"",):
            log.write_bytes(content[:end] + tail)
            with open_index(folder, read_only=True) as reader:
                assert items(reader) == expected
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            with open_index(copy) as index:
                assert items(index) == expected
                index.add(last, random_codes(len(last)))
            with open_index(copy) as index:
                index.verify()
                assert len(index) == len(expected) + len(last)
            shutil.rmtree(copy)


def test_a_missing_manifest_is_corruption_and_not_an_empty_folder(folder: Path) -> None:
    (folder / "index.json").unlink()
    before = sorted(path.name for path in folder.iterdir())
    for read_only in (True, False):
        with pytest.raises(CorruptionError, match=r"index\.json is missing"):
            open_index(folder, 32, read_only=read_only)
    assert sorted(path.name for path in folder.iterdir()) == before


@keeps_open_files
def test_verify_names_all_corrupt_files(folder: Path) -> None:
    index = GroupedIndex.open(folder, None)
    index.verify()
    for name in ("segment-2.bin", "dead-3-0.bin", "segment-4.bin"):
        flip(folder / name, 4096 + 5)
    flip(folder / "log-4.bin", 60)
    flip(folder / "index.json", 40)
    with pytest.raises(CorruptionError) as caught:
        index.verify()
    assert len(caught.value.details) == 5
    for name in ("segment-2.bin", "dead-3-0.bin", "segment-4.bin", "log-4.bin", "index.json"):
        assert name in str(caught.value)
    index.close()


def test_a_log_truncated_while_its_writer_runs_is_reported(folder: Path) -> None:
    index = open_index(folder)
    os.truncate(folder / "log-4.bin", 8 + 2 * (20 + 5 * 12))
    with pytest.raises(CorruptionError, match=r"log-4\.bin has 168 bytes instead of 248"):
        index.verify()
    with pytest.raises(EngineError, match="changed by another process"):
        index.add([7000], random_codes(1))
    index.close()


@pytest.mark.parametrize("name", ["segment-4.bin", "segment-2.bin", "dead-3-0.bin"])
def test_merging_and_compacting_refuse_corrupt_segments(folder: Path, name: str) -> None:
    flip(folder / name, 4096 + 5)
    index = GroupedIndex.open(folder, None)
    index.flush_at = 100
    before = items(index)
    files = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    with pytest.raises(CorruptionError, match=name):
        index.compact()
    with pytest.raises(CorruptionError, match=name):
        index.add(np.arange(5000, 9000), random_codes(4000))  # large enough to merge all
    assert {path.name: path.read_bytes() for path in folder.glob("*.bin")} == files
    assert items(index) == before
    with pytest.raises(CorruptionError, match=name):
        index.verify()
    index.close()


def test_changes_stay_in_the_log_if_a_segment_is_corrupt(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(folder / "segment-4.bin", 4096 + 5)
    index = GroupedIndex.open(folder, None)
    index.flush_at = 100
    with caplog.at_level(logging.WARNING, "transhash"):
        for step in range(30):
            index.add(10_000 + step * 10 + np.arange(10), random_codes(10, step))
    assert "stay in the index log" in caplog.text
    assert len(caplog.records) < 4
    index.close()
    index = GroupedIndex.open(folder, None)
    assert set(range(10_000, 10_300)) <= items(index).keys()
    with pytest.raises(CorruptionError, match=r"segment-4\.bin"):
        index.verify()
    index.close()


@pytest.mark.parametrize("backend", ["exact", "faiss"])
def test_a_flipped_bit_in_items_npy_is_reported(backend: str, tmp_path: Path) -> None:
    url = f"{backend}:{tmp_path / 'index'}"
    index = open_index(url, 32)
    index.add(np.arange(20), random_codes(20))
    flip(tmp_path / "index" / "items.npy", 200)
    with pytest.raises(CorruptionError, match="checksum"):
        index.verify()
    index.close()
    with pytest.raises(CorruptionError, match=r"items\.npy"):
        open_index(url)


def test_items_without_the_trailer_of_this_version_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "items.npy", np.zeros(3, [("id", "<i8"), ("code", "u1", (4,))]))
    with pytest.raises(EngineError, match=r"not written by this version.*rebuild"):
        open_index(f"exact:{tmp_path}")


# ---- processes ----


def in_child(work: str, index: Index) -> str:
    """Run `work` in a forked child and return its error or "ok"."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = "ok"
        try:
            exec(work, {"index": index, "codes": random_codes(1), "np": np})
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, outcome.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        outcome = pipe.read().decode()
    os.waitpid(child, 0)
    return outcome


@posix
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["grouped", "exact", "faiss"])
def test_a_forked_child_can_read_but_not_write(backend: str, tmp_path: Path) -> None:
    index = open_index(f"{backend}:{tmp_path / 'index'}", 32)
    index.add(np.arange(5), random_codes(5))
    refused = f"EngineError: .* process {os.getpid()}"
    for work in ("index.add([9], codes)", "index.update([1], codes)", "index.remove([1])"):
        assert re.match(refused, in_child(work, index))
    work = "assert len(index) == 5 and index.search(codes, 9).ids.size == 5"
    assert in_child(work, index) == "ok"
    index.add([9], random_codes(1))
    index.close()
    again = open_index(f"{backend}:{tmp_path / 'index'}")
    again.verify()
    assert len(again) == 6
    again.close()


@posix
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(tmp_path: Path) -> None:
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.add([1], random_codes(1))
    inside, finished = threading.Event(), threading.Event()

    def change() -> None:
        with index._mutex:  # as in the middle of an add
            inside.set()
            finished.wait(60)

    thread = threading.Thread(target=change)
    thread.start()
    inside.wait()
    outcome = in_child("import signal; signal.alarm(20); assert len(index) == 1", index)
    finished.set()
    thread.join()
    index.close()
    assert outcome == "ok"


@posix
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_follows_its_parent_without_a_lock(tmp_path: Path) -> None:
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.flush_at = 50
    index.add(np.arange(5), random_codes(5))
    go, replies = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(go[0], 1)
            os.write(replies[1], b"%d" % len(index))
            os.read(go[0], 1)
        finally:
            os._exit(0)
    try:
        index.add(np.arange(100, 180), random_codes(80))  # a new generation
        index.add([200], random_codes(1))
        os.write(go[1], b".")
        assert os.read(replies[0], 9) == b"86"
        index.close()
        again = open_index(tmp_path / "index")  # while the child lives
        again.add([300], random_codes(1))
        again.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (*go, *replies):
            os.close(end)


@posix
def test_close_releases_the_lock_although_a_child_has_a_copy(folder: Path) -> None:
    index = GroupedIndex.open(folder, None)
    assert index._lock is not None
    copy = os.dup(index._lock._descriptor)  # what a child has right after the fork
    try:
        index.close()
        open_index(folder).close()
    finally:
        os.close(copy)


def test_a_log_changed_by_another_process_is_not_written(folder: Path) -> None:
    index = open_index(folder)
    with (folder / "log-4.bin").open("ab") as log:
        log.write(b"from elsewhere")
    with pytest.raises(EngineError, match="changed by another process"):
        index.add([7000], random_codes(1))
    index.close()


@keeps_open_files
def test_a_deleted_folder_is_reported_to_writers_and_readers(folder: Path) -> None:
    index, reader = open_index(folder), open_index(folder, read_only=True)
    index.wait_until_ready()
    reader.wait_until_ready()
    shutil.rmtree(folder)
    with pytest.raises(EngineError, match="deleted"):
        index.add([7000], random_codes(1))
    with pytest.raises(EngineError, match="deleted"):
        index.add(np.arange(7000, 80_000), random_codes(73_000))
    assert not folder.exists()
    for each in (index, reader):
        with pytest.raises(EngineError, match=r"deleted|index\.json is missing"):
            each.wait_until_ready()
        each.close()
    with pytest.raises(EngineError, match=r"No index at"):
        open_index(folder, read_only=True)


# ---- read-only file systems ----


def test_a_read_only_file_system_can_be_read(folder: Path) -> None:
    script = """
import sys
from transhash.errors import EngineError
from transhash.index import open_index
for url in sys.argv[1:]:
    try:
        open_index(url, 32)
    except EngineError as error:
        assert "Read-only file system" in str(error), error
        assert "read_only=True" in str(error), error
    else:
        raise SystemExit("opened for writing")
    index = open_index(url, read_only=True)
    index.verify()
    print(len(index))
"""
    plain = open_index(f"exact:{folder / 'plain'}", 32)
    plain.add([1], random_codes(1))
    plain.close()
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"]).returncode:
        pytest.skip("cannot mount")
    read = [sys.executable, "-c", script, str(folder), f"exact:{folder / 'plain'}"]
    result = subprocess.run(
        [*own, "sh", "-c", mount, str(folder), *read], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (0, "965\n1\n"), result.stderr
