from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from transhash.datasets.synthetic import make_synthetic

from .tiny import PLAN, run


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small matrices are slower with many threads, up to 100 times on a busy machine."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark folder with 72 synthetic images and texts in each part."""
    return make_synthetic(tmp_path_factory.mktemp("synthetic") / "tiny", per_class=6)


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plan") / "tiny.toml"
    file.write_text(PLAN)
    return file


@pytest.fixture(scope="session")
def finished(plan: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete experiment; tests must not write to it."""
    out = tmp_path_factory.mktemp("finished")
    run(plan, folder, out)
    return out
