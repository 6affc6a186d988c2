"""Settings are checked against the annotations of their fields."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from transhash.cli import main
from transhash.cli.fit import parse_settings
from transhash.errors import DataError
from transhash.experiments import read_plan
from transhash.hashers import METHODS, find_method, make_hasher
from transhash.hashers.methods import Method
from transhash.hashers.settings import (
    MinLength,
    NonNegative,
    Positive,
    PositiveInt,
    Proportion,
    ProportionBelowOne,
    Range,
    check_settings,
)

every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@dataclass
class Knobs:
    """One setting of every type."""

    word: Literal["left", "right", "both"] = "left"
    share: ProportionBelowOne = 0.5
    weight: NonNegative = 1.0
    count: PositiveInt = 3
    any_number: float = -1.0
    between: Annotated[float, Range(1, 5, exclusive_low=True)] = 2.0
    flag: bool = True
    rank: PositiveInt | None = None
    text: str = "a"
    widths: Annotated[tuple[Positive, ...], MinLength(1)] = (1.0,)
    layers: tuple[PositiveInt, ...] = ()
    portion: Proportion = 1.0

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("word", "up", "word must be left, right or both, got 'up'"),
        ("word", None, "word must be left, right or both, got None"),
        ("word", ["left"], "word must be left, right or both, got ['left']"),
        ("share", 2, "share must be a number from 0 to below 1, got 2"),
        ("share", 1.0, "share must be a number from 0 to below 1, got 1.0"),
        ("share", -0.001, "share must be a number from 0 to below 1, got -0.001"),
        ("portion", 1.001, "portion must be a number from 0 to 1, got 1.001"),
        ("weight", -1, "weight must be a number of 0 or more, got -1"),
        ("weight", "1", "weight must be a number of 0 or more, got '1'"),
        ("weight", True, "weight must be a number of 0 or more, got True"),
        ("weight", math.nan, "weight must be a number of 0 or more, got nan"),
        ("any_number", math.inf, "any_number must be a number, got inf"),
        ("any_number", -math.inf, "any_number must be a number, got -inf"),
        ("any_number", None, "any_number must be a number, got None"),
        ("between", 1, "between must be a number above 1 to 5, got 1"),
        ("count", 0, "count must be an integer of 1 or more, got 0"),
        ("count", 2.5, "count must be an integer of 1 or more, got 2.5"),
        ("count", math.inf, "count must be an integer of 1 or more, got inf"),
        ("count", np.float64("nan"), "count must be an integer of 1 or more, got"),
        ("count", np.True_, "count must be an integer of 1 or more, got"),
        ("count", [3], "count must be an integer of 1 or more, got [3]"),
        ("flag", 1, "flag must be true or false, got 1"),
        ("flag", "true", "flag must be true or false, got 'true'"),
        ("rank", 0, "rank must be an integer of 1 or more, or null (None), got 0"),
        ("rank", "abc", "rank must be an integer of 1 or more, or null (None), got 'abc'"),
        ("text", 5, "text must be a string, got 5"),
        ("widths", "x", "widths must be a list of numbers above 0, at least 1 of them, got 'x'"),
        ("widths", [], "widths must be a list of numbers above 0, at least 1 of them, got []"),
        (
            "widths",
            [1, 0],
            "widths must be a list of numbers above 0, at least 1 of them, got [1, 0]",
        ),
        (
            "widths",
            [[1]],
            "widths must be a list of numbers above 0, at least 1 of them, got [[1]]",
        ),
        ("widths", 1, "widths must be a list of numbers above 0, at least 1 of them, got 1"),
        ("weight", 10**400, "weight must be a number of 0 or more, got 1000"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    name: str, value: Any, sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        Knobs(**{name: value})
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 200


def test_a_number_too_long_to_print_is_refused() -> None:
    with pytest.raises(DataError, match="too long to print"):
        Knobs(count=10**9999)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", np.int64(32), 32),
        ("count", 1e3, 1000),
        ("share", 0, 0.0),
        ("share", np.float32(0.25), 0.25),
        ("flag", np.False_, False),
        ("rank", None, None),
        ("rank", np.uint8(7), 7),
        ("text", Path("weights.pth"), "weights.pth"),
        ("widths", [1, 2], (1.0, 2.0)),
        ("widths", np.array([0.5, 4.0]), (0.5, 4.0)),
        ("layers", [64, 32.0], (64, 32)),
        ("between", 5, 5.0),
        ("portion", 1, 1.0),
    ],
)
def test_equivalent_values_are_converted(name: str, value: Any, expected: Any) -> None:
    result = getattr(Knobs(**{name: value}), name)
    assert result == expected
    assert type(result) is type(expected)
    if isinstance(expected, tuple):
        assert [type(item) for item in result] == [type(item) for item in expected]


@every_method
def test_every_setting_of_every_method_is_checked(method: Method) -> None:
    """No setting accepts NaN, infinity or an object."""
    for one in fields(method.hasher_class):
        for value in (math.nan, math.inf, -math.inf, object(), {}, [math.nan]):
            with pytest.raises(DataError, match=f"^{one.name} must be "):
                method.hasher_class(**{one.name: value})


@every_method
def test_no_number_of_a_method_accepts_true(method: Method) -> None:
    for one in fields(method.hasher_class):
        if isinstance(one.default, int | float) and not isinstance(one.default, bool):
            with pytest.raises(DataError, match=f"^{one.name} must be an? "):
                method.hasher_class(**{one.name: True})


@every_method
def test_candidates_and_copies_pass_the_checks(method: Method) -> None:
    learner = method.make({})
    assert replace(learner) == learner
    for setting in learner.candidates():
        assert replace(learner, **setting).settings() == {**learner.settings(), **setting}


REFUSED = [
    ("THN", "loss=ip", "loss must be cross-entropy or inner-product, got 'ip'"),
    ("THN", "lr_schedule=linear", "lr_schedule must be inv, step, cosine or fixed, got 'linear'"),
    ("THN", "optimizer=rmsprop", "optimizer must be sgd or adam, got 'rmsprop'"),
    ("THN", "image_hidden=[256,0]", "image_hidden must be a list of integers of 1 or more"),
    ("THN", "text_hidden=64", "text_hidden must be a list of integers of 1 or more, got 64"),
    ("THN", "dropout=2", "dropout must be a number from 0 to below 1, got 2"),
    ("THN", "rank=abc", "rank must be an integer of 1 or more, or null (None), got 'abc'"),
    ("THN", "kernel_widths=x", "kernel_widths must be a list of numbers above 0"),
    ("THN", "seed=-1", "seed must be an integer from 0 to 4294967295, got -1"),
    ("THN", "steps=1e9999", "steps must be an integer of 0 or more, got inf"),
    ("THN", "batch_size=0", "batch_size must be an integer of 1 or more, got 0"),
    ("THN", "name=x", "THN has no setting 'name'"),
    ("THN-D", "alignment_weight=1", "THN-D is THN with alignment_weight = 0.0"),
    ("DCMH", "precision=half", "precision must be float32 or bfloat16, got 'half'"),
    ("DCMH", "device=tpu", "device must be cpu or cuda, got 'tpu'"),
    ("HTH", "shape=1", "shape must be a number above 1, got 1"),
    ("QCH", "iterations=" + "9" * 5000, "iterations must be an integer of 0 or more, got '999"),
    ("QCH", "ridge=" + "[" * 100_000, "ridge must be a number of 0 or more, got '[[["),
]


@pytest.mark.parametrize(
    ("method", "pair", "sentence"), REFUSED, ids=[p[:20] for _, p, _ in REFUSED]
)
def test_invalid_settings_are_refused(method: str, pair: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        make_hasher(method, **parse_settings([pair]))
    assert sentence in str(caught.value)


def test_an_experiment_file_with_invalid_settings_is_refused(tmp_path: Path) -> None:
    start = 'benchmark = "folder"\nmethods = ["THN"]\nbits = [16]\nseeds = [0]\n[settings.THN]\n'
    for line, sentence in (
        ('loss = "ip"', "loss must be cross-entropy or inner-product, got 'ip'"),
        ("dropout = nan", "dropout must be a number from 0 to below 1, got nan"),
        ("kernel_widths = 4", "kernel_widths must be a list"),
    ):
        (tmp_path / "plan.toml").write_text(start + line)
        with pytest.raises(DataError) as caught:
            read_plan(tmp_path / "plan.toml")
        assert "plan.toml: [settings.THN]: " + sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["thn", "--set", "loss=ip"], "loss must be cross-entropy or inner-product, got 'ip'"),
        (["knn"], "kNN produces no codes"),
        (["thm"], "Unknown method 'thm'"),
    ],
)
def test_the_command_line_exits_with_2_and_one_line(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["transhash", "fit", *words, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_papers_recipe_can_be_changed_but_an_ablation_cannot() -> None:
    recipe = find_method("thn-paper")
    assert recipe.make({}).settings()["lr_schedule"] == "inv"
    assert recipe.make({"lr_schedule": "step"}).settings()["lr_schedule"] == "step"
    ablation = find_method("THN-ip")
    assert ablation.make({"loss": "inner-product"}) == ablation.make({})  # as a saved run gives it
    with pytest.raises(DataError, match="cross-entropy"):
        ablation.make({"loss": "cross-entropy"})
