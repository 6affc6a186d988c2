"""With labels and captions, residual bits order the items of a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from transhash.data.relation import GradedRelation, LabelRelation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.hashers.thn import THN
from transhash.hashers.thn.initialization import residual_bit_axes
from transhash.hashers.thn.transfer import TransferStep
from transhash.model.encoder import load

from .worlds import World


def labels_and_pairs(world: World, n: int) -> tuple[LabelRelation, SparseRelation, TrainingSet]:
    sample, target = world.draw(n), world.draw(60, target=True)
    labels = LabelRelation(*[sample.one_hot(world.classes)] * 2)
    pairs = SparseRelation.from_pairs(*[[str(i) for i in range(n)]] * 2)
    graded = GradedRelation(labels, pairs)
    return labels, pairs, TrainingSet(
        sample.images, sample.texts, graded, target.images, target.texts
    )  # fmt: skip


def within_class(hasher: THN, world: World, n: int = 240) -> float:
    """Return the fraction of images of the class nearer to a text than its own; chance 0.5."""
    fresh = world.draw(n)
    x, y = hasher.project_auxiliary(fresh.images, fresh.texts)
    scores = np.tanh(y) @ np.where(x > 0, 1.0, -1.0).T
    shares = []
    for i in range(n):
        others = np.flatnonzero((fresh.labels == fresh.labels[i]) & (np.arange(n) != i))
        nearer = (scores[i, others] > scores[i, i]) + 0.5 * (scores[i, others] == scores[i, i])
        shares.append(nearer.mean())
    return float(np.mean(shares))


def test_pairs_with_labels_order_the_items_of_a_class() -> None:
    fractions = []
    for seed in range(2):
        world = World(seed=seed, classes=4)
        labels, _, both = labels_and_pairs(world, 400)
        alone = TrainingSet(both.images, both.texts, labels, both.target_images, both.target_texts)
        fractions.append(
            [within_class(THN(bits=64, steps=30).fit(part), world) for part in (alone, both)]
        )
    by_labels, by_both = np.mean(fractions, axis=0)
    assert by_both < by_labels - 0.05


def test_residual_bits_are_uncorrelated_with_the_components_of_labels() -> None:
    labels, pairs, both = labels_and_pairs(World(), 300)
    alone = TrainingSet(both.images, both.texts, labels)
    layer, _ = TransferStep(32, 0.05, None, 0, 0.05, 0.5, 0).build(alone, use_target=False)
    assert layer.image is not None
    assert layer.image.axes is not None
    assert layer.text.axes is not None
    x, y = both.images - layer.image.center, both.texts - layer.text.center
    more_x, more_y = residual_bit_axes(x, y, layer.image.axes, layer.text.axes, pairs, 0.05, 4, 0)
    assert more_x.shape == (x.shape[1], 4)
    np.testing.assert_allclose((x @ layer.image.axes).T @ (x @ more_x), 0, atol=1e-6)
    np.testing.assert_allclose((y @ layer.text.axes).T @ (y @ more_y), 0, atol=1e-6)
    assert ((x @ more_x > 0) == (y @ more_y > 0)).mean() > 0.7


def test_a_sixteenth_of_the_bits_are_residual() -> None:
    labels, _, both = labels_and_pairs(World(), 300)
    alone = TrainingSet(both.images, both.texts, labels, both.target_images, both.target_texts)
    transfer = TransferStep(64, 0.05, None, 2, 0.05, 0.5, 0)
    (plain, few), (graded, more) = (transfer.build(part, use_target=True) for part in (alone, both))
    assert (plain.residual_bits, graded.residual_bits) == (0, 4)
    np.testing.assert_allclose(more.images, few.images, atol=1e-6)
    hasher = THN(bits=64, steps=5).fit(both)
    assert hasher.project_texts(both.target_texts).shape[1] == 64
    assert hasher.project_texts(both.texts[:0]).shape == (0, 64)
    assert hasher.relation_bits == 60
    centered = both.target_images - hasher.input_layer_.image.target_center
    np.testing.assert_allclose(
        hasher.project_images(both.target_images)[:, 60:],
        centered @ hasher.input_layer_.image.residual_axes,
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_model_with_residual_bits_is_saved_and_loaded(tmp_path: Path) -> None:
    _, _, both = labels_and_pairs(World(), 200)
    hasher = THN(bits=64, steps=5).fit(both)
    hasher.save(tmp_path / "thn")
    again = load(tmp_path / "thn")
    assert isinstance(again, THN)
    assert again.encode_texts(both.texts) == hasher.encode_texts(both.texts)


def test_short_codes_have_no_residual_bits() -> None:
    _, _, both = labels_and_pairs(World(), 200)
    assert THN(bits=32, steps=2).fit(both).relation_bits == 32


def test_labels_without_a_pair_in_the_analysis_have_no_residual_bits() -> None:
    labels, _, both = labels_and_pairs(World(), 300)
    none = SparseRelation.from_triples([(0, 0), (1, 1)], [1, 1], labels.shape)
    none = none.subset(np.arange(300), np.roll(np.arange(300), 7))  # keeps both pairs
    few = TrainingSet(both.images, both.texts, GradedRelation(labels, none))
    assert THN(bits=64, steps=0).fit(few).relation_bits == 60
    lost = SparseRelation(sp.csr_array(labels.shape, dtype=np.float32))
    without = TrainingSet(both.images, both.texts, GradedRelation(labels, lost))
    assert THN(bits=64, steps=0).fit(without).relation_bits == 64
