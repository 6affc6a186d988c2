"""A few rounds of each fault injection into an index; the scripts can run for hours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from index_disk import can_mount, on_small_disk, with_small_files
from index_flips import FILES, flip_bits
from index_kills import kill_writers
from index_readers import read_during_writes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    assert kill_writers(tmp_path / "index", rounds=12) > 12


@pytest.mark.parametrize("files", FILES)
def test_a_flipped_bit_is_reported_or_changes_nothing(files: str, tmp_path: Path) -> None:
    outcomes = flip_bits(tmp_path, files, rounds=40)
    assert outcomes["changed nothing"] <= 10  # most flips affect what is read


def test_a_limited_file_size_loses_nothing_acknowledged() -> None:
    assert with_small_files(rounds=12).acknowledged > 0


@pytest.mark.skipif(not can_mount(), reason="cannot mount")
def test_a_full_disk_loses_nothing_acknowledged() -> None:
    assert on_small_disk(rounds=12).acknowledged > 0


def test_readers_see_complete_changes_of_a_writer(tmp_path: Path) -> None:
    assert read_during_writes(tmp_path, rounds=150, readers=2)[0] > 10
