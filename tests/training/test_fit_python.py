"""transhash.fit: from what a person holds in Python to an engine that can be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import transhash
from transhash.errors import DataError

KINDS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 200)}


def square(name: str, seed: int, size: int = 24) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 12, (size, size, 3))
    return np.clip(np.array(KINDS[name]) + noise, 0, 255).astype(np.uint8)


def pairs(count: int = 20) -> list[tuple[np.ndarray, str]]:
    return [
        (square(name, seed), f"a {name} thing number {seed % 4}")
        for name in KINDS
        for seed in range(count)
    ]


@pytest.fixture(scope="module")
def engine() -> Any:
    images = [Image.fromarray(square(name, 100 + i)) for i in range(4) for name in KINDS]
    texts = [f"something {name} was seen {i} times" for i in range(4) for name in KINDS]
    with transhash.fit(pairs(), images, texts, method="QCH", bits=16) as engine:
        yield engine


def test_what_was_given_can_be_searched_at_once(engine: Any) -> None:
    assert len(engine) == 24
    red = engine.similar_to_text("red", k=4)
    pixels = [engine.catalog.thumbnail(hit.item.number) for hit in red]
    assert all(pixels)
    hits = engine.similar_to_image(square("blue", 999), k=4)
    assert sum("blue" in hit.item.text for hit in hits) >= 3
    assert repr(engine).endswith("QCH, 16 bits, 12 images and 12 texts>")


def test_queries_in_a_batch_find_what_they_find_alone(engine: Any) -> None:
    together = engine.similar_to_texts(["red", "green"], k=3)
    assert together == [engine.similar_to_text("red", k=3), engine.similar_to_text("green", k=3)]
    pictures = [Image.fromarray(square("red", 7)), square("green", 8)]
    assert [len(found) for found in engine.similar_to_images(pictures, k=2)] == [2, 2]
    assert engine.similar_to_images([]) == []


def test_a_notebook_shows_thumbnails_distances_and_texts(engine: Any) -> None:
    shown = engine.similar_to_text("red", k=3)._repr_html_()
    assert shown.count("data:image/jpeg;base64,") == 3
    assert "of 16 bits" in shown
    engine.add_texts(["<script>alert(1)</script> red"])
    texts = engine.similar_to_text("red", k=30, modality="texts")._repr_html_()
    assert "&lt;script&gt;" in texts
    assert "<script>" not in texts
    assert repr(engine.similar_to_text("red", k=1)).startswith("<1 results: ")


def test_the_same_content_again_is_the_same_item(engine: Any) -> None:
    before = len(engine)
    done = engine.add_images([Image.fromarray(square("red", 100)), square("red", 555)])
    assert (done.added, done.unchanged) == (1, 1)
    assert len(engine) == before + 1


@pytest.mark.parametrize("modality", ["image", "pictures", "all"])
def test_a_kind_that_does_not_exist_is_one_sentence(engine: Any, modality: str) -> None:
    with pytest.raises(DataError, match="Unknown modality"):
        engine.similar_to_text("red", modality=modality)


def test_a_run_stays_where_it_was_asked_for_and_nowhere_else(tmp_path: Path) -> None:
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


def test_nothing_to_search_is_refused_before_anything_is_learned() -> None:
    with pytest.raises(DataError, match="give images, texts or both"):
        transhash.fit(pairs(2))
