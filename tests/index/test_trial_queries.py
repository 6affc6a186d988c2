"""Tables are given up early, and trial queries decide how much they may cost: in rows."""

from __future__ import annotations

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.index.grouped.segment import build, to_words, with_budget
from transhash.index.kernel import native

pytestmark = pytest.mark.skipif(native is None, reason="the native kernel was not built")


def near(centers: np.ndarray, count: int, flip: float, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    flips = np.packbits(generator.random((count, centers.shape[1] * 8)) < flip, axis=1)
    return np.asarray(centers[generator.integers(0, len(centers), count)] ^ flips)


def uniform(count: int, bits: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, bits // 8), dtype=np.uint8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bits", [64, 128])
def test_a_query_far_from_everything_gives_tables_up_after_few_rows(
    bits: int, weighted: bool
) -> None:
    packed = near(uniform(1000, bits, 1), 200_000, 0.02, 2)
    segment = build(np.arange(200_000), to_words(packed), bits)
    assert segment.starts is not None
    rows = len(segment.words)
    for seed in range(20):
        query, k = uniform(1, bits, 100 + seed), 24
        output = [np.empty((1, k), np.int64), np.empty((1, k), np.int32)]
        if weighted:
            weights = np.random.default_rng(seed).integers(0, 60_000, (1, bits))
            output += [weights, np.empty((1, k), np.int64)]
        answered, examined = native.search(*segment._arrays(to_words(query)), k, 0.5, 1, *output)
        assert answered == 0
        assert rows <= examined <= 1.15 * rows


def test_the_budget_is_high_only_if_trial_queries_are_answered_too() -> None:
    centers = uniform(1000, 128, 1)
    segment = build(np.arange(200_000), to_words(near(centers, 200_000, 0.02, 2)), 128)
    like_rows, far = near(centers, 64, 0.02, 3), uniform(64, 128, 4)
    assert segment.probe_budget == 0.5  # rows alone
    assert with_budget(segment, to_words(like_rows)).probe_budget == 0.5
    assert with_budget(segment, to_words(far)).probe_budget == 0.25


def test_tables_that_answer_nobody_may_cost_next_to_nothing() -> None:
    segment = build(np.arange(100_000), to_words(uniform(100_000, 128, 1)), 128)
    assert segment.starts is not None
    assert segment.probe_budget == 0.02
    codes = Codes(uniform(100_000, 128, 1), 128)
    assert segment.search(to_words(codes[:1].packed), 1).distances[0, 0] == 0
