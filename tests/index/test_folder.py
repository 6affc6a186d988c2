"""The folder of a grouped index: opening, following a writer, and reporting corruption."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import faiss
import numpy as np
import pytest

from transhash.codes import Codes
from transhash.errors import EngineError
from transhash.index import open_index
from transhash.index.grouped.grouped import GroupedIndex

WRITER = """
import sys, numpy as np
from transhash.codes import Codes
from transhash.index.grouped.grouped import GroupedIndex
GroupedIndex.flush_at = 500
index = GroupedIndex.open(__import__("pathlib").Path(sys.argv[1]), 32)
print("ready", flush=True)
for step in range(int(sys.argv[2])):
    ids = np.arange(step * 50, step * 50 + 50)
    index.add(ids, Codes(np.repeat((ids % 251).astype(np.uint8)[:, None], 4, axis=1), 32))
print("done", flush=True)
sys.stdin.read()
"""


def random_codes(count: int, bits: int = 32, seed: int = 0) -> Codes:
    generator = np.random.default_rng(seed)
    return Codes(generator.integers(0, 256, (count, bits // 8), dtype=np.uint8), bits)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index with two segments, deleted ids and a log."""
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.flush_at = 1000
    index.add(np.arange(9000), random_codes(9000))
    index.add(np.arange(9000, 10_500), random_codes(1500, seed=1))
    index.flush_at = 500
    index.remove(np.arange(0, 3000, 6))  # a commit, but too few to rewrite the segment
    index.update([4, 5], random_codes(2, seed=2))
    assert len(index._state.parts) == 2
    index.close()
    return tmp_path / "index"


def test_readers_in_other_processes_follow_one_writer(tmp_path: Path) -> None:
    folder, steps = tmp_path / "index", 60
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(steps)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    reader = open_index(folder, read_only=True)
    count, deadline = 0, time.monotonic() + 60
    while count < steps * 50 and time.monotonic() < deadline:
        ids, codes = reader.export()
        # One state of the writer: complete calls, in order, never fewer than before.
        assert len(ids) % 50 == 0
        assert len(ids) >= count
        assert np.array_equal(ids, np.arange(len(ids)))
        assert np.array_equal(codes.packed[:, 0], ids % 251)
        if len(ids):
            assert reader.search(codes[-1:], 1).distances[0, 0] == 0
        count = len(ids)
    assert count == steps * 50
    assert writer.stdout.readline() == "done\n"
    with pytest.raises(EngineError, match=f"locked by process {writer.pid}"):
        open_index(folder)
    writer.stdin.close()
    assert writer.wait(20) == 0
    writer.stdout.close()
    open_index(folder).close()  # the lock went with its process


def test_threads_search_while_one_adds(tmp_path: Path) -> None:
    index = GroupedIndex.open(tmp_path / "index", 64)
    index.flush_at = 300
    codes = random_codes(2000, 64)
    index.add(np.arange(100), codes[:100])
    failures: list[str] = []
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            ranking = index.search(codes[:100], 1)
            if ranking.ids[:, 0].tolist() != list(range(100)):
                failures.append(str(ranking.ids[:, 0]))

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(100, 2000, 50):
        index.add(np.arange(start, start + 50), codes[start : start + 50])
        index.remove([start])
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    index.close()


def test_a_closed_index_refuses_calls(folder: Path) -> None:
    index = open_index(folder)
    index.close()
    index.close()
    with pytest.raises(EngineError, match="closed"):
        index.search(random_codes(1), 1)
    with pytest.raises(EngineError, match="closed"):
        index.remove([1])


