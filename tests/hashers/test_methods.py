"""The list of methods: whoever reads it finds each one whole."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from transhash import hashers
from transhash.cli import app, fit  # noqa: F401  (registers `fit`)
from transhash.errors import DataError
from transhash.hashers import METHODS, PAPER_METHODS, Hasher, Scorer, find_method, make_method


def test_a_name_in_any_case_makes_the_class_of_its_line() -> None:
    assert len({method.name.lower() for method in METHODS}) == len(METHODS)
    for method in METHODS:
        learner = make_method(method.name.upper(), bits=24, seed=3)
        assert type(learner) is method.kind
        assert isinstance(learner, Hasher if method.has_codes else Scorer)
        assert learner.seed == 3
        assert getattr(learner, "bits", 24) == 24
        assert {name: learner.settings()[name] for name in method.fixed} == method.fixed
        assert getattr(hashers, method.kind.__name__) is method.kind


def test_the_papers_nine_are_the_default() -> None:
    assert len(PAPER_METHODS) == 9
    others = {method.name for method in METHODS} - set(PAPER_METHODS)
    assert others == {
        "THN-paper", "kNN", "ridge", "CVH+target", "QCH+target", "DCMH+target", "CCA+target",
        "THN-no-mmd", "THN-no-soft-labels", "THN-no-pseudo-labels", "THN-paper-network",
    }  # fmt: skip


def test_an_unknown_name_is_refused_beside_the_known_ones() -> None:
    with pytest.raises(DataError, match="there is no method 'thm'; use one of") as caught:
        find_method("thm")
    assert all(method.name in str(caught.value) for method in METHODS)


def test_help_names_every_method_that_can_be_fitted() -> None:
    told = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "200"}).stdout
    words = re.findall(r"[\w-]+", told)
    for method in METHODS:
        assert (method.name.lower() in words) == method.has_codes


def test_the_list_is_read_without_torch() -> None:
    code = "import sys, transhash.hashers, transhash.cli.fit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
