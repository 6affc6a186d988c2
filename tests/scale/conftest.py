"""A small run that all tests here encode with, and the Milvus server of those marked `server`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from milvus_server import MilvusServer

from transhash.data.drawn import draw_dataset
from transhash.data.manifest import read_images, read_texts
from transhash.features.image import image_features
from transhash.fitting import Sources, fit_files, read_sources
from transhash.hashers import make_hasher
from transhash.search import SearchEngine


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_dataset(tmp_path_factory.mktemp("drawn"), per_class=3)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """CVH on drawn things, its images and texts indexed."""
    folder = tmp_path_factory.mktemp("runs") / "cvh"
    sources = Sources(
        auxiliary=data / "auxiliary.tsv", images=data / "images.tsv", texts=data / "texts.tsv"
    )
    features = image_features("efficientnet-lite0")
    fit_files(make_hasher("CVH", bits=16), "CVH", read_sources(sources), folder, features)
    engine = SearchEngine.open(folder, writable=True)
    engine.add_images(read_images(data / "images.tsv"))
    engine.add_texts(read_texts(data / "texts.tsv"))
    engine.close()
    return folder


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[MilvusServer]:
    pytest.importorskip(
        "milvus", reason="needs the server's wheel: pip install --no-deps milvus==2.3.5"
    )
    programs = Path(pytestconfig.cache.mkdir("milvus-server"))
    running = MilvusServer(tmp_path_factory.mktemp("server"), programs)
    running.start()
    yield running
    running.kill()
