"""Rivals that see the target's unlabelled items, and the parts that THN is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transhash.data.relation import ExtendedRelation, LabelRelation, Relation, SparseRelation
from transhash.errors import DataError, NotFittedError
from transhash.hashers import make_hasher
from transhash.hashers.thn import THN
from transhash.hashers.tuning import map_both_directions
from transhash.model.encoder import load

from .worlds import World, dense

FED = ["CVH+target", "QCH+target", "DCMH+target"]
SMALL = {"image_hidden": (64,), "text_hidden": (64,), "epochs": 40}


def settings_of(method: str) -> dict[str, object]:
    return SMALL if method.startswith("DCMH") else {}


def map_across(method: str, seed: int) -> float:
    world = World(seed=seed, gap=1.2)
    training, fresh = world.training(400, targets=200), world.related(200, target=True)
    hasher = make_hasher(method, bits=16, **settings_of(method)).fit(training)
    codes = hasher.encode_images(fresh.images), hasher.encode_texts(fresh.texts)
    return float(np.mean(map_both_directions(*codes, fresh.relation)))


@pytest.mark.parametrize("method", ["CVH+target", "QCH+target"])
def test_a_rival_that_is_fed_crosses_the_gap_better(method: str) -> None:
    gains = [map_across(method, seed) - map_across(method[:-4], seed) for seed in range(3)]
    assert np.mean(gains) > 0.03


@pytest.mark.parametrize("method", FED)
def test_a_fed_rival_is_saved_loaded_and_refuses_other_features(
    method: str, tmp_path: Path
) -> None:
    training = World(gap=1.0).training(200)
    hasher = make_hasher(method, bits=16, **settings_of(method))
    with pytest.raises(NotFittedError):
        hasher.encode_images(training.images)
    hasher.fit(training).save(tmp_path / "fed")
    again = load(tmp_path / "fed")
    assert again.encode_images(training.target_images) == hasher.encode_images(
        training.target_images
    )
    assert again.encode_texts(training.target_texts) == hasher.encode_texts(training.target_texts)
    with pytest.raises(DataError, match="images have shape"):
        again.encode_images(training.images[:, 1:])
    state = {name: array for name, array in hasher.state().items() if "centre." not in name}
    with pytest.raises(DataError, match="lacks the domains' centres"):
        make_hasher(method, bits=16, **settings_of(method)).restore(state)


def test_each_domain_of_a_fed_rival_has_a_centre_of_its_own() -> None:
    training = World(gap=1.0).training(200)
    hasher = make_hasher("QCH+target", bits=16).fit(training)
    own, _ = hasher.project_auxiliary(training.images, training.texts)
    assert not np.allclose(own, hasher.project_images(training.images))


def test_relations_that_target_items_inherit_turn_the_directions() -> None:
    training = World(gap=1.0).training(200)
    alone, fed = (
        make_hasher("CVH+target", bits=16, matching_rounds=n).fit(training) for n in (0, 1)
    )
    apart = np.abs(alone.state()["weights_x"] - fed.state()["weights_x"]).max()
    assert apart > 0.01 * np.abs(alone.state()["weights_x"]).max()


RELATIONS: list[Relation] = [
    LabelRelation(np.eye(3)[[0, 1, 2, 1]], np.eye(3)[[2, 1, 0, 0, 1]]),
    SparseRelation.from_pairs(list("abcd"), list("abcda")),
    SparseRelation.from_triples([(0, 1), (1, 1), (2, 4), (3, 0)], [1, 0, 1, 1], (4, 5)),
]


@pytest.mark.parametrize("relation", RELATIONS, ids=["labels", "pairs", "clicks"])
def test_the_relation_with_target_items_is_the_product_of_the_matches(relation: Relation) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(5), 2)
    extended = ExtendedRelation(relation, p, q)
    whole = np.vstack([np.eye(4), p]) @ dense(relation) @ np.vstack([np.eye(5), q]).T
    np.testing.assert_allclose(dense(extended), whole, atol=1e-6)
    assert extended.shape == (7, 7)
    assert extended.positives == round(whole.sum())
    known = 49 - 20 + relation.known
    assert extended.known == known
    mask = extended.block(np.arange(7), np.arange(7))[1]
    assert (49 if mask is None else mask.sum()) == known
    rows, columns = np.array([6, 0, 3]), np.array([1, 5])
    part = extended.subset(rows, columns)
    factors = part.factors()
    assert (factors is not None) == isinstance(relation, LabelRelation)
    if factors is not None:
        np.testing.assert_allclose(factors[0] @ factors[1].T, whole[np.ix_(rows, columns)])
    np.testing.assert_allclose(dense(part), whole[np.ix_(rows, columns)], atol=1e-6)
    texts = rng.normal(size=(2, 3))
    np.testing.assert_allclose(part.times(texts), whole[np.ix_(rows, columns)] @ texts)
    images = rng.normal(size=(3, 2))
    np.testing.assert_allclose(
        part.transposed_times(images), whole[np.ix_(rows, columns)].T @ images
    )
    drawn = extended.sample_partners(np.arange(7), rng)
    some = whole.sum(axis=1) > 0
    assert (whole[np.arange(7), drawn][some] > 0).all()


def test_the_start_alone_is_linear_and_what_thn_is_trained_from() -> None:
    training = World(gap=1.0).training(200)
    start = make_hasher("CCA+target", bits=16).fit(training)
    assert isinstance(start, THN)
    assert float(start.towers_["image"].fch.weight.detach().abs().max()) == 0  # type: ignore[union-attr]
    trained = THN(bits=16, steps=40).fit(training)
    agreeing = (
        (start.project_images(training.target_images) > 0)
        == (trained.project_images(training.target_images) > 0)
    ).mean()
    assert 0.8 < agreeing < 1
