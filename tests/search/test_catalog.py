"""Items are known by where they come from: none is lost because another is called the same."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from transhash.data.collection import Collection
from transhash.data.manifest import read_images, read_texts
from transhash.errors import DataError
from transhash.model.encode_job import encode_shards
from transhash.model.shards import read_shards
from transhash.search.engine import SearchEngine
from transhash.search.writer import IndexResult

from .conftest import photo


@contextmanager
def opened(run: Path, *, writable: bool = True) -> Iterator[SearchEngine]:
    engine = SearchEngine.open(run, writable=writable)
    try:
        yield engine
    finally:
        engine.close()


def counts(done: IndexResult) -> tuple[int, int, int, int]:
    return done.added, done.updated, done.unchanged, len(done.problems)


def index_images(run: Path, source: Path) -> tuple[int, int, int, int]:
    with opened(run) as engine:
        return counts(engine.add_images(read_images(source)))


def index_texts(run: Path, source: Path) -> tuple[int, int, int, int]:
    with opened(run) as engine:
        return counts(engine.add_texts(read_texts(source)))


def shown(run: Path, modality: str) -> dict[str, str | None]:
    """Id and text of everything that a search over all finds."""
    with opened(run, writable=False) as engine:
        hits = engine.similar_to_text("a boat", 1000, modality)  # type: ignore[arg-type]
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
    assert shown(run, "images").keys() == {"IMG_1.png", "july/IMG_1.png", "later/july/IMG_1.png"}


def test_the_lines_of_a_second_file_replace_none_of_the_first(run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a boat with sails\nthe cat sleeps\n")
    (tmp_path / "b.txt").write_text("a red car\n")
    index_texts(run, tmp_path / "a.txt")
    assert index_texts(run, tmp_path / "b.txt") == (1, 0, 0, 0)
    assert shown(run, "texts") == {
        "1": "a boat with sails", "2": "the cat sleeps", "b.txt/1": "a red car",
    }  # fmt: skip


def test_what_is_unchanged_is_not_encoded_again_and_what_changed_keeps_its_number(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    for name in ("a", "b", "c"):
        photo(folder / f"{name}.png", "red")
    index_images(run, folder)
    (folder / "bad.png").write_text("no picture")
    photo(folder / "b.png", "#0a57d1")  # in no cache
    with opened(run) as engine:
        before = engine.catalog.find("images", "b.png")
        computed: list[int] = []
        features = engine.encoder.image_features
        assert features is not None
        inner = features.extract
        features.extract = lambda p: computed.append(len(p)) or inner(p)  # type: ignore
        done = engine.add_images(read_images(folder))
        after = engine.catalog.find("images", "b.png")
    assert counts(done) == (0, 1, 2, 1)
    assert sum(computed) == 1
    assert before is not None
    assert after is not None
    assert before.number == after.number
    assert before.code != after.code


def test_a_folder_that_was_moved_or_copied_is_not_indexed_twice(run: Path, tmp_path: Path) -> None:
    photo(tmp_path / "here" / "a.png", "red")
    index_images(run, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert index_images(run, tmp_path / "there") == (0, 0, 1, 0)
    photo(tmp_path / "there" / "a.png", "blue")
    assert index_images(run, tmp_path / "there") == (1, 0, 0, 0)
    assert shown(run, "images").keys() == {"a.png", "there/a.png"}


def test_lines_without_an_id_may_move_and_may_be_equal(run: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("a boat\na boat\nthe cat sleeps\n")
    assert index_texts(run, notes) == (3, 0, 0, 0)
    notes.write_text("new at the top\na boat\na boat\nthe cat sleeps\n")
    assert index_texts(run, notes) == (1, 0, 3, 0)
    assert sorted(filter(None, shown(run, "texts").values())) == [
        "a boat", "a boat", "new at the top", "the cat sleeps",
    ]  # fmt: skip


def test_a_picture_that_a_table_lists_with_each_of_its_captions_is_one_item(
    run: Path, tmp_path: Path
) -> None:
    photo(tmp_path / "a.png", "red")
    table = tmp_path / "captions.csv"
    table.write_text("image,text\na.png,a boat\na.png,the red boat\na.png,sails\n")
    assert index_images(run, table) == (1, 0, 2, 0)
    assert index_texts(run, table) == (3, 0, 0, 0)
    assert index_images(run, table) == (0, 0, 3, 0)
    table.write_text("id,image\nx,a.png\ny,a.png\n")  # asked for by name
    assert index_images(run, table) == (2, 0, 0, 0)


def test_a_given_id_is_trusted_within_its_file_only(run: Path, tmp_path: Path) -> None:
    mine, yours = tmp_path / "mine.csv", tmp_path / "yours.csv"
    mine.write_text("id,text\nx,a boat\n")
    yours.write_text("id,text\nx,a cat\n")
    index_texts(run, mine)
    assert index_texts(run, yours) == (1, 0, 0, 0)
    mine.write_text("id,text\nx,a red boat\n")
    assert index_texts(run, mine) == (0, 1, 0, 0)
    assert shown(run, "texts") == {"x": "a red boat", "yours.csv/x": "a cat"}
    with opened(run) as engine:  # a program's items have no file
        done = engine.add_texts(Collection(["x"], ["a dog"]))
        assert counts(done) == (1, 0, 0, 0)
        assert counts(engine.add_texts(Collection(["x"], ["a big dog"]))) == (0, 1, 0, 0)
        item = engine.catalog.get(done.numbers)[done.numbers[0]]
    assert (item.id, item.text) == ("x (2)", "a big dog")


def test_codes_from_elsewhere_belong_to_the_items_they_were_made_of(
    run: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("a boat\nthe cat sleeps\n")
    index_texts(run, notes)
    encode_shards(run, read_texts(notes), "texts", tmp_path / "codes")
    with opened(run) as engine:
        assert counts(engine.add_codes("texts", read_shards(tmp_path / "codes"))) == (0, 0, 2, 0)
    assert shown(run, "texts") == {"1": "a boat", "2": "the cat sleeps"}


def test_a_run_of_the_first_format_is_read_as_it_is_and_migrated_when_written(
    indexed_run: Path, tmp_path: Path
) -> None:
    before = (indexed_run / "catalog.sqlite").read_bytes()
    texts = {"1": "a boat with sails", "2": "the cat sleeps", "b1": "a red boat"}
    assert shown(indexed_run, "texts") == texts
    assert shown(indexed_run, "images").keys() == {"red.png", "blue.png"}
    assert (indexed_run / "catalog.sqlite").read_bytes() == before
    assert index_texts(indexed_run, tmp_path / "notes.txt") == (0, 0, 2, 0)
    assert index_texts(indexed_run, tmp_path / "named.csv") == (0, 0, 1, 0)
    assert index_images(indexed_run, tmp_path / "photos") == (0, 0, 2, 0)
    # Now its content and place are known: other items of the same names are other items.
    photo(tmp_path / "other" / "red.png", "yellow")
    assert index_images(indexed_run, tmp_path / "other") == (1, 0, 0, 0)
    photo(tmp_path / "photos" / "red.png", "green")
    assert index_images(indexed_run, tmp_path / "photos") == (0, 1, 1, 0)
    assert shown(indexed_run, "images").keys() == {"red.png", "blue.png", "other/red.png"}
    assert shown(indexed_run, "texts") == texts


def test_another_folder_does_not_take_the_names_of_a_first_formats_items(
    indexed_run: Path, tmp_path: Path
) -> None:
    photo(tmp_path / "other" / "red.png", "yellow")
    (tmp_path / "more.txt").write_text("something else\n")
    assert index_images(indexed_run, tmp_path / "other") == (1, 0, 0, 0)
    assert index_texts(indexed_run, tmp_path / "more.txt") == (1, 0, 0, 0)
    assert shown(indexed_run, "texts")["1"] == "a boat with sails"


def test_a_catalog_of_a_newer_format_or_another_model_is_refused(run: Path) -> None:
    with opened(run) as engine:
        engine.add_texts(Collection(["x"], ["a boat"]))
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config + "\n")
    for writable in (True, False):
        with pytest.raises(DataError, match="filled by another model"):
            SearchEngine.open(run, writable=writable)
    (run / "config.json").write_text(config)
    with sqlite3.connect(run / "catalog.sqlite") as base:
        base.execute("PRAGMA user_version=4")
    with pytest.raises(DataError, match=r"format version 4.*newer transhash"):
        SearchEngine.open(run)


def test_precomputed_rows_are_items_of_their_file(run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("x.npy", "y.npy"):
        np.save(tmp_path / name, rng.standard_normal((3, 1280)))
    assert index_images(run, tmp_path / "x.npy") == (3, 0, 0, 0)
    assert index_images(run, tmp_path / "y.npy") == (3, 0, 0, 0)
    assert index_images(run, tmp_path / "x.npy") == (0, 0, 3, 0)
