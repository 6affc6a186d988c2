"""A small run, and a client of the service that serves it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'transhash[serve]'")

from fastapi.testclient import TestClient

from transhash.search.engine import SearchEngine
from transhash.service import create_app, warm_up

from .small_run import LOCAL, build_run


@pytest.fixture(autouse=True, scope="session")
def _wait_for_the_model() -> Iterator[None]:
    """Let requests wait for the model as long as a busy machine needs, instead of 5 seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_up, "_WAIT_SECONDS", 25.0)
        yield


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
