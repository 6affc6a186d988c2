"""Plans in TOML: cells, defaults, errors and the shipped files."""

from __future__ import annotations

from pathlib import Path

import pytest

from transhash.errors import DataError
from transhash.experiments import MethodSpec, read_plan
from transhash.experiments.plan import KEYS
from transhash.hashers import PAPER_METHODS

GOOD = 'benchmark = "folder"\nmethods = ["THN", "qch"]\nbits = [16, 32]\nseeds = [0, 1]\n'
BASELINES = {"kNN", "ridge"}
SHIPPED = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


def read_error(tmp_path: Path, content: str) -> str:
    (tmp_path / "plan.toml").write_text(content)
    with pytest.raises(DataError) as caught:
        read_plan(tmp_path / "plan.toml")
    return str(caught.value)


def test_cells_come_seed_by_seed_so_that_a_split_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(GOOD)
    plan = read_plan(tmp_path / "plan.toml")
    cells = list(plan.cells())
    assert [str(cell) for cell in cells[:3]] == [
        "THN, 16 bits, seed 0", "THN, 32 bits, seed 0", "QCH, 16 bits, seed 0",
    ]  # fmt: skip
    assert [cell.seed for cell in cells] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_every_method_gets_the_same_number_of_tuning_trials(
    tmp_path: Path,
) -> None:
    for line, trials in (("", 8), ("tune = true", 8), ("tune = false", 0), ("tune = 3", 3)):
        (tmp_path / "plan.toml").write_text(GOOD + line)
        assert read_plan(tmp_path / "plan.toml").trials == trials


def test_an_unknown_key_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    error = read_error(tmp_path, GOOD + "epochs = 3\n")
    assert "'epochs'" in error
    assert all(key in error for key in KEYS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD.replace('"folder"', '"cifar"'), ["'cifar'", "imagenet-yahooqa"]),
        (GOOD.replace("qch", "XYZ"), ["'XYZ'", "DCMH"]),
        (GOOD.replace("[0, 1]", "[0, 0]"), ["seeds", "twice"]),
        (GOOD.replace("[0, 1]", "[]"), ["seeds must be", "list"]),
        (GOOD.replace("[0, 1]", "[-1]"), ["-1"]),
        (GOOD.replace("[16, 32]", "[12]"), ["multiple of 8", "12"]),
        (GOOD.replace("[16, 32]", '["16"]'), ["bits", "list"]),
        (GOOD.replace('benchmark = "folder"\n', ""), ["'benchmark'", "missing"]),
        (GOOD + "queries = 0\n", ["queries", "0"]),
        (GOOD + "tune = 0\n", ["tune", "0"]),
        (GOOD + "[settings.QCH]\nsteps_of_alternation = 3\n", ["QCH", "steps_of_alternation"]),
        (GOOD + "[settings.THN]\nbits = 3\n", ["bits", "top"]),
        (GOOD + "[settings.NONE]\nx = 1\n", ["'NONE'"]),
        (GOOD + 'supervision = "clicks"\n', ["supervision", "'clicks'", "pairs"]),
        (GOOD + "text_features = 3\n", ["text_features", "3"]),
        (GOOD + "image_features = 3\n", ["image_features", "3"]),
        (GOOD + "image_components = 0\n", ["image_components", "0"]),
        (GOOD.replace("qch", "QCH@QCH") + "image_components = 9\n", ["image_components", "@"]),
        ("benchmark = ", ["not valid TOML"]),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(
    tmp_path: Path, content: str, words: list[str]
) -> None:
    error = read_error(tmp_path, content)
    assert "plan.toml" in error
    assert all(word in error for word in words)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_file_can_be_read_and_has_the_simple_baselines(file: Path) -> None:
    assert {spec.method for spec in read_plan(file).methods} >= BASELINES


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
    assert {str(spec) for spec in quick.methods} == set(PAPER_METHODS) | BASELINES
    assert quick.bits == (8, 16, 24, 32)


@pytest.mark.parametrize(
    ("text", "spec", "label"),
    [
        ("thn", MethodSpec("THN"), "THN"),
        ("THN@thn", MethodSpec("THN", "THN"), "THN, fine-tuned"),
        (
            "qch+target@THN",
            MethodSpec("QCH+target", "THN"),
            "QCH + target data, on THN's fine-tuned backbone",
        ),
    ],
)
def test_a_method_is_parsed_with_its_teacher(text: str, spec: MethodSpec, label: str) -> None:
    assert MethodSpec.parse(text) == spec == MethodSpec.parse(str(spec))
    assert spec.label == label
