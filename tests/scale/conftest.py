"""A small run that all tests here encode with, and the Milvus server of those marked `server`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from milvus_server import TOKEN, MilvusServer, NoFence, fence

from transhash.data.manifest import read_images, read_texts
from transhash.datasets.synthetic import make_synthetic
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.search.engine import SearchEngine
from transhash.training.fit import InputPaths, fit_files, read_fit_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("drawn"), per_class=3)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """CVH on drawn things, its images and texts indexed."""
    folder = tmp_path_factory.mktemp("runs") / "cvh"
    sources = InputPaths(
        auxiliary=data / "auxiliary.tsv", images=data / "images.tsv", texts=data / "texts.tsv"
    )
    features = image_features("efficientnet-lite0")
    fit_files(make_hasher("CVH", bits=16), "CVH", read_fit_data(sources), folder, features)
    engine = SearchEngine.open(folder, writable=True)
    engine.add_images(read_images(data / "images.tsv"))
    engine.add_texts(read_texts(data / "texts.tsv"))
    engine.close()
    return folder


@pytest.fixture(scope="session")
def new_server(
    pytestconfig: pytest.Config,
) -> Callable[[], AbstractContextManager[MilvusServer]]:
    pytest.importorskip(
        "milvus", reason="needs the server's wheel: pip install --no-deps milvus==2.3.5"
    )
    try:
        fenced = fence()
    except NoFence as error:
        pytest.skip(
            "a Milvus server listens on every interface and nothing here keeps it in "
            f"({error}); allow user namespaces, or run as root"
        )
    programs = Path(pytestconfig.cache.mkdir("milvus-server"))

    @contextmanager
    def started() -> Iterator[MilvusServer]:
        with tempfile.TemporaryDirectory(prefix="milvus-") as folder:
            running = MilvusServer(Path(folder), programs, fenced)
            try:
                running.start()
                yield running
            finally:
                running.close()

    return started


@pytest.fixture(scope="session")
def server(
    new_server: Callable[[], AbstractContextManager[MilvusServer]],
) -> Iterator[MilvusServer]:
    with new_server() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILVUS_TOKEN", TOKEN)
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """A failed test shows what the server said."""
    report = yield
    running = getattr(item, "funcargs", {}).get("server")
    if report.failed and running is not None:
        report.sections.append(("Milvus server", running.log()))
    return report
