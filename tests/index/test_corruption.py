"""What can happen to the files of an index: damage, crashes, forks, other versions, other hands."""

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

OLD = Path(__file__).parent / "files-2163542"
keeps_open_files = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows lets nobody cut or delete a file that is open"
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
    """Two segments, removed ids and a log of three records."""
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.flush_at = 100
    index.add(np.arange(900), random_codes(900))
    index.remove(np.arange(0, 200, 2))
    index.add(np.arange(900, 1000), random_codes(100, 1))
    for step in range(3):
        index.add(2000 + step * 10 + np.arange(5), random_codes(5, step))
    index.close()
    assert sorted(path.name for path in (tmp_path / "index").glob("*.bin")) == [
        "dead-3-0.bin", "log-4.bin", "segment-2.bin", "segment-4.bin",
    ]  # fmt: skip
    return tmp_path / "index"


def test_every_byte_of_every_head_in_a_log_is_told_when_flipped(folder: Path) -> None:
    log = folder / "log-4.bin"
    whole = log.read_bytes()
    size = 20 + 5 * 12
    for at in (*range(8), *(8 + record * size + byte for record in range(3) for byte in range(20))):
        flip(log, at, at % 8)
        damaged = log.read_bytes()
        with pytest.raises(EngineError, match=r"log-4\.bin (is|has)"):
            open_index(folder, read_only=bool(at % 3))
        assert log.read_bytes() == damaged
        log.write_bytes(whole)
    open_index(folder).close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_record_that_a_crash_cut_off_anywhere_is_dropped(version: int, folder: Path) -> None:
    if version == 1:
        shutil.rmtree(folder)
        shutil.copytree(OLD / "grouped", folder)
    log = folder / "log-4.bin"
    whole = log.read_bytes()
    expected = items(open_index(folder, read_only=True))
    last = max(expected) if version == 1 else [2020, 2021, 2022, 2023, 2024]
    for i in np.atleast_1d(last).tolist():
        del expected[i]
    start = len(whole) - (16 + 12 if version == 1 else 20 + 5 * 12)
    for end in range(start, len(whole), 3):
        for tail in (b"", bytes(3000)) if end == start else (b"",):
            log.write_bytes(whole[:end] + tail)
            reader = open_index(folder, read_only=True)
            assert items(reader) == expected
            reader.close()
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            index = open_index(copy)
            assert items(index) == expected
            index.add(np.atleast_1d(last), random_codes(np.size(last)))
            index.close()
            index = open_index(copy)
            index.verify()
            assert len(index) == len(expected) + np.size(last)
            index.close()
            shutil.rmtree(copy)


