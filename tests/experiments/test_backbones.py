"""Cells on fine-tuned features: QCH@THN is QCH on a backbone fine-tuned by THN."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from hashers.tiny_backbone import TinyBackbone
from transhash.errors import DataError
from transhash.experiments import Cell, read_plan, run_experiment
from transhash.experiments.results import Row, row_cell
from transhash.report.summary import Summary

PLAN = """
benchmark = "folder"
methods = ["CVH", "cvh@qch", "QCH@QCH"]
bits = [8, 16]
seeds = [0, 1]
tune = false

[fine_tune]
bits = 16
steps = 3
batch_size = 16
target_batch_size = 16

[fine_tune.QCH]
learning_rate = 0.01
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def run(file: Path, folder: Path, out: Path, jobs: int = 1) -> list[Row]:
    quiet = Console(stderr=True, quiet=True)
    path = run_experiment(file, folder, out, jobs, console=quiet, features=TinyBackbone())
    return [json.loads(line) for line in path.open()]


def test_one_backbone_per_split_serves_every_method_and_length(
    file: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rows = run(file, folder, out)
    assert len(rows) == 12
    backbones = sorted(path.name for path in (out / "backbones").iterdir())
    assert backbones == ["QCH-0", "QCH-1"]
    record = json.loads((out / "backbones" / "QCH-1" / "fine_tuning.json").read_text())
    assert (record["teacher"], record["settings"]["steps"], record["settings"]["seed"]) == (
        "QCH", 3, 1,
    )  # fmt: skip
    assert record["settings"]["learning_rate"] == 0.01
    assert record["teacher_settings"]["bits"] == 16
    by_cell = {row_cell(row): row for row in rows}
    frozen, tuned = by_cell[Cell("CVH", None, 16, 0)], by_cell[Cell("CVH", "QCH", 16, 0)]
    assert frozen["image_to_text_map"] != tuned["image_to_text_map"]
    assert tuned["plan_settings"]["fine_tune"]["steps"] == 3
    assert list(map(str, Summary.read(out).methods)) == ["CVH", "CVH@QCH", "QCH@QCH"]
    # Nothing is run or fine-tuned twice; other fine-tuning settings do not mix with these rows.
    written = (out / "backbones" / "QCH-0" / "backbone.safetensors").stat().st_mtime_ns
    file.write_text(PLAN.replace("bits = [8, 16]", "bits = [8, 16, 24]"))
    assert len(run(file, folder, out)) == 18
    assert (out / "backbones" / "QCH-0" / "backbone.safetensors").stat().st_mtime_ns == written
    file.write_text(PLAN.replace("steps = 3", "steps = 4"))
    with pytest.raises(DataError, match="another --out"):
        run(file, folder, out)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failed_backbone_affects_only_its_own_cells(
    file: Path, folder: Path, tmp_path: Path, jobs: int
) -> None:
    out = tmp_path / "out"
    file.write_text(PLAN.replace("learning_rate = 0.01", "learning_rate = 1e30"))
    with pytest.raises(DataError, match="8 of 12 cells failed, first CVH@QCH, 8 bits, seed 0"):
        run(file, folder, out, jobs)
    rows = [json.loads(line) for line in (out / "results.jsonl").open()]
    assert {(row["method"], row["teacher"]) for row in rows} == {("CVH", None)}
    assert len(rows) == 4
    assert len((out / "failures.jsonl").read_text().splitlines()) == 8


@pytest.mark.slow
def test_two_processes_give_the_same_scores(file: Path, folder: Path, tmp_path: Path) -> None:
    one, two = (run(file, folder, tmp_path / str(jobs), jobs) for jobs in (1, 2))
    maps = [{row_cell(row): row["text_to_image_map"] for row in rows} for rows in (one, two)]
    assert maps[0] == maps[1]


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (("steps = 3", "stepps = 3"), "no setting 'stepps'"),
        (("steps = 3", "steps = 0"), "steps must be"),
        (("[fine_tune.QCH]", "[fine_tune.THN]"), "THN@THN"),
        (("cvh@qch", "cvh@nobody"), "'nobody'"),
        (("cvh@qch", "cvh@knn"), "kNN produces no codes"),
        (('"cvh@qch", "QCH@QCH"', '"QCH"'), "No method uses"),
    ],
)
def test_a_wrong_fine_tuning_table_is_rejected(
    file: Path, change: tuple[str, str], phrase: str
) -> None:
    file.write_text(PLAN.replace(*change))
    with pytest.raises(DataError, match=phrase):
        read_plan(file)
