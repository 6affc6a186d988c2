"""A small run for all tests here, and a Milvus server for those marked `server`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from milvus_server import TOKEN, MilvusServer, NoIsolation, isolation_command

from transhash.data.manifest import read_images, read_texts
from transhash.datasets.synthetic import make_synthetic
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.search.engine import SearchEngine
from transhash.training.fit import Fit
from transhash.training.fit_data import read_fit_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("synthetic"), per_class=3)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """CVH on synthetic data, its images and texts indexed."""
    folder = tmp_path_factory.mktemp("runs") / "cvh"
    inputs = read_fit_data(data / "auxiliary.tsv", data / "images.tsv", data / "texts.tsv")
    features = image_features("efficientnet-lite0")
    Fit(make_hasher("CVH", bits=16), "CVH", folder, features).run_files(inputs)
    with SearchEngine.open(folder, writable=True) as engine:
        engine.add_images(read_images(data / "images.tsv"))
        engine.add_texts(read_texts(data / "texts.tsv"))
    return folder


@pytest.fixture(scope="session")
def new_server(
    pytestconfig: pytest.Config,
) -> Callable[[], AbstractContextManager[MilvusServer]]:
    pytest.importorskip(
        "milvus", reason="needs the server's wheel: pip install --no-deps milvus==2.3.5"
    )
    try:
        isolation = isolation_command()
    except NoIsolation as error:
        pytest.skip(
            f"cannot isolate a Milvus server, which listens on every interface ({error}); "
            "allow user namespaces, or run as root"
        )
    programs = Path(pytestconfig.cache.mkdir("milvus-server"))

    @contextmanager
    def started() -> Iterator[MilvusServer]:
        with tempfile.TemporaryDirectory(prefix="milvus-") as folder:
            running = MilvusServer(Path(folder), programs, isolation)
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
    """Add the log of the server to the report of a failed test."""
    report = yield
    running = getattr(item, "funcargs", {}).get("server")
    if report.failed and running is not None:
        report.sections.append(("Milvus server", running.log()))
    return report
