"""Average precision from tie groups, in exact expectation over all orders inside each group.

For one query, group d has n_d items, r_d of them relevant; N_d items and R_d relevant ones come
strictly before it. Slot i of the group is relevant with probability r_d / n_d, and then
1 + (i - 1) c_d relevant items of the group are expected up to it, c_d = (r_d - 1) / (n_d - 1)
(McSherry & Najork 2008; for Hamming distances He, Cakir, Bargal & Sclaroff 2018). Hence

    sum of precisions = Σ_d (r_d/n_d) [(R_d + 1 - c_d - c_d N_d) (H(N_d+n_d) - H(N_d)) + c_d n_d]

with harmonic numbers H: no sort, and a cost that does not grow with the database.
Every function takes `items` and `relevant` of shape (queries, groups), nearest group first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def before(counts: Counts) -> Counts:
    """Return N_d or R_d, the counts strictly before each group."""
    return np.cumsum(counts, axis=1) - counts


def precision_sums(items: Counts, relevant: Counts, cutoff: int) -> Floats:
    """Return the expected sum of precisions at the relevant items of each group up to a rank."""
    earlier = before(items)
    # A group that straddles the cutoff has the same probability per slot, only fewer slots.
    slots = np.clip(cutoff - earlier, 0, items)
    probability = relevant / np.maximum(items, 1)
    slope = np.maximum(relevant - 1, 0) / np.maximum(items - 1, 1)  # c_d
    return probability * _slots_sum(before(relevant), earlier, slots, slope)


def hits_precision(items: Counts, relevant: Counts, cutoff: int) -> tuple[Floats, Floats]:
    """Return E[sum of precisions / hits] over ranks 1..cutoff (0 without hits) and P(any hit).

    The number of hits m inside the group that straddles the cutoff is hypergeometric; given m, its
    t slots are a tie group with m relevant items.
    """
    sums = precision_sums(items, relevant, cutoff)
    items_before, relevant_before = before(items), before(relevant)
    full = items_before + items <= cutoff
    hits = np.where(full, relevant, 0).sum(axis=1)
    total = np.where(full, sums, 0.0).sum(axis=1)
    values = total / np.maximum(hits, 1)
    hit_probability = (hits > 0).astype(np.float64)
    straddles = (items_before < cutoff) & ~full & (relevant > 0)
    for q, d in zip(*np.nonzero(straddles), strict=True):
        n, r, t = int(items[q, d]), int(relevant[q, d]), int(cutoff - items_before[q, d])
        m, probability = _hypergeometric(n, r, t)
        hits_before, earlier = relevant_before[q, d], items_before[q, d]
        slope = np.maximum(m - 1, 0) / max(t - 1, 1)
        inside = m / t * _slots_sum(hits_before, earlier, np.int64(t), slope)
        values[q] = (probability * (total[q] + inside) / np.maximum(hits_before + m, 1)).sum()
        hit_probability[q] = probability[hits_before + m > 0].sum()
    return values, hit_probability


def first_relevant_precision(items: Counts, relevant: Counts, count: int) -> Floats:
    """Return E[mean precision at the first min(count, R) relevant items], at any depth.

    In the group that contains the last of them, its s-th relevant item is the last one. Slot x
    counts if fewer than s of the group's relevant items precede it, that is if the s-th of the
    r - 1 others, among n - 1 positions, comes at position Z >= x; summing over x first leaves
    expectations over Z of harmonic spans. The same with one item fewer gives the second moment.
    """
    sums = precision_sums(items, relevant, int(items.sum(axis=1).max(initial=0)))
    items_before, relevant_before = before(items), before(relevant)
    total = relevant.sum(axis=1)
    last = np.minimum(total, count)  # relevant items that count
    full = relevant_before + relevant <= last[:, None]
    values = np.where(full, sums, 0.0).sum(axis=1)
    q, d = np.nonzero(~full & (relevant_before < last[:, None]))
    if len(q):
        needed = last[q] - relevant_before[q, d]
        table = (items[q, d], relevant[q, d], items_before[q, d], relevant_before[q, d], needed)
        # Queries with equal counts, e.g. all of a class if codes are equal, are computed once.
        distinct, copies = np.unique(np.stack(table), axis=1, return_inverse=True)
        inside = np.array([_first_in_group(*map(int, column)) for column in distinct.T])
        values[q] += inside[copies.ravel()]  # numpy 2.0 gives it a second axis
    mean: Floats = values / np.maximum(last, 1)
    return mean


def group_end_precision(items: Counts, relevant: Counts) -> Floats:
    """Return scikit-learn's AP: each relevant item has the precision at the end of its group."""
    precision = np.cumsum(relevant, axis=1) / np.maximum(np.cumsum(items, axis=1), 1)
    mean: Floats = (relevant * precision).sum(axis=1) / np.maximum(relevant.sum(axis=1), 1)
    return mean


