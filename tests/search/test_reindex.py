"""Indexing again reads only files whose size or time has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transhash.data.manifest import read_images
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run

from .conftest import LONG_AGO, old_photo, photo
from .test_catalog import counts


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, color in (("a", "red"), ("b", "blue"), ("c", "green")):
        old_photo(tmp_path / "album" / f"{name}.png", color)
    return tmp_path / "album"


def add(run: Path, source: Path, *, reread: bool = False) -> tuple[int, int, int, int]:
    with SearchEngine.open(run, writable=True) as engine:
        return counts(engine.add_images(read_images(source), reread=reread))


def test_unchanged_files_are_not_read_again_unless_asked(
    run: Path, photos: Path, read_files: list[str]
) -> None:
    assert add(run, photos) == (3, 0, 0, 0)
    read_files.clear()
    assert add(run, photos) == (0, 0, 3, 0)
    assert read_files == []
    assert add(run, photos, reread=True) == (0, 0, 3, 0)
    assert sorted(read_files) == ["a.png", "b.png", "c.png"]
    assert verify_run(run) == []


def test_a_file_with_another_time_or_size_is_read(
    run: Path, photos: Path, read_files: list[str]
) -> None:
    add(run, photos)
    old_photo(photos / "a.png", "#123456", LONG_AGO + 1)
    os.utime(photos / "b.png", (LONG_AGO + 5, LONG_AGO + 5))  # only touched
    (photos / "d.png").write_text("not an image")
    read_files.clear()
    assert add(run, photos) == (0, 1, 2, 1)
    assert sorted(read_files) == ["a.png", "b.png", "d.png"]
    read_files.clear()
    assert add(run, photos) == (0, 0, 3, 1)
    assert read_files == ["d.png"]


def test_a_file_written_just_now_is_read_again(
    run: Path, tmp_path: Path, read_files: list[str]
) -> None:
    """A second change so soon may leave the modification time unchanged."""
    photo(tmp_path / "new" / "a.png", "red")
    add(run, tmp_path / "new")
    add(run, tmp_path / "new")
    assert read_files == ["a.png", "a.png"]


def test_a_table_that_uses_an_id_for_another_file_updates_the_item(
    run: Path, photos: Path, tmp_path: Path, read_files: list[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("id,image\nx,album/a.png\n")
    assert add(run, table) == (1, 0, 0, 0)
    assert add(run, table) == (0, 0, 1, 0)
    assert read_files == ["a.png"]
    table.write_text("id,image\nx,album/b.png\n")
    assert add(run, table) == (0, 1, 0, 0)
