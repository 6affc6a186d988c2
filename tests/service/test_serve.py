"""`transhash serve` as a process, and the diagnostics it shows."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from transhash.errors import DataError, EngineError
from transhash.service import serve_run
from transhash.service.diagnostics import read_diagnostics
from transhash.service.schemas import Diagnostics

from .server_process import wait_until_ready


def test_a_served_run_replies_and_stops_cleanly(run: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "transhash", "serve", str(run), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        link = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert link is not None
        url = link[0]
        page = httpx.get(url, timeout=60)
        assert "<title>transhash</title>" in page.text
        assert "server" not in page.headers
        wait_until_ready(url)
        found = httpx.get(f"{url}api/search/text", params={"q": "a boat"}, timeout=60)
        assert found.json()["hits"]
    finally:
        for _ in range(2):  # the second of an impatient user
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in stderr


def test_a_missing_run_is_reported_before_a_port_in_use_and_that_before_loading_the_model(
    tmp_path: Path,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DataError, match="not a run folder"):
            serve_run(tmp_path / "no run", port=port)
        with pytest.raises(DataError, match=r"config\.json"):
            serve_run(tmp_path, port=port)
        (tmp_path / "config.json").write_text("{}")  # a model that could not be loaded
        with pytest.raises(EngineError, match="--port"):
            serve_run(tmp_path, port=port)


def diagnostics_of(run: Path, **files: object) -> Diagnostics:
    for name, content in files.items():
        (run / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return read_diagnostics(run)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"diagnostics": None, "report": None, "results": None},
        {"diagnostics": [], "report": [], "results": {}},
        {"diagnostics": {"before": {}, "after": {}}, "report": {}, "results": [1, "x", {"a": 1}]},
        {"diagnostics": {"before": 1, "after": {"target_images": [[1], ["a", 2], None]}}},
    ],
)
def test_malformed_diagnostics_are_left_out(tmp_path: Path, files: dict[str, object]) -> None:
    diagnostics = diagnostics_of(tmp_path, **files)
    assert diagnostics.map is None
    assert diagnostics.report is None
    assert diagnostics.results == []


def test_of_a_validation_only_the_sentences_are_shown(tmp_path: Path) -> None:
    validation = {
        "summary": ["Validation on 50 held-out captions: precision@10 THN 71%.", 7],
        "warnings": ["The auxiliary set does not cover your texts."],
        "coverage": {"words": {"missing_words": ["secret"]}},
    }
    diagnostics = diagnostics_of(tmp_path, report={"bits": 8, "validation": validation})
    messages = {"summary": validation["summary"][:1], "warnings": validation["warnings"]}  # type: ignore[index]
    assert diagnostics.report == {"bits": 8, "validation": messages}
    for malformed in (None, [], {"summary": "words"}):
        diagnostics = diagnostics_of(tmp_path, report={"validation": malformed})
        assert diagnostics.report == {"validation": {"summary": [], "warnings": []}}


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    rows = [{"method": "CVH", "chance": float("nan")}]
    diagnostics = diagnostics_of(tmp_path, results=rows)
    assert diagnostics.results == [{"method": "CVH", "chance": None}]


def test_large_maps_are_thinned(tmp_path: Path) -> None:
    group = {"target_images": [[float(i), 0.0] for i in range(10_000)]}
    diagnostics = diagnostics_of(tmp_path, diagnostics={"before": group, "after": group})
    assert diagnostics.map is not None
    assert 200 <= len(diagnostics.map["after"]["target_images"]) <= 400
