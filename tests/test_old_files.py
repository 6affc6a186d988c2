"""Runs, indexes and catalogs that commit 2163542 wrote stay readable, and mean what they meant.

tests/files-2163542: THN and QCH of 16 bits, fitted on features, encoded to *.npy and indexed by
that commit's own commands.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from transhash.data.manifest import read_images, read_texts
from transhash.errors import DataError, TranshashError
from transhash.model.encoder import Encoder, load
from transhash.search.catalog import MODALITIES, Modality
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run

FILES = Path(__file__).parent / "files-2163542"
METHODS = ("thn", "qch")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FILES, tmp_path / "old"))


def recorded(old: Path, method: str, modality: Modality) -> np.ndarray:
    codes: np.ndarray = np.load(old / f"{method}-{modality}.npy")
    return codes


@pytest.mark.parametrize("method", METHODS)
def test_an_old_model_gives_the_codes_it_gave(method: str, old: Path) -> None:
    encoder = Encoder.load(old / method)
    images = encoder.encode_images(read_images(old / "target-images.npy"))[0]
    texts = encoder.encode_texts(read_texts(old / "target-texts.npy"))
    assert np.array_equal(images.packed, recorded(old, method, "images"))
    assert np.array_equal(texts.packed, recorded(old, method, "texts"))


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_an_old_index_and_catalog_answer(method: str, writable: bool, old: Path) -> None:
    engine = SearchEngine.open(old / method, writable=writable)
    try:
        for modality in MODALITIES:
            codes = recorded(old, method, modality)
            ids, found = engine.indexes[modality].export()
            assert np.array_equal(found.packed[np.argsort(ids)], codes)
            for row in (0, 7, 30):
                hits = engine.similar_to_id(modality, str(row), len(codes), modality)
                distances = np.bitwise_count(codes ^ codes[row]).sum(axis=1)
                expected = sorted((int(d), i) for i, d in enumerate(distances) if i != row)
                assert [(hit.distance, int(hit.item.id)) for hit in hits] == expected
    finally:
        engine.close()


@pytest.mark.parametrize("method", METHODS)
def test_old_runs_are_whole_before_and_after_a_writer(method: str, old: Path) -> None:
    run = old / method
    assert verify_run(run) == []
    engine = SearchEngine.open(run, writable=True)
    engine.add_texts(read_texts(old / "target-texts.npy"))
    engine.close()
    assert verify_run(run) == []
    reader = SearchEngine.open(run)
    assert reader.similar_to_id("texts", "3", 5, "texts")
    reader.close()


def test_a_newer_model_is_refused_by_its_version(old: Path) -> None:
    path = old / "thn" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "version": 2, "transhash": "9.1"}))
    with pytest.raises(DataError, match=r"has format version 2, .* or install transhash 9\.1"):
        load(old / "thn")


def test_a_newer_hasher_alone_is_refused_by_its_version(old: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(old / "qch")
    encoder.hasher.save(tmp_path / "alone")
    path = tmp_path / "alone" / "config.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 7'))
    with pytest.raises(DataError, match="has format version 7"):
        load(tmp_path / "alone")


def test_a_newer_catalog_is_refused_by_its_version(old: Path) -> None:
    base = sqlite3.connect(old / "qch" / "catalog.sqlite")
    base.execute("PRAGMA user_version=4")
    base.close()
    with pytest.raises(DataError, match=r"catalog.sqlite has format version 4"):
        SearchEngine.open(old / "qch")


def test_a_newer_index_is_refused_by_its_version(old: Path) -> None:
    path = old / "qch" / "index" / "texts" / "index.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(TranshashError, match="version 99"):
        SearchEngine.open(old / "qch")
