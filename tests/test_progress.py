"""Progress in terminals and logs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from transhash import progress
from transhash.hashers import training_loop
from transhash.hashers.training_loop import TrainingLog
from transhash.progress import progress_bar


def test_a_log_gets_plain_lines_with_rate_and_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    assert list(progress_bar("abcd", "reading")) == list("abcd")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert "\x1b" not in err
    assert len(lines) == 4
    assert re.fullmatch(r"reading: 1 of 4, [\d,.]+/(s|min)(, \d+:\d\d:\d\d left)?", lines[0])
    assert re.fullmatch(r"reading: 4 of 4, [\d,.]+/(s|min), done in \d+:\d\d:\d\d", lines[-1])


def test_short_work_prints_one_line_and_no_work_prints_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 1e9)
    list(progress_bar(iter(range(500)), "counting"))
    list(progress_bar([], "nothing"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("counting: 500, ")


def test_a_resumed_run_excludes_earlier_work_from_the_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 5))  # five seconds per call
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(clock)))
    list(progress_bar(range(4), "steps", total=104, start=100))
    assert capsys.readouterr().err.splitlines() == [
        "steps: 102 of 104, 12.0/min, 0:00:10 left",
        "steps: 104 of 104, 9.6/min, done in 0:00:25",
    ]


def test_losses_are_flushed_to_disk_periodically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_loop, "_MAX_LOG_DELAY", 1e9)
    log = TrainingLog(tmp_path, 0)
    log.write(0, {"loss": torch.tensor(1.5)})
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    monkeypatch.setattr(training_loop, "_MAX_LOG_DELAY", 0.0)
    log.write(1, {"loss": torch.tensor(0.5)})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    log.close()
    assert list(map(json.loads, lines)) == [{"step": 0, "loss": 1.5}, {"step": 1, "loss": 0.5}]