def harmonic_span(start: npt.ArrayLike, length: npt.ArrayLike) -> Floats:
    """Return H(start + length) - H(start), to full relative precision.

    The span is multiplied by start, so a difference of two digammas near 14 would leave an error
    of 1e-9 in a database of a million; far out the Euler-Maclaurin series is differenced instead.
    """
    a = np.asarray(start, dtype=np.float64)
    b = a + np.asarray(length, dtype=np.float64)
    far = np.maximum(a, 64.0)
    x, y = 1 / far, 1 / np.maximum(b, 64.0)
    series = (
        np.log1p((np.maximum(b, far) - far) / far)
        + (y - x) / 2
        - (y**2 - x**2) / 12
        + (y**4 - x**4) / 120
        - (y**6 - x**6) / 252
    )
    return np.where(a >= 64, series, digamma(b + 1) - digamma(a + 1))


def _slots_sum(
    hits_before: Counts | np.int64,
    earlier: Counts | np.int64,
    slots: Counts | np.int64,
    slope: Floats,
) -> Floats:
    """Return Σ_{i=1..slots} (hits_before + 1 + (i - 1) slope) / (earlier + i)."""
    span = harmonic_span(earlier, slots)
    return (hits_before + 1 - slope - slope * earlier) * span + slope * slots


def _first_in_group(n: int, r: int, earlier: int, hits_before: int, s: int) -> float:
    """Return the expected sum of precisions at the first s < r relevant items of one group."""
    position, probability = _negative_hypergeometric(n - 1, r - 1, s)
    inside = (hits_before + 1) * (probability @ harmonic_span(earlier, position))
    if s > 1:
        position, probability = _negative_hypergeometric(n - 2, r - 2, s - 1)
        reach = position + 1 - (earlier + 1) * harmonic_span(earlier, position + 1)
        inside += (r - 1) / (n - 1) * (probability @ reach)
    return float(r / n * inside)


def _hypergeometric(n: int, r: int, t: int) -> tuple[Counts, Floats]:
    """Return support and probabilities of the hits among t draws from n items, r relevant."""
    mean = t * r / n
    variance = mean * (1 - r / n) * (n - t) / max(n - 1, 1)
    return _distribution(
        max(0, t - (n - r)),
        min(r, t),
        mean,
        min(40 * variance**0.5, 9 * mean**0.5 + 27),
        lambda m: np.log((r - m) * (t - m)) - np.log((m + 1) * (n - r - t + m + 1)),
    )


def _negative_hypergeometric(n: int, r: int, s: int) -> tuple[Counts, Floats]:
    """Return the distribution of the position of the s-th relevant item, r of n being relevant."""
    mean = s * (n + 1) / (r + 1)
    variance = mean * (n - r) * (r + 1 - s) / ((r + 1) * (r + 2))
    return _distribution(
        s,
        n - r + s,
        mean,
        min(40 * variance**0.5, (n + 1) / (r + 1) * (9 * s**0.5 + 80)),
        lambda z: np.log(z * (n - r - z + s)) - np.log((z - s + 1) * (n - z)),
    )


def _distribution(
    low: int, high: int, mean: float, reach: float, log_ratio: Callable[[Floats], Floats]
) -> tuple[Counts, Floats]:
    """Return probabilities from the ratios P(x + 1) / P(x), normalized, within reach of the mean.

    The reach omits less than e^-40: both distributions are log-concave, which gives 40 standard
    deviations, or less by Bernstein's bound on the hits among the draws. It keeps the cost near the
    square root of the group's size.
    """
    low, high = max(low, int(mean - reach) - 2), min(high, int(mean + reach) + 3)
    support = np.arange(low, high + 1)
    logs = np.concatenate([[0.0], np.cumsum(log_ratio(support[:-1].astype(np.float64)))])
    probability = np.exp(logs - logs.max())
    return support, probability / probability.sum()
