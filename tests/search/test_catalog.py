"""Items are identified by source and key, so equal names never overwrite each other."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from transhash.data.collection import Collection
from transhash.data.manifest import read_images, read_texts
from transhash.errors import DataError, EngineError
from transhash.model.encode_job import encode_shards
from transhash.model.shards import read_shards
from transhash.search.catalog import Catalog
from transhash.search.engine import SearchEngine
from transhash.search.writer import IndexResult

from .conftest import photo


def counts(result: IndexResult) -> tuple[int, int, int, int]:
    return result.added, result.updated, result.unchanged, len(result.problems)


def index_images(run: Path, source: Path) -> tuple[int, int, int, int]:
    with SearchEngine.open(run, writable=True) as engine:
        return counts(engine.add_images(read_images(source)))


def index_texts(run: Path, source: Path) -> tuple[int, int, int, int]:
    with SearchEngine.open(run, writable=True) as engine:
        return counts(engine.add_texts(read_texts(source)))


def searchable(run: Path, modality: str) -> dict[str, str | None]:
    """Return id and text of all items that a search returns."""
    with SearchEngine.open(run) as engine:
        hits = engine.similar_to_text("a boat", 1000, modality, collapse=False)  # type: ignore[arg-type]
        return {hit.item.id: hit.item.text for hit in hits}


def test_a_file_of_the_same_name_from_another_folder_is_another_item(
    run: Path, tmp_path: Path
) -> None:
    photo(tmp_path / "june" / "IMG_1.png", "red")
    photo(tmp_path / "july" / "IMG_1.png", "blue")
    photo(tmp_path / "later" / "july" / "IMG_1.png", "green")
    assert index_images(run, tmp_path / "june") == (1, 0, 0, 0)
    assert index_images(run, tmp_path / "july") == (1, 0, 0, 0)
    assert index_images(run, tmp_path / "later" / "july") == (1, 0, 0, 0)
    assert searchable(run, "images").keys() == {
        "IMG_1.png",
        "july/IMG_1.png",
        "later/july/IMG_1.png",
    }


def test_lines_of_a_second_file_do_not_replace_those_of_the_first(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a boat with sails\nthe cat sleeps\n")
    (tmp_path / "b.txt").write_text("a red car\n")
    index_texts(run, tmp_path / "a.txt")
    assert index_texts(run, tmp_path / "b.txt") == (1, 0, 0, 0)
    assert searchable(run, "texts") == {
        "1": "a boat with sails", "2": "the cat sleeps", "b.txt/1": "a red car",
    }  # fmt: skip


def test_unchanged_items_are_not_encoded_again_and_changed_items_keep_their_number(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    for name in ("a", "b", "c"):
        photo(folder / f"{name}.png", "red")
    index_images(run, folder)
    (folder / "bad.png").write_text("not an image")
    photo(folder / "b.png", "#0a57d1")  # not in the cache
    with SearchEngine.open(run, writable=True) as engine:
        before = engine.catalog.find("images", "b.png")
        computed: list[int] = []
        features = engine.encoder.image_features
        assert features is not None
        inner = features.extract
        features.extract = lambda p: computed.append(len(p)) or inner(p)  # type: ignore
        result = engine.add_images(read_images(folder))
        after = engine.catalog.find("images", "b.png")
    assert counts(result) == (0, 1, 2, 1)
    assert sum(computed) == 1
    assert before is not None
    assert after is not None
    assert before.number == after.number
    assert before.code != after.code


def test_a_moved_or_copied_folder_is_not_indexed_twice(run: Path, tmp_path: Path) -> None:
    photo(tmp_path / "here" / "a.png", "red")
    index_images(run, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert index_images(run, tmp_path / "there") == (0, 0, 1, 0)
    photo(tmp_path / "there" / "a.png", "blue")
    assert index_images(run, tmp_path / "there") == (1, 0, 0, 0)
    assert searchable(run, "images").keys() == {"a.png", "there/a.png"}


def test_lines_without_ids_may_move_and_may_be_equal(run: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("a boat\na boat\nthe cat sleeps\n")
    assert index_texts(run, notes) == (3, 0, 0, 0)
    notes.write_text("new at the top\na boat\na boat\nthe cat sleeps\n")
    assert index_texts(run, notes) == (1, 0, 3, 0)
    assert sorted(filter(None, searchable(run, "texts").values())) == [
        "a boat", "a boat", "new at the top", "the cat sleeps",
    ]  # fmt: skip


def test_an_image_listed_with_several_captions_is_one_item(run: Path, tmp_path: Path) -> None:
    photo(tmp_path / "a.png", "red")
    table = tmp_path / "captions.csv"
    table.write_text("image,text\na.png,a boat\na.png,the red boat\na.png,sails\n")
    assert index_images(run, table) == (1, 0, 2, 0)
    assert index_texts(run, table) == (3, 0, 0, 0)
    assert index_images(run, table) == (0, 0, 3, 0)
    table.write_text("id,image\nx,a.png\ny,a.png\n")  # ids make two items
    assert index_images(run, table) == (2, 0, 0, 0)


def test_equal_ids_in_two_files_are_different_items(run: Path, tmp_path: Path) -> None:
    mine, yours = tmp_path / "mine.csv", tmp_path / "yours.csv"
    mine.write_text("id,text\nx,a boat\n")
    yours.write_text("id,text\nx,a cat\n")
    index_texts(run, mine)
    assert index_texts(run, yours) == (1, 0, 0, 0)
    mine.write_text("id,text\nx,a red boat\n")
    assert index_texts(run, mine) == (0, 1, 0, 0)
    assert searchable(run, "texts") == {"x": "a red boat", "yours.csv/x": "a cat"}
    with SearchEngine.open(run, writable=True) as engine:  # items of a program have no source
        result = engine.add_texts(Collection(["x"], ["a dog"]))
        assert counts(result) == (1, 0, 0, 0)
        assert counts(engine.add_texts(Collection(["x"], ["a big dog"]))) == (0, 1, 0, 0)
        item = engine.catalog.get(result.numbers)[result.numbers[0]]
    assert (item.id, item.text) == ("x (2)", "a big dog")


def test_codes_encoded_elsewhere_belong_to_their_items(run: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("a boat\nthe cat sleeps\n")
    index_texts(run, notes)
    encode_shards(run, read_texts(notes), "texts", tmp_path / "codes")
    with SearchEngine.open(run, writable=True) as engine:
        assert counts(engine.writer.add_codes("texts", read_shards(tmp_path / "codes"))) == (
            0,
            0,
            2,
            0,
        )
    assert searchable(run, "texts") == {"1": "a boat", "2": "the cat sleeps"}


def test_a_catalog_of_another_format_or_another_model_is_refused(indexed_run: Path) -> None:
    with sqlite3.connect(indexed_run / "catalog.sqlite") as base:
        base.execute("UPDATE metadata SET value = 'other' WHERE name = 'model'")
    for writable in (True, False):
        with pytest.raises(DataError, match="different model"):
            SearchEngine.open(indexed_run, writable=writable)
    for version in (4, 6):
        with sqlite3.connect(indexed_run / "catalog.sqlite") as base:
            base.execute(f"PRAGMA user_version={version}")
        with pytest.raises(DataError, match=f"format version {version}.*index again"):
            SearchEngine.open(indexed_run)


def test_a_read_only_engine_refuses_changes(indexed_run: Path) -> None:
    with (
        SearchEngine.open(indexed_run) as engine,
        pytest.raises(EngineError, match="reading only"),
    ):
        engine.add_texts(["a boat"])


def test_rows_of_precomputed_features_are_items(run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("x.npy", "y.npy"):
        np.save(tmp_path / name, rng.standard_normal((3, 1280)))
    assert index_images(run, tmp_path / "x.npy") == (3, 0, 0, 0)
    assert index_images(run, tmp_path / "y.npy") == (3, 0, 0, 0)
    assert index_images(run, tmp_path / "x.npy") == (0, 0, 3, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_threads_that_ended_keep_no_files_open(indexed_run: Path) -> None:
    def open_files() -> int:
        names = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum("catalog.sqlite" in name for name in names)

    before = open_files()  # of other tests
    with Catalog(indexed_run / "catalog.sqlite") as catalog:
        for _ in range(20):
            thread = threading.Thread(target=catalog.count, args=("images",))
            thread.start()
            thread.join()
        assert catalog.count("images")
        assert open_files() <= before + 6  # database and log, of this thread and the last one
    assert open_files() <= before
