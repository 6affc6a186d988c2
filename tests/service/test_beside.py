"""Commands beside a service of the same run: it may be indexed while served, not fitted."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from training.feature_files import write_features

from scale.command import Command

from .served import Served
from .small_run import build_run

pytestmark = pytest.mark.slow


def test_what_is_indexed_beside_a_service_is_found_and_a_fit_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Path(shutil.copytree(build_run(tmp_path_factory.getbasetemp()), tmp_path / "run"))
    command = Command(capsys, monkeypatch)
    new = tmp_path / "new.csv"
    new.write_text("id,text\nbeside,a boat beside a boat\n")
    model = (run / "hasher.safetensors").read_bytes()
    question = {"q": "a boat beside a boat", "modality": "texts", "k": 60}
    with Served(run) as served, httpx.Client(base_url=served.url, timeout=30) as client:

        def found() -> set[str]:
            answer = client.get("/api/search/text", params=question)
            assert answer.status_code == 200, answer.text
            return {hit["id"] for hit in answer.json()["hits"]}

        before = found()
        assert "beside" not in before
        command("index", run, "--texts", new)
        assert found() == before | {"beside"}
        said = command.refused("fit", "cvh", *write_features(tmp_path / "data"), "--out", run)
        assert "has an index" in said
        assert found() == before | {"beside"}
    assert (run / "hasher.safetensors").read_bytes() == model
