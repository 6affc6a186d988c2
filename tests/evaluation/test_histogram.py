"""Curves, sizes and files of histograms; counting is tested in test_counting.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transhash.errors import DataError
from transhash.evaluation import DistanceHistogram

from .orders import CASES, Groups, histogram


def test_the_database_size_is_the_greatest_number_of_known_items() -> None:
    assert histogram([(1, 1), (0, 0)], [(2, 1), (3, 0)]).database == 5


def test_a_saved_histogram_is_read_back(tmp_path: Path) -> None:
    table = histogram([(2, 1), (0, 0), (7, 3)], [(9, 0), (0, 0), (0, 0)])
    table.save(tmp_path / "shard.npz")
    assert DistanceHistogram.load(tmp_path / "shard.npz") == table


def test_without_the_kernel_the_counts_are_the_same() -> None:
    source = (
        "import numpy as np; from transhash.evaluation.histogram import count_pairs, native;"
        "rng = np.random.default_rng(0); codes = rng.integers(0, 256, (300, 4), np.uint8);"
        "labels = rng.random((300, 5)) < 0.3;"
        "items, relevant = count_pairs(codes[:20], codes, labels[:20], labels);"
        "print(native is None, items.tolist(), relevant.tolist())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "TRANSHASH_NATIVE": switch},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split(" ", 1)
        for switch in ("0", "1")
    ]
    assert outputs[0][0] == "True"
    assert outputs[0][1] == outputs[1][1]


def test_a_file_that_is_not_a_histogram_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("not a table")
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", items=np.array([{}]), relevant=np.array([{}]))
    for name in ("text.npz", "other.npz", "pickled.npz"):
        with pytest.raises(DataError, match=name):
            DistanceHistogram.load(tmp_path / name)


def test_histograms_of_different_shapes_cannot_be_added() -> None:
    with pytest.raises(DataError, match="same queries and code length"):
        histogram([(2, 1)]) + histogram([(2, 1), (1, 0)])


def interpolated(ranking: np.ndarray) -> list[float]:
    """The textbook curve: greatest precision at any rank with at least that recall."""
    hits = np.cumsum(ranking)
    precision = hits / np.arange(1, len(ranking) + 1)
    return [float(precision[hits * 100 >= step * hits[-1]].max()) for step in range(101)]


@given(st.lists(st.integers(0, 1), min_size=1, max_size=200).filter(any))
@settings(max_examples=80, deadline=None)
def test_the_curve_by_rank_is_the_textbook_one_without_ties(ranking: list[int]) -> None:
    measured = histogram([(1, value) for value in ranking]).precision_by_recall()[0]
    np.testing.assert_allclose(measured, interpolated(np.array(ranking)), rtol=1e-12)


@pytest.mark.parametrize("groups", CASES)
def test_with_ties_the_curve_by_rank_uses_the_expected_hits(groups: Groups) -> None:
    """Spread the expected hits evenly, then compute the textbook curve over all ranks."""
    expected_hits = np.concatenate([np.full(n, r / n) for n, r in groups if n])
    np.testing.assert_allclose(
        histogram(groups).precision_by_recall()[0], _by_expected_hits(expected_hits), rtol=1e-9
    )


def _by_expected_hits(fractions: np.ndarray) -> list[float]:
    hits = np.cumsum(fractions)
    precision = hits / np.arange(1, len(hits) + 1)
    return [float(precision[hits * 100 >= step * hits[-1] - 1e-9].max()) for step in range(101)]


def test_the_curve_by_radius_pools_pairs_and_ends_at_full_recall() -> None:
    table = histogram([(0, 0), (2, 1), (3, 1)], [(0, 0), (1, 1), (4, 3)])
    np.testing.assert_allclose(table.radius_curve(), [[1, 2 / 6, 2 / 3], [2, 1.0, 6 / 10]])
