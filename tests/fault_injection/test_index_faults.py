"""A few rounds of each torture of an index; the scripts go on for as long as one likes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from index_disk import can_mount, on_small_disk, with_small_files
from index_flips import FILES, flip_bits
from index_kills import kill_writers
from index_readers import read_beside_a_writer

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="fork and SIGKILL are POSIX"
)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    assert kill_writers(tmp_path / "index", matching_rounds=12) > 12


@pytest.mark.parametrize("files", FILES)
def test_a_flipped_bit_is_told_or_changes_nothing(files: str, tmp_path: Path) -> None:
    met = flip_bits(tmp_path, files, matching_rounds=40)
    assert met["changed nothing"] <= 10  # the flips do hit what is read


def test_a_file_that_may_not_grow_costs_nothing_that_was_acknowledged() -> None:
    assert with_small_files(matching_rounds=12).acknowledged > 0


@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own")
def test_a_full_disk_costs_nothing_that_was_acknowledged() -> None:
    assert on_small_disk(matching_rounds=12).acknowledged > 0


def test_readers_beside_a_writer_see_whole_changes_at_once(tmp_path: Path) -> None:
    assert read_beside_a_writer(tmp_path, matching_rounds=150, readers=2)[0] > 10
