"""A folder of notes, each a text in a file of its own."""

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


def test_a_file_is_one_text_as_a_whole_and_known_by_its_path(notes: Path) -> None:
    texts = read_texts(notes)
    found = dict(zip(texts.ids, texts.items, strict=True))
    assert found == {"2024/boat.md": "# Boat\n\nIt leaks,\nagain.", "cat.txt": "die Katze schläft"}
    assert texts.source == str(notes.resolve())


def test_one_bad_note_never_stops_the_others(notes: Path) -> None:
    (notes / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (notes / "empty.txt").touch()
    (notes / "blank.md").write_text(" \n")
    (notes / "nul.txt").write_bytes(b"a\0b")
    (notes / "list.pdf").write_bytes(b"%PDF")
    (notes / ".hidden.txt").write_text("not a note")
    texts = read_texts(notes)
    assert len(texts) == 2
    assert {problem.location: problem.reason for problem in texts.problems} == {
        "latin.txt": "not UTF-8; save it as UTF-8",
        "empty.txt": "is an empty file",
        "blank.md": "holds no text",
        "nul.txt": "text holds a NUL character",
        "list.pdf": "not a text by its extension '.pdf'",
    }


def test_of_a_folder_of_both_each_kind_is_read_when_asked_for(notes: Path) -> None:
    assert read_manifest(notes).columns == {"id", "text"}
    Image.new("RGB", (8, 8)).save(notes / "sketch.png")
    assert read_images(notes).ids == ["sketch.png"]
    assert len(read_texts(notes)) == 2
    assert read_manifest(notes).columns == {"id", "image"}


def test_a_folder_without_notes_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "list.pdf").write_bytes(b"%PDF")
    with pytest.raises(DataError, match=r"holds no text \(\.md, \.txt\), nor do its sub-folders"):
        read_texts(tmp_path)
    with pytest.raises(DataError, match="holds no image"):
        read_manifest(tmp_path)
