"""Every term of C on one batch small enough to be worked out by hand, i.e. by plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from transhash.data.relation import ExtendedRelation, LabelRelation, SparseRelation
from transhash.hashers.components import leave_one_out_correlations
from transhash.hashers.deep import Device
from transhash.hashers.losses import alignment_loss, inner_product_loss, relation_loss
from transhash.hashers.thn import THN, transfer
from transhash.hashers.thn.batches import Batch, Batches, Items
from transhash.hashers.thn.input_layer import TowerInputs
from transhash.hashers.thn.objective import (
    Alignment,
    Objective,
    PseudoLabelTerm,
    Quantization,
    RelationTerm,
)
from transhash.hashers.thn.transfer import ModalityData, TransferStep, nearest_targets, soft_match
from transhash.hashers.world import SINGLE_PROCESS

from .worlds import World

BITS = 8
RATE = 0.25


def items(count: int, seed: int, weight: list[float] | None = None) -> Items:
    rng = torch.Generator().manual_seed(seed)
    z = torch.rand(count, BITS, generator=rng, dtype=torch.float64) * 1.8 - 0.9
    inputs = torch.randn(count, 3, generator=rng, dtype=torch.float64)
    return Items(inputs, z, None if weight is None else torch.tensor(weight, dtype=torch.float64))


def probability(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x @ y.T)


BATCH = Batch(
    images=items(2, 1, [1.0, 3.0]),
    texts=items(3, 2, [2.0, 1.0, 1.0]),
    target_images=items(2, 3),
    target_texts=items(2, 4),
    s=torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64),
    known=None,
    positive_rate=RATE,
    probability=probability,
)


def cross_entropy(x: Items, y: Items, s: Tensor, balanced: bool, scale: float) -> float:
    """Return the mean of w (log(1 + e^u) - s u), u = scale <z_x, z_y>."""
    related, unrelated = (0.5 / RATE, 0.5 / (1 - RATE)) if balanced else (1.0, 1.0)
    total = 0.0
    for i, j in product(range(len(x.z)), range(len(y.z))):
        u = scale * float(sum(a * b for a, b in zip(x.z[i].tolist(), y.z[j].tolist())))
        sij = float(s[i, j])
        total += related * sij * math.log(1 + math.exp(-u))
        total += unrelated * (1 - sij) * math.log(1 + math.exp(u))
    return total / (len(x.z) * len(y.z))


def scaled(scale: float) -> Any:
    def loss(z_x: Tensor, z_y: Tensor, s: Tensor, weights: Any, known: Any) -> Tensor:
        return relation_loss(z_x, z_y, s, weights, known, scale)

    return loss


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("soft", [0.0, 0.3])
def test_the_relation_term_is_the_weighted_cross_entropy(balanced: bool, soft: float) -> None:
    value = RelationTerm(scaled(0.2), balanced, soft)(BATCH, 0)["relation"]
    s = (1 - soft) * BATCH.s + soft * probability(BATCH.images.inputs, BATCH.texts.inputs)
    assert float(value) == pytest.approx(cross_entropy(BATCH.images, BATCH.texts, s, balanced, 0.2))


def test_unknown_pairs_do_not_count() -> None:
    known = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    value = RelationTerm(scaled(1.0), False)(replace(BATCH, known=known), 0)["relation"]
    u = BATCH.images.z @ BATCH.texts.z.T
    each = torch.log1p(torch.exp(u)) - BATCH.s * u
    assert float(value) == pytest.approx(float(each[known > 0].mean()))


def test_the_inner_product_loss_is_squared_and_signed() -> None:
    value = RelationTerm(inner_product_loss, False)(BATCH, 0)["relation"]
    total = 0.0
    for i, j in product(range(2), range(3)):
        u = float(BATCH.images.z[i] @ BATCH.texts.z[j]) / BITS
        total += (u - (2 * float(BATCH.s[i, j]) - 1)) ** 2
    assert float(value) == pytest.approx(total / 6)


@pytest.mark.parametrize("target", [True, False])
def test_quantization_is_minus_log_of_activations_from_its_start_on(target: bool) -> None:
    term = Quantization(0.5, start=10, target=target)
    assert term(BATCH, 9) == {}
    expected = 0.0
    for own, other in ((BATCH.images, BATCH.target_images), (BATCH.texts, BATCH.target_texts)):
        assert other is not None
        rows = [*own.z.tolist(), *(other.z.tolist() if target else [])]
        per_item = [-sum(math.log(max(abs(value), 1e-3)) for value in row) for row in rows]
        expected += sum(per_item) / len(per_item)
    value = float(term(BATCH, 10)["quantization"])
    assert value == pytest.approx(0.5 * expected)
    assert value > 0  # a barrier around zero


def test_pseudo_labels_cover_the_three_types_of_pairs_with_target_items() -> None:
    assert BATCH.target_images is not None
    assert BATCH.target_texts is not None
    value = PseudoLabelTerm(scaled(0.3), True, 0.6)(BATCH, 0)["inherited"]
    expected = sum(
        cross_entropy(x, y, probability(x.inputs, y.inputs), True, 0.3)
        for x, y in (
            (BATCH.target_images, BATCH.texts),
            (BATCH.images, BATCH.target_texts),
            (BATCH.target_images, BATCH.target_texts),
        )
    )
    assert float(value) == pytest.approx(0.6 * expected / 3)


def test_target_items_of_one_modality_have_pseudo_labels_and_are_aligned() -> None:
    images_only = replace(BATCH, target_texts=None)
    assert images_only.target_images is not None
    value = PseudoLabelTerm(scaled(0.3), True, 0.6)(images_only, 0)["inherited"]
    s = probability(images_only.target_images.inputs, BATCH.texts.inputs)
    expected = cross_entropy(images_only.target_images, BATCH.texts, s, True, 0.3)
    assert float(value) == pytest.approx(0.6 * expected)
    assert set(Alignment(1.0, 0, (1.0,))(images_only, 0)) == {"alignment_images"}


def mmd_by_loops(own: Items, target: Items, widths: tuple[float, ...]) -> float:
    """Return Σ w_i w_j k(i, j) over both domains, target items with weight -1/n̂."""
    z = own.z[: len(target.z)]
    assert own.weight is not None
    mass = own.weight[: len(z)].tolist()
    weights = [w / sum(mass) for w in mass] + [-1 / len(target.z)] * len(target.z)
    joint = [*z.tolist(), *target.z.tolist()]
    squares = [[sum((a - b) ** 2 for a, b in zip(one, other)) for other in joint] for one in joint]
    flat = sorted(value for row in squares for value in row)
    middle = max(flat[(len(flat) - 1) // 2], 0.01 * BITS)  # torch's lower median
    return sum(
        weights[i] * weights[j] * math.exp(-width * squares[i][j] / middle) / len(widths)
        for i in range(len(joint))
        for j in range(len(joint))
        for width in widths
    )


def test_alignment_is_weighted_mmd_that_ramps_up() -> None:
    assert BATCH.target_images is not None
    assert BATCH.target_texts is not None
    widths = (1.0, 4.0)
    term = Alignment(0.8, ramp=10, widths=widths)
    assert term(BATCH, 0) == {}
    full, half = term(BATCH, 10), term(BATCH, 5)
    images = mmd_by_loops(BATCH.images, BATCH.target_images, widths)
    texts = mmd_by_loops(BATCH.texts, BATCH.target_texts, widths)
    assert float(full["alignment_images"]) == pytest.approx(0.8 * images)
    assert float(full["alignment_texts"]) == pytest.approx(0.8 * texts)
    assert float(half["alignment_images"]) == pytest.approx(0.4 * images)
    assert float(term(BATCH, 20)["alignment_texts"]) == pytest.approx(0.8 * texts)


def test_mmd_without_weights_is_even() -> None:
    own, target = items(4, 7), items(4, 8)
    even = Items(own.inputs, own.z, torch.ones(4, dtype=torch.float64))
    value = alignment_loss(own.z, target.z, (1.0, 16.0))
    assert float(value) == pytest.approx(mmd_by_loops(even, target, (1.0, 16.0)))


def test_the_objective_has_the_terms_of_nonzero_weight() -> None:
    names = {
        "THN": {"relation", "quantization", "inherited", "alignment_images", "alignment_texts"},
        "no Q": {"relation", "inherited", "alignment_images", "alignment_texts"},
        "no D": {"relation", "quantization", "inherited"},
        "L alone": {"relation"},
    }
    settings: dict[str, dict[str, float]] = {
        "THN": {},
        "no Q": {"quantization_weight": 0.0},
        "no D": {"alignment_weight": 0.0},
        "L alone": {
            "quantization_weight": 0.0, "alignment_weight": 0.0, "pseudo_label_weight": 0.0
        },
    }  # fmt: skip
    for name, changed in settings.items():
        thn = THN(bits=BITS, steps=10, **changed)  # type: ignore[arg-type]
        assert set(thn.objective()(BATCH, 9)) == names[name]


def test_the_settings_reach_their_terms() -> None:
    thn = THN(
        bits=BITS, steps=200, quantization_weight=0.01, quantization_start=0.3,
        soft_label_fraction=0.4, quantize_target=False, pseudo_label_weight=0.7,
        alignment_weight=0.9, alignment_ramp=0.2, kernel_widths=(2.0,), balanced=False,
        logit_scale=0.25,
    )  # fmt: skip
    relation, quantization, inherited, alignment = thn.objective().terms
    assert quantization == Quantization(0.01, 60.0, False)
    assert alignment == Alignment(0.9, 40.0, (2.0,))
    assert isinstance(relation, RelationTerm)
    assert isinstance(inherited, PseudoLabelTerm)
    assert (relation.balanced, relation.soft_label_fraction) == (False, 0.4)
    assert (inherited.balanced, inherited.weight) == (False, 0.7)
    expected = cross_entropy(BATCH.images, BATCH.texts, BATCH.s, False, 0.25)
    value = RelationTerm(relation.loss, False)(BATCH, 0)["relation"]
    assert float(value) == pytest.approx(expected)


def test_the_objective_after_a_collapse_has_no_regularizers() -> None:
    recovered = THN(bits=BITS, steps=10).objective().without_regularizers()
    assert isinstance(recovered, Objective)
    assert set(recovered(BATCH, 9)) == {"relation", "inherited"}
    assert not recovered.is_regularized


class Identity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_batch_with_more_related_pairs_shifts_their_log_odds() -> None:
    n = 200
    keys = [str(i) for i in range(n)]
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, BITS)).astype(np.float32) for _ in range(2))
    slope, offset = 3.0, -4.0
    batches = Batches(
        TowerInputs(x, y, calibration=(slope, offset)), SparseRelation.from_pairs(keys, keys),
        Device("cpu"), size=16, target_size=4, seed=0,
    )  # fmt: skip
    towers = nn.ModuleDict({"image": Identity(), "text": Identity()})
    batch = batches.batch_at(3, towers, SINGLE_PROCESS)
    rate = float(batch.s.mean())
    assert batch.positive_rate == pytest.approx(rate)
    assert rate > 8 / n  # half of the texts are partners; by chance one pair in 200 is related
    assert batch.probability is not None
    value = batch.probability(batch.images.inputs, batch.texts.inputs)
    one, other = batch.images.inputs[2].double(), batch.texts.inputs[5].double()
    cosine = float(one @ other / (one.norm() * other.norm()))
    odds = slope * cosine + offset
    odds += math.log(rate / (1 - rate)) - math.log((1 / n) / (1 - 1 / n))
    assert float(value[2, 5]) == pytest.approx(1 / (1 + math.exp(-odds)), rel=1e-4)


def test_labeled_batches_have_the_rate_of_the_full_relation() -> None:
    labels = np.eye(4, dtype=bool)[np.arange(40) % 4]
    x = np.random.default_rng(1).standard_normal((40, BITS)).astype(np.float32)
    batches = Batches(
        TowerInputs(x, x, x[:9], x[:7], np.arange(40, dtype=np.float32)),
        LabelRelation(labels, labels), Device("cpu"), size=16, target_size=4, seed=0,
    )  # fmt: skip
    batch = batches.batch_at(
        0, nn.ModuleDict({"image": Identity(), "text": Identity()}), SINGLE_PROCESS
    )
    assert batch.positive_rate == 0.25
    assert batch.probability is None
    assert batch.target_images is not None
    assert batch.target_texts is not None
    assert (len(batch.target_images.z), len(batch.target_texts.z)) == (4, 4)
    torch.testing.assert_close(batch.images.z, torch.tanh(batch.images.inputs))
    assert batch.images.weight is not None
    rows = batch.images.weight.long().tolist()  # the weights here are row numbers
    torch.testing.assert_close(batch.images.inputs, torch.from_numpy(x[rows]))


def test_target_items_are_matched_by_cosine() -> None:
    auxiliary = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    value = soft_match(np.array([[5.0, 0.0], [0.0, 0.1]]), auxiliary, 0.5)
    odds = np.exp([[2.0, 0.0, -2.0], [0.0, 2.0, 0.0]])
    np.testing.assert_allclose(value, odds / odds.sum(axis=1, keepdims=True))


def test_of_many_matches_the_largest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    target, auxiliary = rng.normal(size=(30, 4)), rng.normal(size=(9, 4))
    p, graph = soft_match(target, auxiliary, 0.5), nearest_targets(target)
    smooth = transfer.smooth_matches(p, graph, 0.25)
    monkeypatch.setattr(transfer, "_MAX_DENSE_ENTRIES", 30 * 9 - 1)
    monkeypatch.setattr(transfer, "_CHUNK_ROWS", 7)
    for count in (9, 3):
        monkeypatch.setattr(transfer, "_MATCHES_PER_ITEM", count)
        sparse = transfer.match_items(target, auxiliary, 0.5)
        assert isinstance(sparse, sp.csr_array)
        expected = np.where(p >= np.sort(p, axis=1)[:, [-count]], p, 0)
        expected /= expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(sparse.toarray(), expected)
    monkeypatch.setattr(transfer, "_MATCHES_PER_ITEM", 9)
    sparse = transfer.smooth_matches(sp.csr_array(p), graph, 0.25)
    assert isinstance(sparse, sp.csr_array)
    np.testing.assert_allclose(sparse.toarray(), smooth)


def test_neighbors_are_the_most_similar_other_target_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_NEIGHBORS", 2)
    monkeypatch.setattr(transfer, "_CHUNK_ROWS", 4)
    angles = np.radians([0, 10, 25, 120, 130, 145, 240, 250, 265])
    target = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    target -= target.mean(axis=0)
    x = target / np.linalg.norm(target, axis=1, keepdims=True)
    graph = nearest_targets(np.concatenate([target, np.zeros((1, 2))]) + 5).toarray()
    for group in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
        for i in group:
            others = [j for j in group if j != i]
            cosine = x[others] @ x[i]
            np.testing.assert_allclose(graph[i, others], cosine / cosine.sum(), rtol=1e-5)
    np.testing.assert_allclose(graph.sum(axis=1), 1.0)
    assert graph[9, 9] == 1.0  # it resembles no other
    monkeypatch.setattr(transfer, "_MAX_NEIGHBOR_SAMPLE", 5)  # rows 0, 2, 4, 6 and 8 of 9
    sampled = nearest_targets(target).toarray()
    assert set(np.flatnonzero(sampled.any(axis=0))) <= {0, 2, 4, 6, 8}
    assert np.flatnonzero(sampled.diagonal()).tolist() == [4]  # resembles none of the sample


def test_target_items_do_not_outweigh_auxiliary_ones() -> None:
    rng = np.random.default_rng(1)
    auxiliary, target = rng.normal(size=(6, 3)), rng.normal(size=(24, 3))
    data = ModalityData(auxiliary, np.ones((6, 1)), target)
    p = soft_match(target - data.target_center, data.auxiliary, 0.1)
    data.match_target(np.asarray, 0.1, 0.0)
    smooth = 0.25 * p + 0.75 * nearest_targets(target) @ p
    np.testing.assert_allclose(data.match, 0.25 * smooth)
    few = ModalityData(auxiliary, np.ones((6, 1)), target[:5])
    p = soft_match(target[:5] - few.target_center, few.auxiliary, 0.1)
    few.match_target(np.asarray, 0.1, 0.0)
    np.testing.assert_array_equal(few.match, p)


def test_the_extended_relation_is_p_s_q() -> None:
    rng = np.random.default_rng(2)
    labels_x, labels_y = np.eye(3, dtype=bool)[[0, 1, 2, 0]], np.eye(3, dtype=bool)[[2, 1, 0]]
    relation = LabelRelation(labels_x, labels_y)
    s = relation.block(np.arange(4), np.arange(3))[0].astype(float)
    p, q = rng.random((2, 4)), rng.random((5, 3))
    for rows, columns in ((p, q), (p, None), (None, q)):
        left = np.eye(4) if rows is None else np.concatenate([np.eye(4), rows])
        right = np.eye(3) if columns is None else np.concatenate([np.eye(3), columns])
        dense_relation = left @ s @ right.T
        extended = ExtendedRelation(relation, rows, columns)
        assert extended.shape == dense_relation.shape
        a, b = rng.random((dense_relation.shape[1], 2)), rng.random((dense_relation.shape[0], 2))
        np.testing.assert_allclose(extended.times(a), dense_relation @ a)
        np.testing.assert_allclose(extended.transposed_times(b), dense_relation.T @ b)


def test_each_domain_has_its_center_and_matched_items_have_more_weight() -> None:
    auxiliary = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    target = np.array([[10.0, 0.0], [11.0, 1.0], [12.0, -1.0]])
    data = ModalityData(auxiliary, np.array([[1.0], [1.0], [2.0]]), target)
    np.testing.assert_allclose(data.center, [1.75, 1.75])  # the third item is related twice
    np.testing.assert_allclose(data.target_center, [11.0, 0.0])
    assert len(data.stacked()) == 3  # target items only once matched
    data.match_target(np.asarray, 0.1, 0.5)
    assert data.match is not None
    assert isinstance(data.match, np.ndarray)
    matched = (data.match @ (auxiliary - data.center)).mean(axis=0)
    assert np.abs(matched).max() > 0.1
    np.testing.assert_allclose(data.target_center, [11.0, 0.0] - 0.5 * matched)
    np.testing.assert_allclose(data.stacked()[3:], target - data.target_center)
    weights = data.mmd_weights(np.array([0, 1, 3]), 5)
    assert weights is not None
    mean_match = data.match.mean(axis=0)
    np.testing.assert_allclose(weights[[0, 1, 3]], 0.5 + 1.5 * mean_match, rtol=1e-6)
    np.testing.assert_allclose(weights[[2, 4]], 1.0)


def test_voted_items_use_the_center_of_the_target() -> None:
    auxiliary = np.array([[1.0, 0.0], [0.0, 1.0], [11.0, 1.0]])
    target = np.array([[10.0, 0.0], [12.0, 0.0]])
    data = ModalityData(auxiliary, np.ones((3, 1)), target, np.array([False, False, True]))
    np.testing.assert_allclose(data.center, [0.5, 0.5])
    np.testing.assert_allclose(data.auxiliary, [[0.5, -0.5], [-0.5, 0.5], [0.0, 1.0]])


@pytest.mark.parametrize("sort", ["labels", "pairs"])
def test_components_of_pairs_are_weighted_and_those_of_labels_are_not(
    sort: str,
) -> None:
    training = World(seed=3).training(300, sort)
    layer, inputs = TransferStep(32, 0.05, None, 0, 0.05, 0.5, 0).build(training, use_target=False)
    assert layer.image is not None
    assert layer.image.axes is not None
    rank = layer.image.axes.shape[1]
    even, plain = TransferStep(32, 0.05, rank, 0, 0.05, 0.5, 0).build(training, use_target=False)
    assert even.image is not None
    assert even.image.axes is not None
    weights = np.linalg.norm(layer.image.axes, axis=0) / np.linalg.norm(even.image.axes, axis=0)
    expected = np.ones(rank)
    if sort == "pairs":
        z_x, z_y = (z.astype(np.float64) for z in (plain.images, plain.texts))
        expected = leave_one_out_correlations(z_x, z_y, training.relation)
        assert expected[0] > 1.1 * expected[-1]
    np.testing.assert_allclose(weights, expected, rtol=1e-4)
    np.testing.assert_allclose(inputs.texts, plain.texts * expected, rtol=1e-3, atol=1e-5)
