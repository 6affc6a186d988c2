"""Settings refuse: what a field's annotation says is what it takes, from everywhere alike."""

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
    """One of every kind of setting."""

    word: Literal["left", "right", "both"] = "left"
    share: ProportionBelowOne = 0.5
    weight: NonNegative = 1.0
    count: PositiveInt = 3
    any_number: float = -1.0
    between: Annotated[float, Range(1, 5, above=True)] = 2.0
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
        ("word", "up", "word takes left, right or both, got 'up'"),
        ("word", None, "word takes left, right or both, got None"),
        ("word", ["left"], "word takes left, right or both, got ['left']"),
        ("share", 2, "share takes a number from 0 to below 1, got 2"),
        ("share", 1.0, "share takes a number from 0 to below 1, got 1.0"),
        ("share", -0.001, "share takes a number from 0 to below 1, got -0.001"),
        ("portion", 1.001, "portion takes a number from 0 to 1, got 1.001"),
        ("weight", -1, "weight takes a number of 0 or more, got -1"),
        ("weight", "1", "weight takes a number of 0 or more, got '1'"),
        ("weight", True, "weight takes a number of 0 or more, got True"),
        ("weight", math.nan, "weight takes a number of 0 or more, got nan"),
        ("any_number", math.inf, "any_number takes a number, got inf"),
        ("any_number", -math.inf, "any_number takes a number, got -inf"),
        ("any_number", None, "any_number takes a number, got None"),
        ("between", 1, "between takes a number above 1 to 5, got 1"),
        ("count", 0, "count takes a whole number of 1 or more, got 0"),
        ("count", 2.5, "count takes a whole number of 1 or more, got 2.5"),
        ("count", math.inf, "count takes a whole number of 1 or more, got inf"),
        ("count", np.float64("nan"), "count takes a whole number of 1 or more, got"),
        ("count", np.True_, "count takes a whole number of 1 or more, got"),
        ("count", [3], "count takes a whole number of 1 or more, got [3]"),
        ("flag", 1, "flag takes true or false, got 1"),
        ("flag", "true", "flag takes true or false, got 'true'"),
        ("rank", 0, "rank takes a whole number of 1 or more, or null (None), got 0"),
        ("rank", "abc", "rank takes a whole number of 1 or more, or null (None), got 'abc'"),
        ("text", 5, "text takes a text, got 5"),
        ("widths", "x", "widths takes a list of numbers above 0, 1 or more of them, got 'x'"),
        ("widths", [], "widths takes a list of numbers above 0, 1 or more of them, got []"),
        ("widths", [1, 0], "widths takes a list of numbers above 0, 1 or more of them, got [1, 0]"),
        ("widths", [[1]], "widths takes a list of numbers above 0, 1 or more of them, got [[1]]"),
        ("widths", 1, "widths takes a list of numbers above 0, 1 or more of them, got 1"),
        ("weight", 10**400, "weight takes a number of 0 or more, got 1000"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    name: str, value: Any, sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        Knobs(**{name: value})
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 200


def test_a_number_that_python_does_not_print_is_refused_in_a_sentence() -> None:
    with pytest.raises(DataError, match="1 or more, got a number too long to print"):
        Knobs(count=10**9999)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
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
def test_what_means_the_same_becomes_the_plain_value(name: str, value: Any, kept: Any) -> None:
    found = getattr(Knobs(**{name: value}), name)
    assert found == kept
    assert type(found) is type(kept)
    if isinstance(kept, tuple):
        assert [type(item) for item in found] == [type(item) for item in kept]


@every_method
def test_every_setting_of_every_method_refuses_what_is_no_value_of_it(method: Method) -> None:
    """No field is left out: each has a kind that is checked, and none takes NaN or an object."""
    for one in fields(method.kind):
        for value in (math.nan, math.inf, -math.inf, object(), {}, [math.nan]):
            with pytest.raises(DataError, match=f"^{one.name} takes "):
                method.kind(**{one.name: value})


@every_method
def test_no_number_of_a_method_takes_true(method: Method) -> None:
    for one in fields(method.kind):
        if isinstance(one.default, int | float) and not isinstance(one.default, bool):
            with pytest.raises(DataError, match=f"^{one.name} takes a "):
                method.kind(**{one.name: True})


@every_method
def test_candidates_and_copies_pass_the_checks(method: Method) -> None:
    learner = method.make({})
    assert replace(learner) == learner
    for setting in learner.candidates():
        assert replace(learner, **setting).settings() == {**learner.settings(), **setting}


# What was accepted and meant something else, or ended in a traceback.
REFUSED = [
    ("THN", "loss=ip", "loss takes cross-entropy or inner-product, got 'ip'"),
    ("THN", "policy=linear", "policy takes inv, step, cosine or fixed, got 'linear'"),
    ("THN", "optimizer=rmsprop", "optimizer takes sgd or adam, got 'rmsprop'"),
    ("THN", "image_hidden=[256,0]", "image_hidden takes a list of whole numbers of 1 or more"),
    ("THN", "text_hidden=64", "text_hidden takes a list of whole numbers of 1 or more, got 64"),
    ("THN", "dropout=2", "dropout takes a number from 0 to below 1, got 2"),
    ("THN", "rank=abc", "rank takes a whole number of 1 or more, or null (None), got 'abc'"),
    ("THN", "kernel_widths=x", "kernel_widths takes a list of numbers above 0"),
    ("THN", "seed=-1", "seed takes a whole number from 0 to 4294967295, got -1"),
    ("THN", "steps=1e9999", "steps takes a whole number of 0 or more, got inf"),
    ("THN", "batch_size=0", "batch takes a whole number of 1 or more, got 0"),
    ("THN", "name=x", "THN has no setting 'name'"),
    ("THN-D", "alignment_weight=1", "THN-D is THN with alignment_weight = 0.0"),
    ("DCMH", "precision=half", "precision takes float32 or bfloat16, got 'half'"),
    ("DCMH", "device=tpu", "device takes cpu or cuda, got 'tpu'"),
    ("HTH", "shape=1", "shape takes a number above 1, got 1"),
    ("QCH", "iterations=" + "9" * 5000, "iterations takes a whole number of 0 or more, got '999"),
    ("QCH", "ridge=" + "[" * 100_000, "ridge takes a number of 0 or more, got '[[["),
]


@pytest.mark.parametrize(
    ("method", "pair", "sentence"), REFUSED, ids=[p[:20] for _, p, _ in REFUSED]
)
def test_set_refuses_what_python_refuses(method: str, pair: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        make_hasher(method, **parse_settings([pair]))
    assert sentence in str(caught.value)


def test_an_experiments_file_refuses_it_too(tmp_path: Path) -> None:
    start = 'benchmark = "folder"\nmethods = ["THN"]\nbits = [16]\nseeds = [0]\n[settings.THN]\n'
    for line, sentence in (
        ('loss = "ip"', "loss takes cross-entropy or inner-product, got 'ip'"),
        ("dropout = nan", "dropout takes a number from 0 to below 1, got nan"),
        ("kernel_widths = 4", "kernel_widths takes a list"),
    ):
        (tmp_path / "plan.toml").write_text(start + line)
        with pytest.raises(DataError) as caught:
            read_plan(tmp_path / "plan.toml")
        assert "plan.toml: [settings.THN]: " + sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["thn", "--set", "loss=ip"], "loss takes cross-entropy or inner-product, got 'ip'"),
        (["knn"], "kNN scores pairs and makes no codes"),
        (["thm"], "there is no method 'thm'"),
    ],
)
def test_the_command_line_exits_with_2_and_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["transhash", "fit", *words, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith(f"error: {sentence}")
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_papers_recipe_may_be_changed_but_a_variant_is_what_its_name_says() -> None:
    recipe = find_method("thn-paper")
    assert recipe.make({}).settings()["policy"] == "inv"
    assert recipe.make({"policy": "step"}).settings()["policy"] == "step"
    variant = find_method("THN-ip")
    assert variant.make({"loss": "inner-product"}) == variant.make({})  # as a saved run gives it
    with pytest.raises(DataError, match="cannot be 'cross-entropy'; set it in THN"):
        variant.make({"loss": "cross-entropy"})