def test_a_wrong_length_in_an_old_log_is_no_torn_end(tmp_path: Path) -> None:
    shutil.copytree(OLD / "grouped", tmp_path / "index")
    log = tmp_path / "index" / "log-4.bin"
    whole = log.read_bytes()
    heads = [8, 8 + 16 + 24, 8 + 16 + 24 + 16 + 8]
    for at in heads:
        for bit in range(0, 32, 3):
            for torn in (0, 5):  # damage, and a crash behind it
                log.write_bytes(whole + b"\xd1REC\1"[:torn])
                flip(log, at + 8 + bit // 8, bit % 8)
                with pytest.raises(CorruptionError, match=f"damaged at byte {at} "):
                    open_index(tmp_path / "index")


def test_a_missing_manifest_is_damage_and_not_an_empty_place(folder: Path) -> None:
    (folder / "index.json").unlink()
    before = sorted(path.name for path in folder.iterdir())
    for read_only in (True, False):
        with pytest.raises(CorruptionError, match=r"index\.json is missing beside"):
            open_index(folder, 32, read_only=read_only)
    assert sorted(path.name for path in folder.iterdir()) == before


@keeps_open_files
def test_verify_names_all_that_is_damaged(folder: Path) -> None:
    index = GroupedIndex.open(folder, None)
    index.verify()
    for name in ("segment-2.bin", "dead-3-0.bin", "segment-4.bin"):
        flip(folder / name, 4096 + 5)
    flip(folder / "log-4.bin", 60)
    flip(folder / "index.json", 40)
    with pytest.raises(CorruptionError) as told:
        index.verify()
    assert len(told.value.details) == 5
    for name in ("segment-2.bin", "dead-3-0.bin", "segment-4.bin", "log-4.bin", "index.json"):
        assert name in str(told.value)
    index.close()


def test_a_log_that_was_cut_short_under_its_writer_is_told(folder: Path) -> None:
    index = open_index(folder)
    os.truncate(folder / "log-4.bin", 8 + 2 * (20 + 5 * 12))
    with pytest.raises(
        CorruptionError, match=r"log-4\.bin is cut short \(168 bytes, 248 expected\)"
    ):
        index.verify()
    with pytest.raises(EngineError, match="was changed by another process"):
        index.add([7000], random_codes(1))
    index.close()


@pytest.mark.parametrize("name", ["segment-4.bin", "segment-2.bin", "dead-3-0.bin"])
def test_merging_and_compacting_refuse_what_is_damaged(folder: Path, name: str) -> None:
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


def test_changes_beside_damage_stay_in_the_log_and_are_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(folder / "segment-4.bin", 4096 + 5)
    index = GroupedIndex.open(folder, None)
    index.flush_at = 100
    with caplog.at_level(logging.WARNING, "transhash"):
        for step in range(30):
            index.add(10_000 + step * 10 + np.arange(10), random_codes(10, step))
    assert "changes stay in the log: " in caplog.text
    assert len(caplog.records) < 4
    index.close()
    index = GroupedIndex.open(folder, None)
    assert set(range(10_000, 10_300)) <= items(index).keys()
    with pytest.raises(CorruptionError, match=r"segment-4\.bin"):
        index.verify()
    index.close()


@pytest.mark.parametrize("engine", ["exact", "faiss"])
def test_a_flipped_bit_in_a_plain_engine_is_told(engine: str, tmp_path: Path) -> None:
    url = f"{engine}:{tmp_path / 'index'}"
    index = open_index(url, 32)
    index.add(np.arange(20), random_codes(20))
    flip(tmp_path / "index" / "items.npy", 200)
    with pytest.raises(EngineError, match="checksum does not match"):
        index.verify()
    index.close()
    with pytest.raises(EngineError, match=r"items\.npy is not an index or is damaged"):
        open_index(url)


# ---- processes ----


def in_child(work: str, index: Index) -> str:
    """What a forked child says when it does `work`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "it worked"
        try:
            exec(work, {"index": index, "codes": random_codes(1), "np": np})
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@posix
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("engine", ["grouped", "exact", "faiss"])
def test_a_forked_child_may_read_but_not_write(engine: str, tmp_path: Path) -> None:
    index = open_index(f"{engine}:{tmp_path / 'index'}", 32)
    index.add(np.arange(5), random_codes(5))
    refused = f"EngineError: .* was opened for writing by process {os.getpid()}"
    for work in ("index.add([9], codes)", "index.update([1], codes)", "index.remove([1])"):
        assert re.match(refused, in_child(work, index))
    assert in_child("assert len(index) == 5 and index.search(codes, 9).ids.size == 5", index) == (
        "it worked"
    )
    index.add([9], random_codes(1))
    index.close()
    again = open_index(f"{engine}:{tmp_path / 'index'}")
    again.verify()
    assert len(again) == 6
    again.close()


@posix
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_wait_for_a_thread_that_it_left_behind(tmp_path: Path) -> None:
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.add([1], random_codes(1))
    inside, done = threading.Event(), threading.Event()

    def change() -> None:
        with index._mutex:  # as in the middle of an add
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=change)
    thread.start()
    inside.wait()
    said = in_child("import signal; signal.alarm(20); assert len(index) == 1", index)
    done.set()
    thread.join()
    index.close()
    assert said == "it worked"


@posix
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_idle_child_follows_its_parent_and_holds_no_lock(tmp_path: Path) -> None:
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.flush_at = 50
    index.add(np.arange(5), random_codes(5))
    go, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(go[0], 1)
            os.write(told[1], b"%d" % len(index))
            os.read(go[0], 1)
        finally:
            os._exit(0)
    try:
        index.add(np.arange(100, 180), random_codes(80))  # a new generation
        index.add([200], random_codes(1))
        os.write(go[1], b".")
        assert os.read(told[0], 9) == b"86"
        index.close()
        again = open_index(tmp_path / "index")  # while the child lives
        again.add([300], random_codes(1))
        again.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (*go, *told):
            os.close(end)


@posix
def test_a_closed_index_is_free_though_a_child_has_not_closed_its_copy_yet(folder: Path) -> None:
    index = GroupedIndex.open(folder, None)
    assert index._lock is not None
    copy = os.dup(index._lock._descriptor)  # what a child has between its birth and its first line
    try:
        index.close()
        open_index(folder).close()
    finally:
        os.close(copy)


def test_a_log_that_another_hand_changed_is_not_written_past(folder: Path) -> None:
    index = open_index(folder)
    with (folder / "log-4.bin").open("ab") as log:
        log.write(b"from elsewhere")
    with pytest.raises(EngineError, match="was changed by another process"):
        index.add([7000], random_codes(1))
    index.close()


@keeps_open_files
def test_a_deleted_folder_is_told_to_writers_and_readers(folder: Path) -> None:
    index, reader = open_index(folder), open_index(folder, read_only=True)
    index.wait_until_ready()
    reader.wait_until_ready()
    shutil.rmtree(folder)
    with pytest.raises(EngineError, match="was deleted while it was open; nothing was stored"):
        index.add([7000], random_codes(1))
    with pytest.raises(EngineError, match="was deleted while it was open"):
        index.add(np.arange(7000, 80_000), random_codes(73_000))
    assert not folder.exists()
    for each in (index, reader):
        with pytest.raises(EngineError, match=r"deleted|index\.json is missing"):
            each.wait_until_ready()
        each.close()
    with pytest.raises(EngineError, match=r"no index at"):
        open_index(folder, read_only=True)


# ---- places and versions ----


def test_a_read_only_mount_is_read_and_asks_for_read_only(folder: Path) -> None:
    script = """
import sys
from transhash.errors import EngineError
from transhash.index import open_index
for url in sys.argv[1:]:
    try:
        open_index(url, 32)
    except EngineError as error:
        assert "Read-only file system); allow it, open it with read_only=True" in str(error), error
        assert "or choose another folder" in str(error), error
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
        pytest.skip("needs a mount of its own")
    read = [sys.executable, "-c", script, str(folder), f"exact:{folder / 'plain'}"]
    said = subprocess.run(
        [*own, "sh", "-c", mount, str(folder), *read], capture_output=True, text=True
    )
    assert (said.returncode, said.stdout) == (0, "915\n1\n"), said.stderr


@pytest.mark.parametrize("engine", ["grouped", "exact", "faiss"])
def test_an_index_of_commit_2163542_is_read_and_written(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(OLD / ("grouped" if engine == "grouped" else "exact"), folder)
    stored = np.load(OLD / "exact" / "items.npy")
    expected = dict(zip(stored["id"].tolist(), map(bytes, stored["code"])))
    assert len(expected) == 89
    reader = open_index(f"{engine}:{folder}", read_only=True)
    reader.verify()
    assert items(reader) == expected
    reader.close()
    index = open_index(f"{engine}:{folder}")
    assert items(index) == expected
    index.add([500], random_codes(1))
    index.close()
    index = open_index(f"{engine}:{folder}")
    index.verify()
    assert items(index) == expected | {500: bytes(random_codes(1).packed[0])}
    index.close()
    if engine == "grouped":
        (log,) = folder.glob("log-*.bin")
        assert log.read_bytes().startswith(b"THLOG002")
