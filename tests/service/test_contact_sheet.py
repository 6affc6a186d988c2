"""The contact sheet of `transhash search --contact-sheet`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from transhash.errors import DataError
from transhash.search.engine import SearchEngine
from transhash.search.hits import write_contact_sheet


def test_a_contact_sheet_shows_every_hit_in_rows(engine: SearchEngine, tmp_path: Path) -> None:
    hits = engine.similar_to_text("a boat", 8, "images")
    path = write_contact_sheet(hits, engine, tmp_path / "out.png", columns=4)
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        width, height = sheet.size
        # No cell is empty.
        for row in range(2):
            for column in range(4):
                x, y = 16 + column * 216, 16 + row * 274
                assert len(sheet.crop((x, y, x + 200, y + 200)).getcolors(1 << 20) or []) > 50
    assert (width, height) == (4 * 216 + 16, 2 * 274 + 16)


def test_texts_are_drawn_as_cards(engine: SearchEngine, tmp_path: Path) -> None:
    hits = engine.similar_to_text("a boat", 3, "texts")
    with Image.open(write_contact_sheet(hits, engine, tmp_path / "out.png")) as sheet:
        assert sheet.size == (3 * 216 + 16, 274 + 16)


@pytest.mark.parametrize("text", ["x" * 2_000_000, "\u200b\n\u200b", "a\nb", "\n"])
def test_any_text_can_be_drawn(text: str, engine: SearchEngine, tmp_path: Path) -> None:
    (hit,) = engine.similar_to_text("a boat", 1, "texts")
    hit = replace(hit, item=replace(hit.item, text=text))
    with Image.open(write_contact_sheet([hit], engine, tmp_path / "out.png")) as sheet:
        assert sheet.size == (216 + 16, 274 + 16)


def test_a_contact_sheet_without_results_is_refused(engine: SearchEngine, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="result"):
        write_contact_sheet([], engine, tmp_path / "out.png")


def test_an_unknown_extension_is_refused(engine: SearchEngine, tmp_path: Path) -> None:
    hits = engine.similar_to_text("a boat", 1, "images")
    with pytest.raises(DataError, match=r"\.png"):
        write_contact_sheet(hits, engine, tmp_path / "out.xyz")