@pytest.mark.parametrize("name", ["segment-2.bin", "segment-3.bin", "log-4.bin", "dead-4-0.bin"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(EngineError, match=f"{name} is missing"):
        open_index(folder)


@pytest.mark.parametrize("name", ["segment-2.bin", "dead-4-0.bin"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_cut_short_is_refused(folder: Path, name: str, read_only: bool) -> None:
    data = (folder / name).read_bytes()
    for length in (0, 10, 100, 5000, len(data) - 1):
        (folder / name).write_bytes(data[:length])
        with pytest.raises(EngineError, match=name):
            open_index(folder, read_only=read_only)


def test_a_flipped_bit_in_a_header_is_refused_at_open(folder: Path) -> None:
    for name in ("segment-2.bin", "dead-4-0.bin", "index.json"):
        data = bytearray((folder / name).read_bytes())
        for place in (1, 9, 13, 30, 60):
            data[place] ^= 4
            (folder / name).write_bytes(data)
            with pytest.raises(EngineError, match=name):
                open_index(folder)
            data[place] ^= 4
        (folder / name).write_bytes(data)
    open_index(folder).close()


def test_a_flipped_bit_in_the_data_is_found_by_verify(folder: Path) -> None:
    with open_index(folder) as index:
        index.verify()
    data = bytearray((folder / "segment-2.bin").read_bytes())
    data[4096 + 77] ^= 1
    (folder / "segment-2.bin").write_bytes(data)
    with (
        open_index(folder) as index,
        pytest.raises(EngineError, match=r"segment-2\.bin is corrupt: words"),
    ):
        index.verify()


def test_corruption_in_the_log_is_reported_and_a_torn_end_is_dropped(folder: Path) -> None:
    index = GroupedIndex.open(folder, None)
    index.add([20_001], random_codes(1, seed=3))
    index.add([20_002], random_codes(1, seed=4))
    count = len(index)
    name = index._generation.log
    index.close()
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-3])
    index = GroupedIndex.open(folder, None)
    assert len(index) == count - 1
    index.add([20_002], random_codes(1, seed=4))
    index.close()
    assert (folder / name).read_bytes() == data
    broken = bytearray(data)
    broken[-40] ^= 1
    (folder / name).write_bytes(broken)
    with pytest.raises(EngineError, match=f"{name} is corrupt at byte"):
        open_index(folder)


def test_another_format_version_is_refused(folder: Path) -> None:
    manifest = (folder / "index.json").read_text()
    for version in (1, 4):
        (folder / "index.json").write_text(
            manifest.replace('"version": 3', f'"version": {version}')
        )
        with pytest.raises(EngineError, match=f"version {version}, .* index again"):
            open_index(folder)
    (folder / "index.json").write_text(manifest)
    for name, version in (("segment-2.bin", b"1"), ("log-4.bin", b"002"), ("log-4.bin", b"004")):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[: 8 - len(version)] + version + content[8:])
        with pytest.raises(EngineError, match=rf"{name} .* version {int(version)}, .* index again"):
            open_index(folder)
        path.write_bytes(content)
    open_index(folder).close()


def test_trial_queries_are_kept_and_followed_by_readers(tmp_path: Path) -> None:
    folder, codes = tmp_path / "index", random_codes(300_000)
    near, far = codes[:80], random_codes(80, seed=9)
    with GroupedIndex.open(folder, 32) as index:
        centers = random_codes(40, seed=1).packed
        index.add(np.arange(300_000), Codes(centers[np.arange(300_000) % 40], 32))
        index.update(np.arange(300_000), codes)
        reader = GroupedIndex.open(folder, None, read_only=True)
        expected = reader.search(near, 5).ids
        for queries in (near, far):
            index.set_trial_queries(queries)
            np.testing.assert_array_equal(reader.search(near, 5).ids, expected)
            budgets = [part.segment.probe_budget for part in reader._state.parts]
            assert budgets == [part.segment.probe_budget for part in index._state.parts]
        index.compact()
    with GroupedIndex.open(folder, None) as again:
        again.verify()
        np.testing.assert_array_equal(again._generation.trials, far.packed[:64])
        before = again._generation
        again.set_trial_queries(far)
        assert again._generation is before  # nothing new
    reader.close()


def test_leftover_files_are_deleted(folder: Path) -> None:
    for name in ("segment-99.bin", ".segment-99.bin.0a1b.draft", "dead-99-0.bin", "log-99.bin"):
        (folder / name).write_bytes(b"left over from a crash")
    (folder / "notes.txt").write_text("mine")
    open_index(folder).close()
    assert sorted(path.name for path in folder.iterdir()) == [
        "dead-4-0.bin",
        "index.json",
        "log-4.bin",
        "notes.txt",
        "segment-2.bin",
        "segment-3.bin",
        "writer.lock",
    ]


def test_opening_reads_headers_only(tmp_path: Path) -> None:
    index = GroupedIndex.open(tmp_path / "index", 64)
    index.add(np.arange(1_000_000), random_codes(1_000_000, 64))
    assert index.nbytes <= 1_000_000 * (2 * 8 + 8)
    index.close()
    segment = max((tmp_path / "index").glob("segment-*.bin"), key=lambda path: path.stat().st_size)
    with segment.open("r+b") as file:  # corrupt data is not noticed when opening
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, GroupedIndex)
    assert len(opened) == 1_000_000
    with pytest.raises(EngineError):
        opened.verify()
    opened.close()


def test_faiss_can_search_exported_codes(folder: Path) -> None:
    index = open_index(folder)
    ids, codes = index.export()
    theirs = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(index.bits))
    theirs.add_with_ids(codes.packed, ids)
    distances, faiss_ids = theirs.search(codes.packed[:20], 1)
    assert (distances == 0).all()
    assert faiss_ids[:, 0].tolist() == ids[:20].tolist()
    index.close()


def test_the_log_of_items_that_come_and_go_stays_short(tmp_path: Path) -> None:
    with GroupedIndex.open(tmp_path / "index", 32) as index:
        index.flush_at = 100
        index.add(np.arange(50), random_codes(50))
        generations = set()
        for step in range(300):
            if step == 140:  # what an earlier writer left in the log counts as well
                index.close()
                index = GroupedIndex.open(tmp_path / "index", None)
                index.flush_at = 100
            index.add([1000], random_codes(1, seed=step))
            index.remove([1000])
            assert index._log is not None
            assert index._log.end < 100 * 50  # bytes of a record with one item
            generations.add(index._generation.number)
        assert len(generations) < 10  # not at every change
        index.close()
    with GroupedIndex.open(tmp_path / "index", None) as again:
        again.verify()
        ids, codes = again.export()
        assert ids.tolist() == list(range(50))
        assert np.array_equal(codes.packed, random_codes(50).packed)
