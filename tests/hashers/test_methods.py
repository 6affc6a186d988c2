"""The list of methods: whoever reads it finds each one whole."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from transhash import hashers
from transhash.cli import app, learn  # noqa: F401  (registers `fit`)
from transhash.errors import DataError
from transhash.hashers import KNOWN, METHODS, Hasher, Scorer, find_method, make_learner


def test_a_name_in_any_case_makes_the_class_of_its_line() -> None:
    assert len({method.name.lower() for method in KNOWN}) == len(KNOWN)
    for method in KNOWN:
        learner = make_learner(method.name.upper(), bits=24, seed=3)
        assert type(learner) is method.kind
        assert isinstance(learner, Hasher if method.has_codes else Scorer)
        assert learner.seed == 3
        assert getattr(learner, "bits", 24) == 24
        assert {name: learner.settings()[name] for name in method.fixed} == method.fixed
        assert getattr(hashers, method.kind.__name__) is method.kind


def test_the_papers_nine_are_the_default() -> None:
    assert len(METHODS) == 9
    others = {method.name for method in KNOWN} - set(METHODS)
    assert others == {
        "THN-paper", "kNN", "ridge", "CVH-fed", "QCH-fed", "DCMH-fed", "CCA-fed",
        "THN-MMD", "THN-soft", "THN-inherited", "THN-canonical",
    }  # fmt: skip


def test_an_unknown_name_is_refused_beside_the_known_ones() -> None:
    with pytest.raises(DataError, match="there is no method 'thm'; use one of") as caught:
        find_method("thm")
    assert all(method.name in str(caught.value) for method in KNOWN)


def test_help_names_every_method_that_can_be_fitted() -> None:
    told = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "200"}).stdout
    words = re.findall(r"[\w-]+", told)
    for method in KNOWN:
        assert (method.name.lower() in words) == method.has_codes


def test_the_list_is_read_without_torch() -> None:
    code = "import sys, transhash.hashers, transhash.cli.fit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
