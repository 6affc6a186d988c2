"""Experiments: complete, interrupted, extended, and in two processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transhash.errors import DataError, EngineError
from transhash.experiments import read_results
from transhash.storage import WriterLock

from .tiny import PLAN, run


def scores(out: Path) -> dict[tuple[str, int, int], tuple[float, float]]:
    rows = read_results(out)
    scores = {
        (row["method"], row["bits"], row["seed"]): (
            row["image_to_text_map"],
            row["text_to_image_map"],
        )
        for row in rows
    }
    assert len(scores) == len(rows), "a cell occurs twice"
    return scores


def test_a_row_describes_its_cell(finished: Path) -> None:
    row = read_results(finished)[-1]
    assert (row["benchmark"], row["bits"], row["seed"]) == ("tiny", 16, 1)
    assert (row["method"], row["teacher"]) == ("QCH", None)
    assert 0 < row["image_to_text_map"] <= 1
    assert 0.05 < row["image_to_text_chance"] < 0.2
    assert 0.05 < row["text_to_image_chance"] < 0.2
    assert row["settings"]["bits"] == 16
    assert row["settings"]["seed"] == 1
    assert len(row["trials"]) == 2
    assert row["chosen_trial"] in (0, 1)
    assert max(row["trials"], key=lambda trial: trial["held_out_map"])["held_out_map"] == (
        pytest.approx(sum(row["held_out_map"]) / 2, abs=1e-5)
    )
    assert len(row["image_to_text"]["pr_by_rank"]) == 101
    assert row["image_to_text"]["pr_by_radius"][-1][0] == 16
    assert "10" in row["text_to_image"]["precision_at"]
    assert 0 < row["training_seconds"] <= row["tuning_seconds"]
    assert row["encode_seconds"] >= 0
    assert 1 <= row["distinct_codes"]["images"] <= 72
    assert 0 <= row["bit_balance"][0] <= row["bit_balance"][1] <= 1
    assert row["items"]["query_images"] == row["sizes"]["queries"]
    assert {"version", "python", "torch", "mmd", "settings_hash"} <= set(row)


def test_methods_are_better_than_chance_even_on_thumbnails(finished: Path) -> None:
    rows = [row for row in read_results(finished) if row["bits"] == 8]
    gain = [row["text_to_image_map"] - row["text_to_image_chance"] for row in rows]
    assert sum(gain) / len(gain) > 0.01


def test_an_experiment_cut_in_the_middle_of_a_line_resumes(
    finished: Path, plan: Path, folder: Path, tmp_path: Path
) -> None:
    lines = (finished / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][: len(lines[5]) // 2])
    run(plan, folder, tmp_path)
    assert scores(tmp_path) == scores(finished)
    # Cells finished before the cut were not run again.
    assert (tmp_path / "results.jsonl").read_bytes().startswith(b"".join(lines[:5]))


def test_a_finished_experiment_is_not_run_again(finished: Path, plan: Path, folder: Path) -> None:
    before = (finished / "results.jsonl").read_bytes()
    run(plan, folder, finished)
    assert (finished / "results.jsonl").read_bytes() == before


def test_a_killed_experiment_leaves_no_processes_and_resumes(
    finished: Path, plan: Path, folder: Path, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("tiny.py")
    command = [sys.executable, str(script), str(plan), str(folder), str(tmp_path), "2"]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    process = subprocess.Popen(command, env={**os.environ, **one_thread})
    try:
        deadline = time.monotonic() + 300
        while not read_results(tmp_path):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = children(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 1 <= len(read_results(tmp_path)) < 8
    run(plan, folder, tmp_path)
    assert scores(tmp_path).keys() == scores(finished).keys()
    for cell, score in scores(tmp_path).items():  # one thread per process may round differently
        assert score == pytest.approx(scores(finished)[cell], abs=0.02)
    assert len(workers) >= 2
    while any(map(running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    if not path.exists():
        pytest.skip("needs Linux's /proc")
    return [int(child) for child in path.read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_methods_can_be_added_but_conditions_cannot_change(
    finished: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    wider = tmp_path / "plan.toml"
    wider.write_text(PLAN.replace('["CVH", "QCH"]', '["CVH", "QCH", "IMH"]'))
    run(wider, folder, out)
    assert len(scores(out)) == 12
    for change in ("queries = 10\n", "[settings.CVH]\nridge = 0.5\n"):
        wider.write_text(PLAN + change)
        with pytest.raises(DataError, match="another --out"):
            run(wider, folder, out)
    wider.write_text(PLAN.replace("tune = 2", "tune = 3"))
    with pytest.raises(DataError, match="tune = 2"):
        run(wider, folder, out)


def test_a_failed_cell_does_not_affect_other_cells(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    # 96 thumbnail features cannot give 128 bits of CVH.
    file.write_text(PLAN.replace("[8, 16]", "[128, 8]").replace("[0, 1]", "[0]"))
    with pytest.raises(DataError, match="CVH, 128 bits"):
        run(file, folder, tmp_path / "run")
    assert ("CVH", 8, 0) in scores(tmp_path / "run")
    assert ("QCH", 8, 0) in scores(tmp_path / "run")
    failure = json.loads((tmp_path / "run" / "failures.jsonl").read_text().splitlines()[0])
    assert (failure["method"], failure["bits"]) == ("CVH", 128)


def test_a_cell_without_tuning_has_no_trials(folder: Path, tmp_path: Path) -> None:
    out, small = tmp_path / "run", tmp_path / "plan.toml"
    small.write_text(PLAN.replace("[0, 1]", "[0]").replace("tune = 2", "tune = false"))
    run(small, folder, out)
    assert len(scores(out)) == 4
    row = read_results(out)[0]
    assert row["trials"] == []
    assert row["tuning_seconds"] == 0
    assert len(row["held_out_map"]) == 2


def test_one_folder_cannot_have_two_writers(plan: Path, folder: Path, tmp_path: Path) -> None:
    lock = WriterLock(tmp_path)
    try:
        with pytest.raises(EngineError, match="locked by process"):
            run(plan, folder, tmp_path)
    finally:
        lock.release()


def test_an_invalid_line_is_an_error_that_names_it(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(lines[0] + b"{oops\n" + lines[1])
    with pytest.raises(DataError, match="line 2"):
        read_results(tmp_path)
