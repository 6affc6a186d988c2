"""Rows on fine-tuned features: QCH@THN is QCH on a backbone that THN taught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from hashers.tiny_backbone import TinyBackbone
from transhash.errors import DataError
from transhash.experiments import read_plan, run_experiment
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
batch = 16
target_batch = 16

[fine_tune.QCH]
learning_rate = 0.01
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def run(file: Path, folder: Path, out: Path, jobs: int = 1) -> list[dict[str, object]]:
    quiet = Console(stderr=True, quiet=True)
    path = run_experiment(file, folder, out, jobs, console=quiet, features=TinyBackbone())
    return [json.loads(line) for line in path.open()]


def test_a_backbone_of_a_split_serves_every_method_and_length(
    file: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rows = run(file, folder, out)
    assert len(rows) == 12
    backbones = sorted(path.name for path in (out / "backbones").iterdir())
    assert backbones == ["QCH-0", "QCH-1"]
    record = json.loads((out / "backbones" / "QCH-1" / "tuning.json").read_text())
    assert (record["teacher"], record["settings"]["steps"], record["settings"]["seed"]) == (
        "QCH", 3, 1,
    )  # fmt: skip
    assert record["settings"]["learning_rate"] == 0.01
    assert record["taught"]["bits"] == 16
    maps = {(row["method"], row["bits"], row["seed"]): row["image_to_text_map"] for row in rows}
    assert maps["CVH", 16, 0] != maps["CVH@QCH", 16, 0]
    (tuned,) = [r for r in rows if (r["method"], r["bits"], r["seed"]) == ("QCH@QCH", 8, 0)]
    assert tuned["given_settings"]["fine_tune"]["steps"] == 3  # type: ignore[index]
    assert Summary.of(out).methods == ("CVH", "CVH@QCH", "QCH@QCH")
    # Nothing is run or tuned twice; another fine-tuning does not mix with this one's rows.
    written = (out / "backbones" / "QCH-0" / "backbone.safetensors").stat().st_mtime_ns
    file.write_text(PLAN.replace("bits = [8, 16]", "bits = [8, 16, 24]"))
    assert len(run(file, folder, out)) == 18
    assert (out / "backbones" / "QCH-0" / "backbone.safetensors").stat().st_mtime_ns == written
    file.write_text(PLAN.replace("steps = 3", "steps = 4"))
    with pytest.raises(DataError, match="give another --out, or ask for the same"):
        run(file, folder, out)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_backbone_that_fails_costs_its_own_rows_only(
    file: Path, folder: Path, tmp_path: Path, jobs: int
) -> None:
    out = tmp_path / "out"
    file.write_text(PLAN.replace("learning_rate = 0.01", "learning_rate = 1e30"))
    with pytest.raises(DataError, match="8 of 12 cells failed, first CVH@QCH, 8 bits, seed 0"):
        run(file, folder, out, jobs)
    rows = [json.loads(line) for line in (out / "results.jsonl").open()]
    assert {row["method"] for row in rows} == {"CVH"}
    assert len(rows) == 4
    assert len((out / "failures.jsonl").read_text().splitlines()) == 8


@pytest.mark.slow
def test_many_processes_find_the_same(file: Path, folder: Path, tmp_path: Path) -> None:
    alone, many = (run(file, folder, tmp_path / str(jobs), jobs) for jobs in (1, 2))

    def scores(rows: list[dict[str, object]]) -> dict[tuple[object, ...], object]:
        return {(r["method"], r["bits"], r["seed"]): r["text_to_image_map"] for r in rows}

    assert scores(alone) == scores(many)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("steps = 3", "stepps = 3"), "fine-tuning has no setting 'stepps'"),
        (("steps = 3", "steps = 0"), "steps takes a whole number of 1 or more, got 0"),
        (("[fine_tune.QCH]", "[fine_tune.THN]"), "has THN, but no method learns from such"),
        (("cvh@qch", "cvh@nobody"), "there is no method 'nobody'"),
        (("cvh@qch", "cvh@knn"), "kNN scores pairs and makes no codes"),
        (('"cvh@qch", "QCH@QCH"', '"QCH"'), "but no method learns from such features"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(
    file: Path, wrong: tuple[str, str], sentence: str
) -> None:
    file.write_text(PLAN.replace(*wrong))
    with pytest.raises(DataError, match=sentence):
        read_plan(file)
