"""The Milvus server of the tests marked `server`, one for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from milvus_server import MilvusServer


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
