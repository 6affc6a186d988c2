import numpy as np
import pytest
import torch

from transhash.data.relation import SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers.hth import (
    HTH,
    PairBatch,
    Weights,
    draw_column_per_row,
    draw_pairs,
    penalty,
)
from transhash.hashers.tuning import held_out_map

from .worlds import World


def test_the_objective_equals_loops_over_items_and_pairs() -> None:
    rng = np.random.default_rng(0)
    hasher = HTH(bits=8, pair_weight=3.0, weight_decay=0.1, translator_decay=0.2)
    x, y = rng.standard_normal((3, 4)), rng.standard_normal((5, 6))
    s, w = (rng.random((3, 5)) < 0.5).astype(float), rng.random((3, 5))
    wx, wy, c = (rng.standard_normal(shape) for shape in ((4, 8), (6, 8), (8, 8)))
    p, q = x @ wx, y @ wy
    expected = sum(max(0.0, 1 - abs(v)) for row in p for v in row) / 3
    expected += sum(max(0.0, 1 - abs(v)) for row in q for v in row) / 5
    for i in range(3):
        for j in range(5):
            d = np.sqrt(np.sum((c.T @ p[i] - q[j]) ** 2) / 8)
            tau = penalty(torch.tensor(d), hasher.shape, hasher.reach).item()
            expected += 3.0 * w[i, j] * (s[i, j] * d**2 + (1 - s[i, j]) * tau)
    expected += 0.05 * np.sum(wx**2) + 0.05 * np.sum(wy**2) + 0.1 * np.sum(c**2)
    weights = Weights(*map(torch.from_numpy, (wx, wy, c)))
    value = hasher.objective(weights, PairBatch(*map(torch.from_numpy, (x, y, s, w))))
    assert value.item() == pytest.approx(expected)


def test_the_penalty_falls_smoothly_to_zero() -> None:
    a, reach = 3.7, 2.0
    near = reach / a
    d = torch.linspace(1e-6, 3, 4001, dtype=torch.float64, requires_grad=True)
    tau = penalty(d, a, reach)
    (slope,) = torch.autograd.grad(tau.sum(), d)
    assert tau[0].item() == pytest.approx(a * near**2 / 2)
    assert (tau.diff() <= 0).all()
    assert tau.diff().abs().max() < 2e-3  # no jump
    assert slope.diff().abs().max() < 2e-3  # no kink
    assert (tau[d > reach] == 0).all()


@pytest.mark.parametrize("sort", ["labels", "pairs", "triples"])
def test_similar_and_dissimilar_pairs_of_a_batch_have_equal_weight(
    sort: str,
) -> None:
    relation = World().training(300, sort).relation
    rows, columns, s, w = draw_pairs(relation, 32, np.random.default_rng(0))
    assert len(rows) == 32
    assert len(columns) <= 32
    assert w[s == 1].sum() == pytest.approx(0.5)
    assert w[s == 0].sum() == pytest.approx(0.5)


def test_unknown_pairs_have_no_weight() -> None:
    relation = SparseRelation.from_triples([(0, 0), (1, 2)], [1, 0], (3, 3))
    _, _, s, w = draw_pairs(relation, 8, np.random.default_rng(0))
    np.testing.assert_array_equal(w, [[0.5, 0, 0], [0, 0, 0.5], [0, 0, 0]])
    np.testing.assert_array_equal(s, [[1, 0, 0], [0, 0, 0], [0, 0, 0]])


def test_one_wanted_column_is_drawn_for_each_row() -> None:
    wanted = np.array([[0, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=bool)
    rng = np.random.default_rng(0)
    columns = np.array([draw_column_per_row(wanted, rng) for _ in range(60)])
    assert set(columns[:, 0]) == {1}
    assert set(columns[:, 1]) == {0, 1, 2}
    assert set(columns[:, 2]) == {0, 2}


def test_an_image_code_is_translated_into_the_text_space() -> None:
    training = World().training(100)
    hasher = HTH(bits=8, steps=40).fit(training)
    code = np.where(training.images @ hasher.weights_x_ - hasher.offset_x_ > 0, 1, -1)
    np.testing.assert_allclose(
        hasher.project_images(training.images), code @ hasher.translator_, rtol=1e-5, atol=1e-5
    )


def test_held_out_items_decide_when_to_stop() -> None:
    world = World()
    training, fresh = world.training(200), world.related(200)
    stopped = HTH(bits=16, learning_rate=0.5, held_out=0.2, check_every=5).fit(training)
    late = HTH(bits=16, learning_rate=0.5, held_out=0.0).fit(training)
    assert sum(held_out_map(stopped, fresh)) > sum(held_out_map(late, fresh))


def test_too_few_pairs_are_all_used_for_training() -> None:
    training = World().training(8, "pairs")
    only = SparseRelation.from_pairs(list("ab......"), list("a.b*****"))
    hasher = HTH(bits=8, steps=3).fit(TrainingSet(training.images, training.texts, only))
    assert hasher.encode_texts(training.texts).bits == 8


@pytest.mark.parametrize("rate", [1e30, 1e160, 1e300])
def test_a_diverging_training_is_reported(rate: float) -> None:
    with pytest.raises(DataError, match="diverged at step 2"):
        HTH(bits=8, learning_rate=rate).fit(World().training(60))
