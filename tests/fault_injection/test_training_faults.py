"""A short version of the kills of fit and experiment, and of flips in the files of a model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from model_flips import flip_model
from training_kills import kill_experiment, kill_fit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_a_fit_that_is_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    assert kill_fit(tmp_path, matching_rounds=3).killed >= 3


def test_an_experiment_that_is_killed_ends_with_the_same_scores(tmp_path: Path) -> None:
    assert kill_experiment(tmp_path, matching_rounds=3).killed >= 3


def test_a_flipped_bit_of_a_model_is_told_or_changes_nothing(tmp_path: Path) -> None:
    tally = flip_model(tmp_path, matching_rounds=100)
    assert tally.told > 95
