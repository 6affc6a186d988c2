"""Progress in terminals and logs."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from transhash import progress
from transhash.errors import DataError
from transhash.hashers import training_loop
from transhash.hashers.training_loop import TrainingLog
from transhash.progress import no_progress, phase, progress_bar, report_to, show_progress, tracked


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


def test_short_work_prints_nothing_and_longer_work_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = (i / 1000 for i in itertools.count())
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    list(progress_bar(iter(range(500)), "counting"))  # half a second
    list(progress_bar([], "nothing"))
    list(progress_bar(range(1), "one step"))
    assert capsys.readouterr().err == ""
    list(progress_bar(iter(range(2000)), "counting"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("counting: 2,000, ")


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


class Lines:
    """A standard error that can be waited on, because another thread writes to it."""

    def __init__(self) -> None:
        self.text, self._changed = "", threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            self.text += text
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def wait_for(self, pattern: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: re.search(pattern, self.text), 60), self.text


def collect_lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setenv("TRANSHASH_PROGRESS_SECONDS", "0.01")
    lines = Lines()
    monkeypatch.setattr(sys, "stderr", lines)
    return lines


def test_one_long_computation_prints_lines_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = collect_lines(monkeypatch)
    with show_progress("fit"):
        lines.wait_for(r"fit: 0:0\d:\d\d so far")
        with phase("canonical analysis"):
            lines.wait_for(r"canonical analysis: 0:0\d:\d\d so far")
        lines.wait_for(r"canonical analysis: done in 0:0\d:\d\d")
        for step in tracked(range(2), "rotation"):
            lines.wait_for(f"rotation: {step} of 2, ")
    assert "done in" in lines.text.splitlines()[-1]


def test_a_line_names_the_innermost_step_that_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = collect_lines(monkeypatch)
    for _ in progress_bar(range(3), "outer"):
        with report_to(progress_bar), phase("inner"):
            lines.wait_for("inner: ")
        break  # also an abandoned loop ends
    lines.text = ""
    with show_progress("next"):
        lines.wait_for("next: ")
    assert "outer" not in lines.text


def test_nothing_is_printed_without_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with show_progress("fit", False) as track, phase("reading"):
        assert track is no_progress
        assert list(tracked("ab", "letters")) == ["a", "b"]
        assert list(track("ab", "letters")) == ["a", "b"]
    with show_progress("fit", None) as track:  # standard error is a file here
        assert track is no_progress
    assert capfd.readouterr() == ("", "")
    with pytest.raises(DataError, match="progress is a function"):
        progress.choose_track(progress_bar)  # type: ignore[arg-type]


def test_results_on_a_pipe_are_complete_while_bars_are_on_a_terminal() -> None:
    program = """
import sys
from transhash.progress import *
with show_progress("all"):
    for i in progress_bar(range(3), "outer"):
        with phase("inner"):
            for _ in tracked(range(2), "innermost"):
                print("row", i, flush=True)
"""
    pty = pytest.importorskip("pty")  # not on Windows
    terminal, standard_error = pty.openpty()
    shown = b""

    def read() -> None:
        nonlocal shown
        with suppress(OSError):  # the other end was closed
            while part := os.read(terminal, 1 << 16):
                shown += part

    reader = threading.Thread(target=read)
    reader.start()
    result = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=standard_error, text=True
    )
    os.close(standard_error)
    reader.join(60)
    os.close(terminal)
    assert result.returncode == 0, shown
    assert result.stdout.split("\n") == [f"row {i}" for i in (0, 0, 1, 1, 2, 2)] + [""]
    assert b"outer" in shown
    assert b"3/3" in shown


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
