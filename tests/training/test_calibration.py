"""P(related | distance) and its relevance labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transhash.training.calibration import fit_calibration, read_calibration, relevance_label

BITS = 16


def random_pairs(share: float, size: int, seed: int) -> tuple[Any, Any]:
    """Return distances of pairs, of which a share is related and differs in fewer bits."""
    rng = np.random.default_rng(seed)
    related = rng.random((size, size)) < share
    distances = np.where(
        related, rng.binomial(BITS, 0.2, related.shape), rng.binomial(BITS, 0.5, related.shape)
    )
    return distances, related


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_curve_predicts_how_often_other_pairs_of_that_distance_are_related(seed: int) -> None:
    curve = fit_calibration(*random_pairs(0.1, 300, seed), BITS, rate_known=True)
    assert curve is not None
    assert len(curve) == BITS + 1
    distances, related = random_pairs(0.1, 600, seed + 100)  # not those it was learned from
    for distance in range(2, 10):
        rate = related[distances == distance].mean()
        assert curve[distance] == pytest.approx(rate, abs=0.05)


def test_the_curve_never_rises_with_the_distance() -> None:
    curve = fit_calibration(*random_pairs(0.1, 40, 0), BITS, rate_known=True)
    assert curve is not None
    assert curve == sorted(curve, reverse=True)


def test_a_rare_distance_is_no_evidence() -> None:
    related = np.zeros((30, 30), np.bool_)
    related[np.arange(30), np.arange(30)] = True
    distances = np.full((30, 30), 8)
    distances[0, 0] = 0  # one related pair with the same code, and no other
    curve = fit_calibration(distances, related, BITS, rate_known=True)
    assert curve is not None
    assert relevance_label(curve[0]) == "unlikely"


def test_with_pairs_only_the_rate_of_related_pairs_is_assumed() -> None:
    """One of 400 images belongs to a caption, but others may match it as well."""
    rng = np.random.default_rng(0)
    related = np.eye(400, dtype=np.bool_)
    distances = np.where(related, rng.binomial(BITS, 0.1, (400, 400)), 8)
    with_assumed_rate = fit_calibration(distances, related, BITS, rate_known=False)
    with_counted_rate = fit_calibration(distances, related, BITS, rate_known=True)
    assert with_assumed_rate is not None
    assert with_counted_rate is not None
    assert relevance_label(with_assumed_rate[1]) == "likely"
    assert with_counted_rate[1] < with_assumed_rate[1]


def test_fifty_captions_are_enough_at_many_bits() -> None:
    """An auxiliary set of a few hundred pairs holds out fewer pairs than there are distances."""
    rng = np.random.default_rng(0)
    related = np.eye(50, dtype=np.bool_)
    distances = np.where(
        related, rng.binomial(128, 0.25, related.shape), rng.binomial(128, 0.55, related.shape)
    )
    curve = fit_calibration(distances, related, 128, rate_known=False)
    assert curve is not None
    assert relevance_label(curve[32]) != "unlikely"
    assert relevance_label(curve[64]) == "unlikely"


def test_too_few_related_pairs_give_no_calibration() -> None:
    distances, related = random_pairs(0.1, 8, 0)
    assert related.sum() < 20
    assert fit_calibration(distances, related, BITS, rate_known=True) is None


@pytest.mark.parametrize(
    "report",
    [
        None,
        {},
        {"validation": None},
        {"validation": {"retrieval": {"skipped": "why"}}},
        {"validation": {"retrieval": {"calibration": [0.5] * BITS}}},
        {"validation": {"retrieval": {"calibration": ["a"] * (BITS + 1)}}},
        {"validation": {"retrieval": {"calibration": [float("nan")] * (BITS + 1)}}},
    ],
)
def test_a_report_without_a_valid_calibration_gives_none(report: Any) -> None:
    assert read_calibration(report, BITS) is None
