"""The list of methods."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from transhash import hashers
from transhash.cli import load_commands
from transhash.errors import DataError
from transhash.hashers import METHODS, PAPER_METHODS, Hasher, Scorer, find_method, make_method


def test_a_name_in_any_case_makes_the_class_of_its_record() -> None:
    assert len({method.name.lower() for method in METHODS}) == len(METHODS)
    for method in METHODS:
        learner = make_method(method.name.upper(), bits=24, seed=3)
        assert type(learner) is method.hasher_class
        assert isinstance(learner, Hasher if method.has_codes else Scorer)
        assert learner.seed == 3
        assert getattr(learner, "bits", 24) == 24
        assert {
            name: learner.settings()[name] for name in method.fixed_settings
        } == method.fixed_settings
        assert getattr(hashers, method.hasher_class.__name__) is method.hasher_class


def test_the_methods_of_the_paper_are_the_default() -> None:
    assert len(PAPER_METHODS) == 9
    others = {method.name for method in METHODS} - set(PAPER_METHODS)
    assert others == {
        "THN-paper", "DCMH-published", "kNN", "ridge", "kNN+target", "ridge+target",
        "ridge-classifier", "ridge-classifier+target", "IMH+target", "CVH+target", "QCH+target",
        "DCMH+target", "CCA+target",
        "THN-no-mmd", "THN-no-soft-labels", "THN-no-pseudo-labels", "THN-paper-network",
    }  # fmt: skip


def test_labels_are_unique_and_name_the_method() -> None:
    assert len({method.label for method in METHODS}) == len(METHODS)
    assert find_method("thn-paper").label == "THN (as printed)"
    assert find_method("knn").label == "kNN (real-valued)"
    assert find_method("QCH").label == "QCH"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match="Unknown method 'thm'") as caught:
        find_method("thm")
    assert all(method.name in str(caught.value) for method in METHODS)


def test_help_names_every_method_with_codes() -> None:
    output = CliRunner().invoke(load_commands(), ["fit", "--help"], env={"COLUMNS": "200"}).stdout
    words = re.findall(r"[\w+-]+", output)
    for method in METHODS:
        assert (method.name.lower() in words) == method.has_codes


def test_the_list_is_imported_without_torch() -> None:
    code = "import sys, transhash.hashers, transhash.cli.fit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
