"""A folder of text files."""

from pathlib import Path

import pytest
from PIL import Image

from transhash.data.manifest import read_images, read_manifest, read_texts
from transhash.errors import DataError


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "2024").mkdir(parents=True)
    (folder / "2024" / "boat.md").write_text("# Boat\n\nIt leaks,\nagain.\n", "utf-8")
    (folder / "cat.txt").write_bytes("\ufeffdie Katze schläft\n".encode())
    return folder


def test_each_file_is_one_text_with_its_path_as_id(notes: Path) -> None:
    texts = read_texts(notes)
    items = dict(zip(texts.ids, texts.items, strict=True))
    assert items == {"2024/boat.md": "# Boat\n\nIt leaks,\nagain.", "cat.txt": "die Katze schläft"}
    assert texts.source == str(notes.resolve())


def test_bad_text_files_are_skipped(notes: Path) -> None:
    (notes / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (notes / "empty.txt").touch()
    (notes / "blank.md").write_text(" \n")
    (notes / "nul.txt").write_bytes(b"a\0b")
    (notes / "list.pdf").write_bytes(b"%PDF")
    (notes / ".hidden.txt").write_text("not read")
    texts = read_texts(notes)
    assert len(texts) == 2
    assert {problem.location: problem.reason for problem in texts.problems} == {
        "latin.txt": "not UTF-8 (save it as UTF-8)",
        "empty.txt": "is an empty file",
        "blank.md": "contains no text",
        "nul.txt": "text contains a NUL character",
        "list.pdf": "not a text by its extension '.pdf'",
    }


def test_a_folder_may_hold_images_and_texts(notes: Path) -> None:
    assert read_manifest(notes).columns == {"id", "text"}
    Image.new("RGB", (8, 8)).save(notes / "sketch.png")
    assert read_images(notes).ids == ["sketch.png"]
    assert len(read_texts(notes)) == 2
    assert read_manifest(notes).columns == {"id", "image"}


def test_a_folder_without_texts_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "list.pdf").write_bytes(b"%PDF")
    with pytest.raises(DataError, match="contain no text"):
        read_texts(tmp_path)
    with pytest.raises(DataError, match="contain no image"):
        read_manifest(tmp_path)
