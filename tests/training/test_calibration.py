"""P(related | distance), from what was kept aside, and its words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transhash.training.calibration import fit_calibration, read_calibration, relevance_label

BITS = 16


def drawn_pairs(share: float, size: int, seed: int) -> tuple[Any, Any]:
    """Distances of pairs, of which a share is related and differs in fewer bits."""
    rng = np.random.default_rng(seed)
    related = rng.random((size, size)) < share
    distances = np.where(
        related, rng.binomial(BITS, 0.2, related.shape), rng.binomial(BITS, 0.5, related.shape)
    )
    return distances, related


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_curve_tells_how_often_other_pairs_of_that_distance_are_related(seed: int) -> None:
    curve = fit_calibration(*drawn_pairs(0.1, 300, seed), BITS, counted=True)
    assert curve is not None
    assert len(curve) == BITS + 1
    distances, related = drawn_pairs(0.1, 600, seed + 100)  # not those it was learned from
    for distance in range(2, 10):
        there = distances == distance
        assert curve[distance] == pytest.approx(related[there].mean(), abs=0.05)


def test_the_curve_never_rises_with_the_distance() -> None:
    curve = fit_calibration(*drawn_pairs(0.1, 40, 0), BITS, counted=True)
    assert curve is not None
    assert curve == sorted(curve, reverse=True)


def test_a_distance_that_hardly_occurred_proves_nothing() -> None:
    related = np.zeros((30, 30), np.bool_)
    related[np.arange(30), np.arange(30)] = True
    distances = np.full((30, 30), 8)
    distances[0, 0] = 0  # one related pair with the same code, and no other
    curve = fit_calibration(distances, related, BITS, counted=True)
    assert curve is not None
    assert relevance_label(curve[0]) == "far"


def test_where_only_pairs_are_known_the_share_of_related_ones_is_assumed() -> None:
    """Of 400 pictures one belongs to a caption; that share is no measure of what fits it."""
    rng = np.random.default_rng(0)
    related = np.eye(400, dtype=np.bool_)
    distances = np.where(related, rng.binomial(BITS, 0.1, (400, 400)), 8)
    assumed = fit_calibration(distances, related, BITS, counted=False)
    counted = fit_calibration(distances, related, BITS, counted=True)
    assert assumed is not None
    assert counted is not None
    assert relevance_label(assumed[1]) == "likely"
    assert counted[1] < assumed[1]


def test_fifty_captions_tell_near_from_far_at_many_bits() -> None:
    """What a bridge of a few hundred pairs keeps aside; 129 distances are more than its pairs."""
    rng = np.random.default_rng(0)
    related = np.eye(50, dtype=np.bool_)
    distances = np.where(
        related, rng.binomial(128, 0.25, related.shape), rng.binomial(128, 0.55, related.shape)
    )
    curve = fit_calibration(distances, related, 128, counted=False)
    assert curve is not None
    assert relevance_label(curve[32]) != "far"
    assert relevance_label(curve[64]) == "far"


def test_too_few_related_pairs_tell_nothing() -> None:
    distances, related = drawn_pairs(0.1, 8, 0)
    assert related.sum() < 20
    assert fit_calibration(distances, related, BITS, counted=True) is None


@pytest.mark.parametrize(
    "report",
    [
        None,
        {},
        {"verdict": None},
        {"verdict": {"held_out": {"unknown": "why"}}},
        {"verdict": {"held_out": {"related_by_distance": [0.5] * BITS}}},
        {"verdict": {"held_out": {"related_by_distance": ["a"] * (BITS + 1)}}},
        {"verdict": {"held_out": {"related_by_distance": [float("nan")] * (BITS + 1)}}},
    ],
)
def test_a_report_that_does_not_say_it_gives_no_words(report: Any) -> None:
    assert read_calibration(report, BITS) is None
