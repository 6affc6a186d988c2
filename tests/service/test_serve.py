"""The real thing: a process that listens, says where, and stops when told."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from transhash.errors import DataError, EngineError
from transhash.service import serve_run
from transhash.service.diagnostics import presentable


def test_a_served_run_answers_and_ends_quietly(run: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "transhash", "serve", str(run), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert said is not None
        url = said[0]
        assert "<title>transhash</title>" in httpx.get(url).text
        found = httpx.get(f"{url}api/search/text", params={"q": "a boat"}).json()
        assert found["hits"]
        assert httpx.get(f"{url}ready", timeout=60).status_code == 200
        assert "server" not in httpx.get(url).headers
    finally:
        process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in complaints


def test_a_missing_run_is_said_first_and_a_taken_port_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DataError, match="no run is not a folder"):
            serve_run(tmp_path / "no run", port=port)
        with pytest.raises(DataError, match=r"config\.json is missing"):
            serve_run(tmp_path, port=port)
        (tmp_path / "config.json").write_text("{}")  # a model that could not be loaded
        with pytest.raises(EngineError, match="choose another with --port"):
            serve_run(tmp_path, port=port)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"map": None, "report": None, "results": None},
        {"map": [], "report": [], "results": {}},
        {"map": {"before": {}, "after": {}}, "report": {}, "results": [1, "x", {"a": 1}]},
        {"map": {"before": 1, "after": {"target_images": [[1], ["a", 2], None]}}},
    ],
)
def test_diagnostics_of_any_other_shape_count_as_missing(found: dict[str, object]) -> None:
    shown = presentable(found)
    assert shown.map is None
    assert shown.results == []


def test_of_a_verdict_the_sentences_are_shown_and_no_words_of_texts() -> None:
    verdict = {
        "said": ["Of 50 captions kept aside, 80% find their picture", 7],
        "warnings": ["the bridge has little to do with your texts"],
        "coverage": {"words": {"missing": ["secret"]}},
    }
    shown = presentable({"report": {"bits": 8, "verdict": verdict}})
    assert shown.report == {
        "bits": 8,
        "verdict": {"said": verdict["said"][:1], "warnings": verdict["warnings"]},
    }
    for strange in (None, [], {"said": "words"}):
        shown = presentable({"report": {"verdict": strange}})
        assert shown.report == {"verdict": {"said": [], "warnings": []}}


def test_numbers_that_json_cannot_carry_become_null() -> None:
    shown = presentable({"results": [{"method": "CVH", "chance": float("nan")}]})
    assert shown.results == [{"method": "CVH", "chance": None}]


def test_large_maps_are_thinned() -> None:
    group = {"target_images": [[float(i), 0.0] for i in range(10_000)]}
    shown = presentable({"before": group, "after": group})
    assert shown.map is not None
    assert 200 <= len(shown.map["after"]["target_images"]) <= 400
