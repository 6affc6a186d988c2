"""Short versions of the fault-injection scripts for fit, experiment and saved models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from model_flips import flip_model
from training_kills import kill_experiment, kill_fine_tuning, kill_fit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_a_killed_fit_resumes_to_the_same_codes(tmp_path: Path) -> None:
    assert kill_fit(tmp_path, rounds=3).killed >= 3


def test_a_killed_fine_tuning_with_damaged_checkpoints_gives_the_same_weights(
    tmp_path: Path,
) -> None:
    tally = kill_fine_tuning(tmp_path, rounds=4)
    assert tally.killed >= 4
    assert tally.resumed
    assert tally.damaged


def test_a_killed_experiment_resumes_to_the_same_scores(tmp_path: Path) -> None:
    assert kill_experiment(tmp_path, rounds=3).killed >= 3


def test_a_flipped_bit_of_a_model_is_reported_or_harmless(tmp_path: Path) -> None:
    tally = flip_model(tmp_path, rounds=100)
    assert tally.reported > 95
