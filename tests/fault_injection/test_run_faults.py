"""A short version of what the scripts here do to a run folder and to its commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_kills import kill_encode, kill_index
from run_flips import flip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_an_index_command_that_is_killed_loses_nothing_that_was_indexed(tmp_path: Path) -> None:
    tally = kill_index(tmp_path, matching_rounds=8)
    assert tally.killed > 1
    assert tally.finished > 0


def test_an_encode_command_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    tally = kill_encode(tmp_path, matching_rounds=8)
    assert tally.killed > 1
    assert tally.finished > 0


def test_a_flipped_bit_in_a_run_folder_is_told_or_changes_nothing(tmp_path: Path) -> None:
    tally = flip(tmp_path, matching_rounds=90)
    assert tally.told > tally.harmless
