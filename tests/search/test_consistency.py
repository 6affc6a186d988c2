"""Catalog and index stay consistent when a process is killed; other differences are repaired."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transhash.data.collection import Collection, Modality
from transhash.errors import DataError, EngineError, TranshashError
from transhash.search.consistency import compare
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run

TEXTS = {"boat": "a boat with sails", "cat": "the cat sleeps", "car": "a red car"}


@pytest.fixture
def indexed(run: Path) -> Path:
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(Collection([*TEXTS], [*TEXTS.values()]))
    return run


def nearest(run: Path, text: str) -> list[tuple[str, int]]:
    with SearchEngine.open(run) as engine:
        return [(hit.item.id, hit.distance) for hit in engine.similar_to_text(text, 10, "texts")]


def is_consistent(run: Path) -> bool:
    with SearchEngine.open(run) as engine:
        return not engine.catalog.pending("") and not any(
            compare(engine.catalog, name, index) for name, index in engine.indexes.items()
        )


def kill_at(
    step: str, run: Path, work: Callable[[SearchEngine], object], modality: Modality = "texts"
) -> None:
    """Do `work` in a process that is killed when it calls `step`."""
    child = os.fork()
    if child == 0:
        try:
            engine = SearchEngine.open(run, writable=True)
            name, method = step.split(".")
            target = engine.catalog if name == "catalog" else engine.indexes[modality]
            setattr(target, method, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            work(engine)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("step", ["index.update", "catalog.mark_done"])
def test_an_item_whose_update_was_killed_is_found_before_and_after_the_repair(
    indexed: Path, step: str
) -> None:
    other = Collection(["boat"], ["the cat sleeps in a red car"])
    kill_at(step, indexed, lambda engine: engine.add_texts(other))
    distances = dict(nearest(indexed, TEXTS["boat"]))
    assert "boat" in distances
    if step == "index.update":
        assert distances["boat"] == 0  # still by its old code
    SearchEngine.open(indexed, writable=True).close()
    assert is_consistent(indexed)
    assert dict(nearest(indexed, other.items[0]))["boat"] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("step", ["index.update", "catalog.mark_done"])
def test_killed_additions_and_removals_are_completed(indexed: Path, step: str) -> None:
    kill_at(step, indexed, lambda engine: engine.add_texts(Collection(["new"], ["a dog"])))
    assert {"boat", "cat", "car"} <= dict(nearest(indexed, "a dog")).keys()
    SearchEngine.open(indexed, writable=True).close()
    assert is_consistent(indexed)
    assert "new" in dict(nearest(indexed, "a dog"))
    step = {"index.update": "index.remove", "catalog.mark_done": "catalog.remove"}[step]
    kill_at(step, indexed, lambda engine: engine.remove("texts", ["cat"]))
    SearchEngine.open(indexed, writable=True).close()
    assert is_consistent(indexed)
    assert "cat" in dict(nearest(indexed, "a dog"))  # the removal was not acknowledged


def test_a_missing_index_is_rebuilt_from_the_catalog_when_opened_for_writing(
    indexed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = nearest(indexed, "a boat")
    shutil.rmtree(indexed / "index" / "texts")
    SearchEngine.open(indexed, writable=True).close()
    assert "Added 3 codes" in caplog.text
    assert is_consistent(indexed)
    assert nearest(indexed, "a boat") == expected


def test_orphaned_and_wrong_codes_are_reported_and_repaired(indexed: Path) -> None:
    assert verify_run(indexed) == []
    expected = nearest(indexed, "a boat")
    with SearchEngine.open(indexed, writable=True) as engine:
        ids, codes = engine.indexes["texts"].export()
        engine.indexes["texts"].update([ids[0], 77], codes[1:3])
        engine.indexes["texts"].remove(ids[2:])
    (finding,) = verify_run(indexed)
    assert finding.problem.startswith("1 items without a code, 1 with a wrong code, 1 codes")
    assert not finding.repaired
    assert [finding.repaired for finding in verify_run(indexed, repair=True)] == [True]
    assert verify_run(indexed) == []
    assert nearest(indexed, "a boat") == expected


def test_a_corrupt_index_is_rebuilt_and_the_old_one_kept(indexed: Path) -> None:
    expected = nearest(indexed, "a boat")
    (indexed / "index" / "texts" / "index.json").write_text("{")
    assert [finding.part for finding in verify_run(indexed)] == ["text index"]
    assert all(finding.repaired for finding in verify_run(indexed, repair=True))
    assert verify_run(indexed) == []
    assert nearest(indexed, "a boat") == expected
    assert (indexed / "index" / "texts.damaged-1" / "index.json").read_text() == "{"


def test_a_corrupt_catalog_or_model_is_reported_and_not_repaired(indexed: Path) -> None:
    with sqlite3.connect(indexed / "catalog.sqlite") as base:
        base.execute("UPDATE items SET text = 'a goat with sails' WHERE id = 'boat'")
    base.close()
    (finding,) = verify_run(indexed, repair=True)
    assert (finding.part, finding.repaired) == ("catalog", False)
    assert "'boat' has a wrong checksum" in finding.problem
    weights = indexed / "hasher.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    assert verify_run(indexed)


@pytest.mark.parametrize("content", [None, b""])
def test_a_lost_catalog_is_reported_and_its_codes_are_kept(
    indexed: Path, content: bytes | None
) -> None:
    path = indexed / "catalog.sqlite"
    for file in indexed.glob("catalog.sqlite*"):
        file.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TranshashError, match="missing or empty"):
        SearchEngine.open(indexed, writable=True)
    assert [f for f in verify_run(indexed, repair=True) if not f.repaired]
    assert not path.exists() or not path.stat().st_size


def test_a_thread_that_connects_while_the_catalog_is_missing_creates_no_empty_one(
    indexed: Path,
) -> None:
    path = indexed / "catalog.sqlite"
    with SearchEngine.open(indexed, writable=True) as engine:
        moved = path.rename(indexed / "moved")
        with ThreadPoolExecutor(1) as other, pytest.raises(TranshashError, match="cannot be"):
            other.submit(engine.catalog.find, "texts", "boat").result()
        assert not path.exists()
        moved.rename(path)
    assert verify_run(indexed) == []


def test_every_flipped_bit_is_reported_or_harmless(indexed: Path) -> None:
    files = [p for p in indexed.rglob("*") if p.is_file() and p.name != "writer.lock"]
    expected = nearest(indexed, "a boat")
    reported = harmless = 0
    for number, path in enumerate(files * 12):
        content = path.read_bytes()
        if not content:
            continue
        position = (number * 7919 + 13) % len(content)
        path.write_bytes(
            content[:position]
            + bytes([content[position] ^ 1 << number % 8])
            + content[position + 1 :]
        )
        if verify_run(indexed):
            reported += 1
        else:  # an unused byte of a file
            harmless += 1
            assert nearest(indexed, "a boat") == expected, (path, position)
        path.write_bytes(content)
        for log in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
            (indexed / log).unlink(missing_ok=True)
    assert reported > harmless
    assert verify_run(indexed) == []


def test_sqlite_errors_name_the_file(indexed: Path) -> None:
    with SearchEngine.open(indexed, writable=True) as engine:
        engine.catalog._file.base.execute("PRAGMA max_page_count=1")  # like a full disk
        with pytest.raises(EngineError, match=r"catalog\.sqlite cannot be written \(.*full"):
            engine.add_texts(Collection(["long"], ["a boat " * 20_000]))
    assert verify_run(indexed) == []
    (indexed / "catalog.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(TranshashError, match="corrupt"):
        SearchEngine.open(indexed)


def test_a_catalog_that_another_thread_closed_is_not_called_corrupt(indexed: Path) -> None:
    with SearchEngine.open(indexed) as engine:
        file = engine.catalog._file
        base = file.base
        engine.close()
        with pytest.raises(EngineError, match=r"catalog\.sqlite was closed"), file.errors():
            base.execute("SELECT 1")


def test_an_id_of_another_type_is_not_taken_for_a_corrupt_catalog(indexed: Path) -> None:
    with SearchEngine.open(indexed, writable=True) as engine:
        with pytest.raises(DataError, match=r"^The id is a list\. Pass"):
            engine.similar_to_id("texts", ["boat"])  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"^The id is a list\. Pass"):
            engine.remove("texts", [["boat"]])  # type: ignore[list-item]
