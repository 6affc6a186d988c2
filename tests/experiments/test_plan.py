"""What a TOML file may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from transhash.errors import DataError
from transhash.experiments import Cell, read_plan
from transhash.experiments.plan import KEYS
from transhash.hashers import PAPER_METHODS

GOOD = 'benchmark = "folder"\nmethods = ["THN", "qch"]\nbits = [16, 32]\nseeds = [0, 1]\n'
BASELINES = {"kNN", "ridge"}
SHIPPED = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


def refusal(tmp_path: Path, content: str) -> str:
    (tmp_path / "plan.toml").write_text(content)
    with pytest.raises(DataError) as caught:
        read_plan(tmp_path / "plan.toml")
    return str(caught.value)


def test_cells_come_seed_by_seed_so_that_a_split_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(GOOD)
    plan = read_plan(tmp_path / "plan.toml")
    cells = list(plan.cells())
    assert cells[:3] == [Cell("THN", 16, 0), Cell("THN", 32, 0), Cell("QCH", 16, 0)]
    assert [cell.seed for cell in cells] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_every_method_is_tuned_with_the_same_budget_unless_the_file_says_otherwise(
    tmp_path: Path,
) -> None:
    for line, trials in (("", 8), ("tune = true", 8), ("tune = false", 0), ("tune = 3", 3)):
        (tmp_path / "plan.toml").write_text(GOOD + line)
        assert read_plan(tmp_path / "plan.toml").trials == trials


def test_an_unknown_key_is_refused_by_its_name_beside_the_known_ones(tmp_path: Path) -> None:
    told = refusal(tmp_path, GOOD + "epochs = 3\n")
    assert "'epochs'" in told
    assert all(key in told for key in KEYS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD.replace('"folder"', '"cifar"'), ["'cifar'", "imagenet-yahooqa"]),
        (GOOD.replace("qch", "XYZ"), ["'XYZ'", "DCMH"]),
        (GOOD.replace("[0, 1]", "[0, 0]"), ["seeds", "twice"]),
        (GOOD.replace("[0, 1]", "[]"), ["seeds", "list"]),
        (GOOD.replace("[0, 1]", "[-1]"), ["-1"]),
        (GOOD.replace("[16, 32]", "[12]"), ["multiple of 8", "12"]),
        (GOOD.replace("[16, 32]", '["16"]'), ["bits", "list"]),
        (GOOD.replace('benchmark = "folder"\n', ""), ["'benchmark'", "missing"]),
        (GOOD + "queries = 0\n", ["queries", "0"]),
        (GOOD + "tune = 0\n", ["tune", "0"]),
        (GOOD + "[settings.QCH]\nsteps_of_alternation = 3\n", ["QCH", "steps_of_alternation"]),
        (GOOD + "[settings.THN]\nbits = 3\n", ["bits", "own key"]),
        (GOOD + "[settings.NONE]\nx = 1\n", ["'NONE'"]),
        (GOOD + 'relation = "clicks"\n', ["relation", "'clicks'", "pairs"]),
        (GOOD + "text_features = 3\n", ["text_features", "3"]),
        (GOOD + "image_features = 3\n", ["image_features", "3"]),
        (GOOD + "image_components = 0\n", ["image_components", "0"]),
        (GOOD.replace("qch", "QCH@QCH") + "image_components = 9\n", ["image_components", "@"]),
        ("benchmark = ", ["not valid TOML"]),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_wrong(
    tmp_path: Path, content: str, words: list[str]
) -> None:
    told = refusal(tmp_path, content)
    assert "plan.toml" in told or "multiple of 8" in told
    assert all(word in told for word in words)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_file_can_be_read(file: Path) -> None:
    assert set(read_plan(file).methods) >= BASELINES  # the simplest thing stands in every table


def test_the_shipped_files_cover_the_papers_tables_and_figures() -> None:
    names = {file.stem for file in SHIPPED}
    assert names >= {
        "quick",
        "real",
        "full",
        "table1-nus-wide",
        "table1-imagenet-yahooqa",
        "table2-ablation",
        "figure-pr-nus-wide",
        "figure-pr-imagenet-yahooqa",
    }
    quick = read_plan(next(file for file in SHIPPED if file.stem == "quick"))
    assert set(quick.methods) == set(PAPER_METHODS) | BASELINES
    assert quick.bits == (8, 16, 24, 32)
