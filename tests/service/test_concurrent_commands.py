"""Commands on a run that is being served: indexing and backups are allowed, fitting is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from scale.command import Command
from training.feature_files import write_features
from transhash.search.catalog import Catalog
from transhash.search.feedback import FeedbackStore
from transhash.search.verify import verify_run

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


def test_a_backup_of_a_writable_service_has_every_acknowledged_vote_and_text(
    run_copy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = Command(capsys, monkeypatch)
    headers = {"X-API-Key": "write-key"}
    with (
        ServerProcess(run_copy, "--writable", write_key="write-key") as server,
        httpx.Client(base_url=server.url, timeout=30, headers=headers) as client,
    ):
        hits = client.get("/api/search/text", params={"q": "a boat"}).json()["hits"]
        for number in range(3):
            vote = {"image": hits[number]["number"], "text": {"text": "a boat"}, "vote": 1}
            assert client.post("/api/votes", json=vote).status_code == 200
            text = {"text": f"a boat and {number} cats", "id": f"new-{number}"}
            assert client.post("/api/items/texts", json={"texts": [text]}).status_code == 201
            command("backup", run_copy, tmp_path / f"{number}.tar")
    for number in range(3):
        restored = tmp_path / f"restored-{number}"
        command("restore", tmp_path / f"{number}.tar", restored)
        assert verify_run(restored) == []
        assert len(FeedbackStore(restored).all()) == number + 1
        with Catalog(restored / "catalog.sqlite", read_only=True) as catalog:
            assert catalog.find("texts", f"new-{number}") is not None
            assert catalog.find("texts", f"new-{number + 1}") is None
