"""Commands on a run that is being served: indexing is allowed, fitting is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from scale.command import Command
from training.feature_files import write_features

from .server_process import ServerProcess
from .small_run import build_run

pytestmark = pytest.mark.slow


def test_a_served_run_can_be_indexed_but_not_fitted(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Path(shutil.copytree(build_run(tmp_path_factory.getbasetemp()), tmp_path / "run"))
    command = Command(capsys, monkeypatch)
    new = tmp_path / "new.csv"
    new.write_text("id,text\nnew,a boat near a boat\n")
    model = (run / "hasher.safetensors").read_bytes()
    query = {"q": "a boat near a boat", "modality": "texts", "k": 60}
    with ServerProcess(run) as server, httpx.Client(base_url=server.url, timeout=30) as client:

        def search() -> set[str]:
            reply = client.get("/api/search/text", params=query)
            assert reply.status_code == 200, reply.text
            return {hit["id"] for hit in reply.json()["hits"]}

        before = search()
        assert "new" not in before
        command("index", run, "--texts", new)
        assert search() == before | {"new"}
        message = command.refused("fit", "cvh", *write_features(tmp_path / "data"), "--out", run)
        assert "has an index" in message
        assert search() == before | {"new"}
    assert (run / "hasher.safetensors").read_bytes() == model
