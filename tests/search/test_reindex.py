"""A second run reads no file that looks as it did, and takes every other one for what it is."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from transhash.data.manifest import read_images
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run

from .conftest import LONG_AGO, old_photo, photo
from .test_catalog import counts, opened


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name, colour in (("a", "red"), ("b", "blue"), ("c", "green")):
        old_photo(tmp_path / "pictures" / f"{name}.png", colour)
    return tmp_path / "pictures"


def add(run: Path, source: Path, *, reread: bool = False) -> tuple[int, int, int, int]:
    with opened(run) as engine:
        return counts(engine.add_images(read_images(source), reread=reread))


def test_unchanged_files_are_not_read_again_unless_asked(
    run: Path, pictures: Path, read: list[str]
) -> None:
    assert add(run, pictures) == (3, 0, 0, 0)
    read.clear()
    assert add(run, pictures) == (0, 0, 3, 0)
    assert read == []
    assert add(run, pictures, reread=True) == (0, 0, 3, 0)
    assert sorted(read) == ["a.png", "b.png", "c.png"]
    assert verify_run(run) == []


def test_a_file_of_another_time_or_size_is_read(run: Path, pictures: Path, read: list[str]) -> None:
    add(run, pictures)
    old_photo(pictures / "a.png", "#123456", LONG_AGO + 1)
    os.utime(pictures / "b.png", (LONG_AGO + 5, LONG_AGO + 5))  # touched, no more
    (pictures / "d.png").write_text("no picture")
    read.clear()
    assert add(run, pictures) == (0, 1, 2, 1)
    assert sorted(read) == ["a.png", "b.png", "d.png"]
    read.clear()
    assert add(run, pictures) == (0, 0, 3, 1)
    assert read == ["d.png"]


def test_what_was_written_a_moment_ago_is_read_again(
    run: Path, tmp_path: Path, read: list[str]
) -> None:
    """The clock of a file system may not tell the next change from this one."""
    photo(tmp_path / "new" / "a.png", "red")
    add(run, tmp_path / "new")
    add(run, tmp_path / "new")
    assert read == ["a.png", "a.png"]


def test_a_table_that_names_another_file_under_the_same_id_is_believed(
    run: Path, pictures: Path, tmp_path: Path, read: list[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("id,image\nx,pictures/a.png\n")
    assert add(run, table) == (1, 0, 0, 0)
    assert add(run, table) == (0, 0, 1, 0)
    assert read == ["a.png"]
    table.write_text("id,image\nx,pictures/b.png\n")
    assert add(run, table) == (0, 1, 0, 0)


def test_a_catalog_of_the_second_format_is_read_as_it_is_and_learns_the_stamps(
    run: Path, pictures: Path, read: list[str]
) -> None:
    add(run, pictures)
    with sqlite3.connect(run / "catalog.sqlite") as base:
        base.execute("ALTER TABLE items DROP COLUMN stamp")
        base.execute("PRAGMA user_version=2")
    base.close()
    engine = SearchEngine.open(run)
    assert len(engine.similar_to_text("a boat", 5)) == 3
    engine.close()
    assert verify_run(run) == []
    read.clear()
    assert add(run, pictures) == (0, 0, 3, 0)
    assert len(read) == 3
    read.clear()
    assert add(run, pictures) == (0, 0, 3, 0)
    assert read == []
