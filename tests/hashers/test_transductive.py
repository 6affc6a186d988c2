"""Baselines that also train on target items, and the relation extended to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from transhash.data.relation import ExtendedRelation, LabelRelation, Relation, SparseRelation
from transhash.errors import DataError, NotFittedError
from transhash.hashers import make_hasher
from transhash.hashers.thn import THN
from transhash.hashers.transductive import TransductiveIMH
from transhash.hashers.tuning import map_both_directions
from transhash.model.encoder import load

from .worlds import World, dense

TRANSDUCTIVE = ["IMH+target", "CVH+target", "QCH+target", "DCMH+target"]
SMALL = {"image_hidden": (64,), "text_hidden": (64,), "epochs": 40}


def settings_for(method: str) -> dict[str, object]:
    return SMALL if method.startswith("DCMH") else {}


def target_map(method: str, seed: int) -> float:
    world = World(seed=seed, gap=1.2)
    training, fresh = world.training(400, targets=200), world.related(200, target=True)
    hasher = make_hasher(method, bits=16, **settings_for(method)).fit(training)
    codes = hasher.encode_images(fresh.images), hasher.encode_texts(fresh.texts)
    return float(np.mean(map_both_directions(*codes, fresh.relation)))


@pytest.mark.parametrize("method", ["IMH+target", "CVH+target", "QCH+target"])
def test_target_items_raise_the_map_of_a_baseline(method: str) -> None:
    baseline = method.removesuffix("+target")
    gains = [target_map(method, seed) - target_map(baseline, seed) for seed in range(3)]
    assert np.mean(gains) > 0.03


@pytest.mark.parametrize("method", TRANSDUCTIVE)
def test_a_transductive_baseline_is_saved_and_loaded(method: str, tmp_path: Path) -> None:
    training = World(gap=1.0).training(200)
    hasher = make_hasher(method, bits=16, **settings_for(method))
    with pytest.raises(NotFittedError):
        hasher.encode_images(training.images)
    hasher.fit(training).save(tmp_path / "hasher")
    again = load(tmp_path / "hasher")
    assert again.encode_images(training.target_images) == hasher.encode_images(
        training.target_images
    )
    assert again.encode_texts(training.target_texts) == hasher.encode_texts(training.target_texts)
    with pytest.raises(DataError, match="shape"):
        again.encode_images(training.images[:, 1:])
    state = {name: array for name, array in hasher.state().items() if "center." not in name}
    with pytest.raises(DataError, match="lacks center"):
        make_hasher(method, bits=16, **settings_for(method)).restore(state)


def test_each_domain_has_its_own_center() -> None:
    training = World(gap=1.0).training(200)
    hasher = make_hasher("QCH+target", bits=16).fit(training)
    auxiliary, _ = hasher.project_auxiliary(training.images, training.texts)
    assert not np.allclose(auxiliary, hasher.project_images(training.images))


def test_pseudo_labels_of_target_items_change_the_components() -> None:
    training = World(gap=1.0).training(200)
    initial, matched = (
        make_hasher("CVH+target", bits=16, matching_rounds=n).fit(training) for n in (0, 1)
    )
    weights, other = initial.state()["weights_x"], matched.state()["weights_x"]
    assert np.abs(weights - other).max() > 0.01 * np.abs(weights).max()


RELATIONS: list[Relation] = [
    LabelRelation(np.eye(3)[[0, 1, 2, 1]], np.eye(3)[[2, 1, 0, 0, 1]]),
    SparseRelation.from_pairs(list("abcd"), list("abcda")),
    SparseRelation.from_triples([(0, 1), (1, 1), (2, 4), (3, 0)], [1, 0, 1, 1], (4, 5)),
]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("relation", RELATIONS, ids=["labels", "pairs", "clicks"])
def test_the_relation_with_target_items_is_the_product_of_the_matches(
    relation: Relation, sparse: bool
) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(5), 2)
    form = sp.csr_array if sparse else np.asarray
    extended = ExtendedRelation(relation, form(p), form(q))
    s = np.vstack([np.eye(4), p]) @ dense(relation) @ np.vstack([np.eye(5), q]).T
    np.testing.assert_allclose(dense(extended), s, atol=1e-6)
    assert extended.shape == (7, 7)
    assert extended.positives == round(s.sum())
    known = 49 - 20 + relation.known
    assert extended.known == known
    mask = extended.block(np.arange(7), np.arange(7))[1]
    assert (49 if mask is None else mask.sum()) == known
    rows, columns = np.array([6, 0, 3]), np.array([1, 5])
    part = extended.subset(rows, columns)
    factors = part.factors()
    assert (factors is not None) == isinstance(relation, LabelRelation)
    if factors is not None:
        np.testing.assert_allclose(factors[0] @ factors[1].T, s[np.ix_(rows, columns)])
    np.testing.assert_allclose(dense(part), s[np.ix_(rows, columns)], atol=1e-6)
    texts = rng.normal(size=(2, 3))
    np.testing.assert_allclose(part.times(texts), s[np.ix_(rows, columns)] @ texts)
    images = rng.normal(size=(3, 2))
    np.testing.assert_allclose(part.transposed_times(images), s[np.ix_(rows, columns)].T @ images)
    partners = extended.sample_partners(np.arange(7), rng)
    has_partner = s.sum(axis=1) > 0
    assert (s[np.arange(7), partners][has_partner] > 0).all()


def test_the_initialization_of_thn_is_linear_and_close_to_the_trained_one() -> None:
    training = World(gap=1.0).training(200)
    initial = make_hasher("CCA+target", bits=16).fit(training)
    assert isinstance(initial, THN)
    assert float(initial.towers_["image"].fch.weight.detach().abs().max()) == 0  # type: ignore[union-attr]
    trained = THN(bits=16, steps=40).fit(training)
    agreement = (
        (initial.project_images(training.target_images) > 0)
        == (trained.project_images(training.target_images) > 0)
    ).mean()
    assert 0.8 < agreement < 1


def test_imh_takes_as_many_target_items_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    training = World(gap=1.0).training(200, targets=150)
    monkeypatch.setattr(TransductiveIMH, "max_items", 240)
    fitted = make_hasher("IMH+target", bits=16).fit(training)
    assert isinstance(fitted, TransductiveIMH)
    center = fitted.centers_["image.target"]
    monkeypatch.setattr(TransductiveIMH, "max_items", 350)
    everything = make_hasher("IMH+target", bits=16).fit(training)
    assert isinstance(everything, TransductiveIMH)
    assert np.abs(everything.centers_["image.target"] - center).max() > 0.01
