"""Short versions of the fault-injection scripts for a run folder and its commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from backup_faults import check_backups
from command_kills import kill_encode, kill_index
from run_flips import flip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_a_killed_index_command_loses_no_indexed_item(tmp_path: Path) -> None:
    tally = kill_index(tmp_path, rounds=8)
    assert tally.killed > 1
    assert tally.finished > 0


def test_a_killed_encode_command_resumes(tmp_path: Path) -> None:
    tally = kill_encode(tmp_path, rounds=8)
    assert tally.killed > 1
    assert tally.finished > 0


def test_a_flipped_bit_in_a_run_folder_is_reported_or_harmless(tmp_path: Path) -> None:
    tally = flip(tmp_path, rounds=90)
    assert tally.reported > tally.harmless


def test_a_backup_under_writes_and_kills_is_the_run_at_one_moment(tmp_path: Path) -> None:
    tally = check_backups(tmp_path, rounds=16)
    assert tally.kills > 1
    assert tally.steps > 16
