"""transhash.fit: from Python objects to a search engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import transhash
from transhash.errors import DataError

COLORS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 200)}


def square(name: str, seed: int, size: int = 24) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 12, (size, size, 3))
    return np.clip(np.array(COLORS[name]) + noise, 0, 255).astype(np.uint8)


def pairs(count: int = 20) -> list[tuple[np.ndarray, str]]:
    return [
        (square(name, seed), f"a {name} thing number {seed % 4}")
        for name in COLORS
        for seed in range(count)
    ]


@pytest.fixture(scope="module")
def engine() -> Any:
    images = [Image.fromarray(square(name, 100 + i)) for i in range(4) for name in COLORS]
    texts = [f"something {name} was seen {i} times" for i in range(4) for name in COLORS]
    with transhash.fit(pairs(), images, texts, method="QCH", bits=16) as engine:
        yield engine


def test_the_given_items_can_be_searched_at_once(engine: Any) -> None:
    assert len(engine) == 24
    red = engine.similar_to_text("red", k=4)
    pixels = [engine.catalog.thumbnail(hit.item.number) for hit in red]
    assert all(pixels)
    hits = engine.similar_to_image(square("blue", 999), k=4)
    assert sum("blue" in hit.item.text for hit in hits) >= 3
    assert repr(engine).endswith("QCH, 16 bits, 12 images and 12 texts>")


def test_a_batch_of_queries_gives_the_same_results_as_single_queries(engine: Any) -> None:
    batch = engine.similar_to_texts(["red", "green"], k=3)
    assert batch == [engine.similar_to_text("red", k=3), engine.similar_to_text("green", k=3)]
    images = [Image.fromarray(square("red", 7)), square("green", 8)]
    assert [len(hits) for hits in engine.similar_to_images(images, k=2)] == [2, 2]
    assert engine.similar_to_images([]) == []


def test_a_notebook_shows_thumbnails_distances_and_texts(engine: Any) -> None:
    page = engine.similar_to_text("red", k=3)._repr_html_()
    assert page.count("data:image/jpeg;base64,") == 3
    assert "of 16 bits" in page
    engine.add_texts(["<script>alert(1)</script> red"])
    texts = engine.similar_to_text("red", k=30, modality="texts")._repr_html_()
    assert "&lt;script&gt;" in texts
    assert "<script>" not in texts
    assert repr(engine.similar_to_text("red", k=1)).startswith("<1 results: ")


def test_the_same_content_again_is_the_same_item(engine: Any) -> None:
    before = len(engine)
    result = engine.add_images([Image.fromarray(square("red", 100)), square("red", 555)])
    assert (result.added, result.unchanged) == (1, 1)
    assert len(engine) == before + 1


@pytest.mark.parametrize("modality", ["image", "pictures", "all"])
def test_an_unknown_modality_is_an_error(engine: Any, modality: str) -> None:
    with pytest.raises(DataError, match="Unknown modality"):
        engine.similar_to_text("red", modality=modality)


def test_a_run_folder_is_kept_only_if_out_is_given(tmp_path: Path) -> None:
    engine = transhash.fit(
        pairs(8), texts=["a red one"], out=tmp_path / "run", method="QCH", bits=8
    )
    engine.close()
    with transhash.SearchEngine.open(tmp_path / "run") as again:
        assert len(again) == 1
    engine = transhash.fit(pairs(8), texts=["a red one"], method="QCH", bits=8)
    folder = engine.run
    assert folder.exists()
    engine.close()
    assert not folder.exists()


def test_nothing_to_search_is_an_error() -> None:
    with pytest.raises(DataError, match="Nothing to search"):
        transhash.fit(pairs(2))
