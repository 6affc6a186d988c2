"""Tests never touch the user's cache, and share the cores of the machine instead of fighting."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# One thread each, in the processes that tests start, too: threads of BLAS and torch wait for each
# other by spinning, and where several tests run at once they take ten times as long.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all processes of a run: image features are computed once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSHASH_CACHE", str(folder))
        yield folder
