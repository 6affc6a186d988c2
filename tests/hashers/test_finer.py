"""Labels and captions together: classes as with labels alone, and an order within them."""

from __future__ import annotations

import numpy as np

from transhash.data.relation import GradedRelation, LabelRelation, SparseRelation
from transhash.data.training import TrainingSet
from transhash.hashers.thn import THN
from transhash.hashers.thn.finer import finer_directions
from transhash.hashers.thn.transfer import Transfer

from .worlds import World


def rows_with_both(world: World, n: int) -> tuple[LabelRelation, SparseRelation, TrainingSet]:
    drawn, target = world.draw(n), world.draw(60, target=True)
    labels = LabelRelation(*[drawn.one_hot(world.classes)] * 2)
    pairs = SparseRelation.from_pairs(*[[str(i) for i in range(n)]] * 2)
    graded = GradedRelation(labels, pairs)
    return labels, pairs, TrainingSet(
        drawn.images, drawn.texts, graded, target.images, target.texts
    )  # fmt: skip


def within_class(hasher: THN, world: World, n: int = 240) -> float:
    """Share of its class's pictures that are nearer to a fresh text than its own; chance 0.5."""
    fresh = world.draw(n)
    x, y = hasher.held_out_projections(fresh.images, fresh.texts)
    scores = np.tanh(y) @ np.where(x > 0, 1.0, -1.0).T
    shares = []
    for i in range(n):
        others = np.flatnonzero((fresh.labels == fresh.labels[i]) & (np.arange(n) != i))
        nearer = (scores[i, others] > scores[i, i]) + 0.5 * (scores[i, others] == scores[i, i])
        shares.append(nearer.mean())
    return float(np.mean(shares))


def test_pairs_beside_labels_order_the_items_of_a_class() -> None:
    found = []
    for seed in range(2):
        world = World(seed=seed, classes=4)
        labels, _, both = rows_with_both(world, 400)
        alone = TrainingSet(both.images, both.texts, labels, both.target_images, both.target_texts)
        found.append(
            [within_class(THN(bits=32, steps=30).fit(part), world) for part in (alone, both)]
        )
    by_labels, by_both = np.mean(found, axis=0)
    assert by_both < by_labels - 0.05


def test_finer_directions_know_nothing_of_the_coordinates_of_labels() -> None:
    labels, pairs, both = rows_with_both(World(), 300)
    alone = TrainingSet(both.images, both.texts, labels)
    bridge, _ = Transfer(0.05, None, 0, 0.05, 0.5, 0).bridge(alone, use_target=False)
    assert bridge.image is not None
    assert bridge.image.axes is not None
    assert bridge.text.axes is not None
    x, y = both.images - bridge.image.centre, both.texts - bridge.text.centre
    finer = finer_directions(x, y, bridge.image.axes, bridge.text.axes, pairs, 0.05)
    np.testing.assert_allclose((x @ bridge.image.axes).T @ (x @ finer.image_axes), 0, atol=1e-6)
    np.testing.assert_allclose((y @ bridge.text.axes).T @ (y @ finer.text_axes), 0, atol=1e-6)


def test_the_layer_begins_with_the_directions_of_the_labels() -> None:
    labels, _, both = rows_with_both(World(), 300)
    alone = TrainingSet(both.images, both.texts, labels, both.target_images, both.target_texts)
    rule = Transfer(0.05, None, 2, 0.05, 0.5, 0)
    (plain, few), (graded, more) = (rule.bridge(part, use_target=True) for part in (alone, both))
    k = few.images.shape[1]
    assert more.images.shape[1] > k
    np.testing.assert_allclose(more.images[:, :k], few.images, atol=1e-6)
    assert few.target_texts is not None
    assert more.target_texts is not None
    np.testing.assert_allclose(more.target_texts[:, :k], few.target_texts, atol=1e-6)
    # A target item that took part has the finer coordinates that the layer gives it.
    expected = graded.text.apply(both.target_texts)[:, k:]
    np.testing.assert_allclose(more.target_texts[:, k:], expected, atol=1e-5)
    assert plain.text.axes is not None
    assert plain.text.axes.shape[1] == k
