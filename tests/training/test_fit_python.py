"""transhash.fit: from Python objects to a search engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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
    with transhash.fit(pairs(), images, texts, method="QCH", bits=16, concepts=False) as engine:
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
        pairs(8), texts=["a red one"], out=tmp_path / "run", method="QCH", bits=8, concepts=False
    )
    engine.close()
    with transhash.SearchEngine.open(tmp_path / "run") as again:
        assert len(again) == 1
    engine = transhash.fit(pairs(8), texts=["a red one"], method="QCH", bits=8, concepts=False)
    folder = engine.run
    assert folder.exists()
    engine.close()
    assert not folder.exists()


def test_nothing_to_search_is_an_error() -> None:
    with pytest.raises(DataError, match="Nothing to search"):
        transhash.fit(pairs(2))


def test_hits_carry_the_objects_and_rows_that_were_passed(tmp_path: Path) -> None:
    images = [Image.fromarray(square(name, 100 + i)) for i in range(4) for name in COLORS]
    texts = [{"id": f"t{i}", "text": f"a {name} one"} for i, name in enumerate(COLORS)]
    with transhash.fit(
        pairs(8), images, texts, out=tmp_path / "run", method="QCH", bits=16, concepts=False
    ) as engine:
        hits = engine.similar_to_text("red", k=12)
        assert sorted(hit.row for hit in hits) == list(range(12))
        assert all(hit.object is images[hit.row] for hit in hits)
        (hit,) = engine.similar_to_image(images[2], k=1)
        assert hit.object == texts[hit.row]
        assert hit.object["id"] == hit.item.id
        engine.add_texts(np.array(["something blue", "a red one"]))  # the second one is known
        hits = engine.similar_to_text("red", 9, "texts", collapse=False)
        rows = {hit.object: hit.row for hit in hits if isinstance(hit.object, str)}
        assert rows == {"something blue": 0, "a red one": 1}
        engine.remove("texts", ["t0"])
    with transhash.SearchEngine.open(tmp_path / "run") as again:
        assert {(hit.row, hit.object) for hit in again.similar_to_text("red")} == {(None, None)}


def test_images_in_files_are_identified_by_their_path(tmp_path: Path) -> None:
    for name in COLORS:
        Image.fromarray(square(name, 1)).save(tmp_path / f"{name}.png")
        os.utime(tmp_path / f"{name}.png", (1e9, 1e9))
    paths = sorted(tmp_path.glob("*.png"))
    with transhash.fit(pairs(8), tmp_path, method="QCH", bits=16, concepts=False) as engine:
        hits = engine.similar_to_text("red", k=3)
        assert [(hit.row, hit.object) for hit in hits] == 3 * [(None, None)]
        engine.add_images(paths[1:])
        mixed = [*paths[1:], paths[0]]  # files that are not read again, then a new one
        engine.add_images(mixed)
        hits = [
            hit for hit in engine.similar_to_text("red", k=9, collapse=False) if hit.row is not None
        ]
        assert {hit.row: hit.object for hit in hits} == dict(enumerate(mixed))


def test_a_fit_into_an_indexed_run_keeps_its_model_unless_it_is_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "QCH", "bits": 8, "concepts": False}
    texts = ["a red one", "a blue one"]
    run = tmp_path / "run"
    transhash.fit(pairs(8), texts=texts, out=run, **options).close()
    config = (run / "config.json").read_bytes()
    transhash.fit(pairs(8), texts=texts, out=run, **options).close()  # rerun
    with pytest.raises(DataError, match="has an index of another model"):
        transhash.fit(pairs(12), texts=texts, out=run, **options)
    assert (run / "config.json").read_bytes() == config
    with transhash.SearchEngine.open(run) as again:
        assert len(again.similar_to_text("red", modality="texts")) == 2


def test_empty_cells_and_unreadable_images_are_skipped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "note.jpg").write_text("not an image")
    images = [*(square(name, 1) for name in COLORS), str(tmp_path / "note.jpg")]
    texts = pd.DataFrame({"text": ["a red one", float("nan"), None, "a blue one"]})
    with (
        caplog.at_level("WARNING"),
        transhash.fit(pairs(8), images, texts, method="QCH", bits=8, concepts=False) as engine,
    ):
        assert len(engine) == 5
    assert "note.jpg" in caplog.text
    assert caplog.text.count("Skipped") == 3


@pytest.mark.parametrize("query", ["", " \n"])
def test_an_empty_query_is_an_error(engine: Any, query: str) -> None:
    with pytest.raises(DataError, match="A query is empty"):
        engine.similar_to_text(query)


def test_all_public_names_can_be_completed() -> None:
    assert {"fit", "SearchEngine", "THN"} <= set(dir(transhash))
