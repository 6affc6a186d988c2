"""Keep tests away from the user's cache, and give each process one thread."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Also in the processes that tests start: threads of BLAS and torch wait for each other by
# spinning, so several tests in parallel would take ten times as long.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Share one cache among all processes of a test run: features are computed once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSHASH_CACHE", str(folder))
        yield folder
