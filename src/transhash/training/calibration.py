"""How likely an image and a text with so many differing bits are related, and a word for it.

Learned from what a fit did not see: the captions and pictures that its verdict keeps aside. How
many of all pairs are related is counted where labels tell. Where only pairs or clicks are known,
whatever else fits a caption counts as unrelated, and one related pair in twenty is assumed.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

RelevanceLabel = Literal["likely", "maybe", "far"]
_ASSUMED = 0.05  # share of related pairs where it cannot be counted
_LIKELY, _MAYBE = 0.5, 0.2
_WIDTHS = 32  # a pair is smeared over bits / 32 to either side: 4 of 128
_FEWEST = 20  # related pairs; fewer tell nothing


def fit_calibration(
    distances: npt.NDArray[Any], related: npt.NDArray[np.bool_], bits: int, *, counted: bool
) -> list[float] | None:
    """P(related | distance) for 0 to `bits` differing bits, never rising; None if too few tell.

    A pair tells of distances beside its own, too, else the fifty captions of a small bridge would
    be spread over 129 of them and tell nothing. Over every such width one related pair is assumed
    beside as many others as there are on average, so that what hardly occurred is no evidence.
    """
    from scipy.ndimage import gaussian_filter1d  # who only reads a curve need not wait for these
    from sklearn.isotonic import IsotonicRegression

    positives = int(related.sum())
    if positives < _FEWEST or related.all():
        return None
    share = positives / related.size if counted else _ASSUMED
    width = bits / _WIDTHS
    assumed = 1 / positives / max(1.0, 2.5 * width)  # 2.5 deviations: the width of the bell
    near, far = (
        gaussian_filter1d(np.bincount(d.astype(np.int64), minlength=bits + 1) / d.size, width)
        for d in (distances[related], distances[~related])
    )
    near, far = share * (near + assumed), (1 - share) * (far + assumed)
    fitted = IsotonicRegression(increasing=False).fit_transform(
        np.arange(bits + 1), near / (near + far), sample_weight=near + far
    )
    return [round(float(p), 4) for p in fitted]


def relevance_label(probability: float) -> RelevanceLabel:
    """likely: rather related than not; maybe: one in five or more."""
    return "likely" if probability >= _LIKELY else "maybe" if probability >= _MAYBE else "far"


def read_calibration(report: Any, bits: int) -> list[float] | None:
    """What a run's report.json says, if it says it for codes of so many bits."""
    held_out = report.get("verdict") if isinstance(report, dict) else None
    for part in ("held_out", "related_by_distance"):
        held_out = held_out.get(part) if isinstance(held_out, dict) else None
    if not isinstance(held_out, list) or len(held_out) != bits + 1:
        return None
    good = all(isinstance(p, int | float) and 0 <= p <= 1 for p in held_out)
    return [float(p) for p in held_out] if good else None
