"""The table of planted faults (tests/mutation.py) fits the sources."""

from __future__ import annotations

import ast

import pytest

from mutation import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.file}: {m.original[:40]}")
def test_a_fault_changes_one_line_and_names_existing_tests(mutant: Mutant) -> None:
    assert mutant.source.read_text(encoding="utf-8").count(mutant.original) == 1
    assert mutant.original != mutant.mutated
    ast.parse(mutant.mutate())  # tests must fail because of the fault, not of its syntax
    assert mutant.test_files
    for path in mutant.test_files:
        assert path.is_file()


def test_there_are_many_different_faults() -> None:
    assert len(set(MUTANTS)) >= 90
