"""Probability that an image and a text are related, given their Hamming distance.

Fitted on held-out auxiliary items. With labels, the rate of related pairs is counted. With pairs or
clicks only, other matches of a caption count as unrelated, so a rate of one in twenty is assumed.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transhash.progress import phase

RelevanceLabel = Literal["likely", "possible", "unlikely"]
_ASSUMED_RATE = 0.05  # of related pairs, where it cannot be counted
_MIN_LIKELY, _MIN_POSSIBLE = 0.5, 0.2
_BITS_PER_WIDTH = 32  # standard deviation of the smoothing: bits / 32, i.e. 4 of 128
_MIN_POSITIVES = 20  # with fewer related pairs there is no calibration


@phase("calibration")
def fit_calibration(
    distances: npt.NDArray[Any], related: npt.NDArray[np.bool_], bits: int, *, rate_known: bool
) -> list[float] | None:
    """Return P(related | distance) for 0 to `bits` differing bits, or None with too few pairs.

    The curve never increases. Each pair also counts for neighboring distances: the fifty captions
    of a small auxiliary set would otherwise spread too thin over 129 distances. One related pair
    and its average number of unrelated ones are assumed within each smoothing width, so that rare
    distances give no evidence.
    """
    from scipy.ndimage import gaussian_filter1d  # reading a calibration does not need these
    from sklearn.isotonic import IsotonicRegression

    positives = int(related.sum())
    if positives < _MIN_POSITIVES or related.all():
        return None
    rate = positives / related.size if rate_known else _ASSUMED_RATE
    width = bits / _BITS_PER_WIDTH
    prior = 1 / positives / max(1.0, 2.5 * width)  # 2.5 deviations: the width of the bell
    positive, negative = (
        gaussian_filter1d(np.bincount(d.astype(np.int64), minlength=bits + 1) / d.size, width)
        for d in (distances[related], distances[~related])
    )
    positive, negative = rate * (positive + prior), (1 - rate) * (negative + prior)
    curve = IsotonicRegression(increasing=False).fit_transform(
        np.arange(bits + 1), positive / (positive + negative), sample_weight=positive + negative
    )
    return [round(float(p), 4) for p in curve]


def relevance_label(probability: float) -> RelevanceLabel:
    """Return `likely` from one in two, `possible` from one in five, else `unlikely`."""
    if probability >= _MIN_LIKELY:
        return "likely"
    return "possible" if probability >= _MIN_POSSIBLE else "unlikely"


def read_calibration(report: Any, bits: int) -> list[float] | None:
    """Return the calibration in a run's report.json, or None if it has none for `bits`."""
    for key in ("validation", "retrieval", "calibration"):
        report = report.get(key) if isinstance(report, dict) else None
    if not isinstance(report, list) or len(report) != bits + 1:
        return None
    valid = all(isinstance(p, int | float) and 0 <= p <= 1 for p in report)
    return [float(p) for p in report] if valid else None
