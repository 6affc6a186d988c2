"""A small run, and a client of the service that serves it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'transhash[serve]'")

from fastapi.testclient import TestClient

from transhash.search.engine import SearchEngine
from transhash.service import create_app

from .small_run import LOCAL, build_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.getbasetemp())


@pytest.fixture
def run_copy(run: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture(scope="session")
def engine(run: Path) -> Iterator[SearchEngine]:
    engine = SearchEngine.open(run)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def client(engine: SearchEngine) -> Iterator[TestClient]:
    with TestClient(create_app(engine), base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client
