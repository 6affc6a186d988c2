"""Catalog and index agree, whatever died between them; what does not is told and mended."""

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
from transhash.errors import EngineError, TranshashError
from transhash.search.consistency import compare
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run

TEXTS = {"boat": "a boat with sails", "cat": "the cat sleeps", "car": "a red car"}


@pytest.fixture
def indexed(run: Path) -> Path:
    engine = SearchEngine.open(run, writable=True)
    engine.add_texts(Collection([*TEXTS], [*TEXTS.values()]))
    engine.close()
    return run


def nearest(run: Path, text: str) -> list[tuple[str, int]]:
    engine = SearchEngine.open(run)
    try:
        return [(hit.item.id, hit.distance) for hit in engine.similar_to_text(text, 10, "texts")]
    finally:
        engine.close()


def whole(run: Path) -> bool:
    engine = SearchEngine.open(run)
    try:
        return not engine.catalog.pending("") and not any(
            compare(engine.catalog, name, index) for name, index in engine.indexes.items()
        )
    finally:
        engine.close()


def killed(
    run: Path, work: Callable[[SearchEngine], object], step: str, modality: Modality = "texts"
) -> None:
    """Does `work` in a process that is killed when it comes to `step`."""
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
@pytest.mark.parametrize("step", ["index.update", "catalog.settle"])
def test_an_item_whose_replacement_was_killed_is_found_before_and_after_the_repair(
    indexed: Path, step: str
) -> None:
    other = Collection(["boat"], ["the cat sleeps in a red car"])
    killed(indexed, lambda engine: engine.add_texts(other), step)
    found = dict(nearest(indexed, TEXTS["boat"]))
    assert "boat" in found
    if step == "index.update":
        assert found["boat"] == 0  # still by its old code
    engine = SearchEngine.open(indexed, writable=True)
    engine.close()
    assert whole(indexed)
    assert dict(nearest(indexed, other.items[0]))["boat"] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("step", ["index.update", "catalog.settle"])
def test_new_items_and_removals_that_were_killed_leave_no_half(indexed: Path, step: str) -> None:
    killed(indexed, lambda engine: engine.add_texts(Collection(["new"], ["a dog"])), step)
    assert {"boat", "cat", "car"} <= dict(nearest(indexed, "a dog")).keys()
    SearchEngine.open(indexed, writable=True).close()
    assert whole(indexed)
    assert "new" in dict(nearest(indexed, "a dog"))
    step = {"index.update": "index.remove", "catalog.settle": "catalog.remove"}[step]
    killed(indexed, lambda engine: engine.remove("texts", ["cat"]), step)
    SearchEngine.open(indexed, writable=True).close()
    assert whole(indexed)
    assert "cat" in dict(nearest(indexed, "a dog"))  # not acknowledged, so not done


def test_an_index_that_is_gone_is_made_from_the_catalog_on_opening_to_write(
    indexed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = nearest(indexed, "a boat")
    shutil.rmtree(indexed / "index" / "texts")
    SearchEngine.open(indexed, writable=True).close()
    assert "3 codes were added" in caplog.text
    assert whole(indexed)
    assert nearest(indexed, "a boat") == expected


def test_codes_without_an_item_and_other_codes_are_told_and_repaired(indexed: Path) -> None:
    assert verify_run(indexed) == []
    expected = nearest(indexed, "a boat")
    engine = SearchEngine.open(indexed, writable=True)
    ids, codes = engine.indexes["texts"].export()
    engine.indexes["texts"].update([ids[0], 77], codes[1:3])
    engine.indexes["texts"].remove(ids[2:])
    engine.close()
    (finding,) = verify_run(indexed)
    assert "1 items of" in finding.problem
    assert "1 another one, and 1 codes no item" in finding.problem
    assert not finding.repaired
    assert [finding.repaired for finding in verify_run(indexed, repair=True)] == [True]
    assert verify_run(indexed) == []
    assert nearest(indexed, "a boat") == expected


def test_a_damaged_index_is_made_anew_and_the_old_one_kept(indexed: Path) -> None:
    expected = nearest(indexed, "a boat")
    note = indexed / "index" / "texts" / "index.json"
    note.write_text("{")
    assert [finding.part for finding in verify_run(indexed)] == ["index of texts"]
    assert all(finding.repaired for finding in verify_run(indexed, repair=True))
    assert verify_run(indexed) == []
    assert nearest(indexed, "a boat") == expected
    assert (indexed / "index" / "texts.damaged-1" / "index.json").read_text() == "{"


def test_damage_to_the_catalog_or_the_model_is_told_and_not_papered_over(indexed: Path) -> None:
    with sqlite3.connect(indexed / "catalog.sqlite") as base:
        base.execute("UPDATE items SET text = 'a goat with sails' WHERE id = 'boat'")
    base.close()
    (finding,) = verify_run(indexed, repair=True)
    assert (finding.part, finding.repaired) == ("catalog", False)
    assert "'boat' is not what was written" in finding.problem
    weights = indexed / "hasher.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    assert verify_run(indexed)


@pytest.mark.parametrize("left", [None, b""])
def test_a_lost_catalog_is_told_and_its_codes_are_kept(indexed: Path, left: bytes | None) -> None:
    path = indexed / "catalog.sqlite"
    for file in indexed.glob("catalog.sqlite*"):
        file.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(TranshashError, match=r"missing or empty, but .* holds"):
        SearchEngine.open(indexed, writable=True)
    assert [f for f in verify_run(indexed, repair=True) if not f.repaired]
    assert not path.exists() or not path.stat().st_size


def test_a_thread_that_asks_first_when_the_catalog_is_away_puts_no_empty_one_in_its_place(
    indexed: Path,
) -> None:
    engine = SearchEngine.open(indexed, writable=True)
    path = indexed / "catalog.sqlite"
    away = path.rename(indexed / "away")
    with ThreadPoolExecutor(1) as other, pytest.raises(TranshashError, match="cannot be"):
        other.submit(engine.catalog.find, "texts", "boat").result()
    assert not path.exists()
    away.rename(path)
    engine.close()
    assert verify_run(indexed) == []


def test_every_flipped_bit_of_a_small_run_is_told_or_does_no_harm(indexed: Path) -> None:
    files = [p for p in indexed.rglob("*") if p.is_file() and p.name != "writer.lock"]
    expected = nearest(indexed, "a boat")
    told = quiet = 0
    for number, path in enumerate(files * 12):
        content = path.read_bytes()
        if not content:
            continue
        place = (number * 7919 + 13) % len(content)
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << number % 8]) + content[place + 1 :]
        )
        if verify_run(indexed):
            told += 1
        else:  # a spare byte of a file: what it holds must still be the same
            quiet += 1
            assert nearest(indexed, "a boat") == expected, (path, place)
        path.write_bytes(content)
        for beside in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
            (indexed / beside).unlink(missing_ok=True)
    assert told > quiet
    assert verify_run(indexed) == []


def test_what_sqlite_refuses_names_the_file(indexed: Path) -> None:
    engine = SearchEngine.open(indexed, writable=True)
    engine.catalog._file.base.execute("PRAGMA max_page_count=1")  # a disk that is full
    try:
        with pytest.raises(EngineError, match=r"catalog\.sqlite cannot be written \(.*full"):
            engine.add_texts(Collection(["long"], ["a boat " * 20_000]))
    finally:
        engine.close()
    assert verify_run(indexed) == []
    (indexed / "catalog.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(TranshashError, match="damaged or no catalog"):
        SearchEngine.open(indexed)
