"""PairHasher inside scikit-learn: clone, pipelines, searches and cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from transhash import CVH, THN, SparseRelation, TrainingSet
from transhash.errors import DataError
from transhash.hashers.tuning import map_both_directions
from transhash.plugins.sklearn import PairHasher

CLASSES = 6


@pytest.fixture(scope="module")
def pairs() -> tuple[Any, Any]:
    """Image and text features around the same points of a common space, 120 pairs."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(CLASSES, 8))[np.arange(120) % CLASSES]
    latent = latent + 0.3 * rng.normal(size=latent.shape)
    x = latent @ rng.normal(size=(8, 20)) + 0.1 * rng.normal(size=(120, 20))
    y = latent @ rng.normal(size=(8, 24)) + 0.1 * rng.normal(size=(120, 24))
    return x, y


def test_codes_are_those_of_the_hasher(pairs: Any) -> None:
    x, y = pairs
    keys = [str(i) for i in range(len(x))]
    hasher = CVH(bits=16).fit(TrainingSet(x, y, SparseRelation.from_pairs(keys, keys)))
    estimator = PairHasher(CVH(bits=16)).fit(x, y)
    images, texts = estimator.transform(x), estimator.transform_texts(y)
    assert (images == (hasher.encode_images(x).signs() > 0)).all()
    assert (texts == (hasher.encode_texts(y).signs() > 0)).all()
    assert images.dtype == np.uint8


def test_a_clone_has_the_settings_and_is_not_fitted(pairs: Any) -> None:
    fitted = PairHasher(THN(bits=8, steps=3, seed=4)).fit(*pairs, target_images=pairs[0][:50])
    copy = clone(fitted)
    assert copy.get_params()["hasher__bits"] == 8
    assert copy.get_params()["hasher__seed"] == 4
    assert copy.hasher is not fitted.hasher
    with pytest.raises(NotFittedError):
        copy.transform(pairs[0])
    copy.set_params(hasher__bits=16)
    assert (copy.hasher.bits, fitted.hasher.bits) == (16, 8)


def test_it_is_a_step_of_a_pipeline(pairs: Any) -> None:
    x, y = pairs
    pipeline = make_pipeline(StandardScaler(), PairHasher(CVH(bits=16))).fit(x, y)
    scaled = StandardScaler().fit_transform(x)
    expected = PairHasher(CVH(bits=16)).fit(scaled, y)
    assert (pipeline.transform(x) == expected.transform(scaled)).all()
    assert pipeline.score(x, y) == expected.score(scaled, y)
    neighbors = NearestNeighbors(metric="hamming").fit(pipeline.transform(x))
    _, nearest = neighbors.kneighbors(expected.transform_texts(y), 1)
    assert np.mean(nearest[:, 0] % CLASSES == np.arange(len(x)) % CLASSES) > 2 / CLASSES


def test_a_grid_search_chooses_settings_by_held_out_map(pairs: Any) -> None:
    x, y = pairs
    pipeline = Pipeline([("scale", StandardScaler()), ("hash", PairHasher(CVH(bits=8)))])
    folds = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(pipeline, {"hash__hasher__bits": [8, 16]}, cv=folds).fit(x, y)
    means = [
        cross_val_score(clone(pipeline).set_params(hash__hasher__bits=bits), x, y, cv=folds).mean()
        for bits in (8, 16)
    ]
    assert search.cv_results_["mean_test_score"].tolist() == pytest.approx(means)
    assert search.best_params_ == {"hash__hasher__bits": (8, 16)[int(np.argmax(means))]}
    assert search.best_estimator_.transform(x).shape == (
        len(x),
        search.best_estimator_[1].hasher.bits,
    )
    chance = PairHasher(CVH(bits=16)).fit(x, np.random.default_rng(1).permutation(y))
    assert search.best_score_ > 2 * chance.score(x, y)


def test_rows_of_one_image_are_one_item(pairs: Any) -> None:
    x, y = pairs
    images = np.repeat(x[:40], 2, axis=0)  # two texts each
    estimator = PairHasher(CVH(bits=16)).fit(images, y[:80])
    relation = SparseRelation(np.kron(np.eye(40), np.ones((1, 2))))
    hasher = CVH(bits=16).fit(TrainingSet(x[:40], y[:80], relation))
    assert (estimator.transform(x) == (hasher.encode_images(x).signs() > 0)).all()
    codes = hasher.encode_images(x[:40]), hasher.encode_texts(y[:80])
    expected = np.mean(map_both_directions(*codes, relation))
    assert estimator.score(images, y[:80]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), "3 rows and y has 4"),
        (np.ones(3), np.ones((3, 2)), "X has the shape"),
        (np.ones((3, 2)), ["a", "b", "c"], "y has the shape"),
        (np.full((3, 2), np.nan), np.eye(3), "nan"),
    ],
)
def test_unusable_pairs_are_refused(x: Any, y: Any, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        PairHasher().fit(x, y)


def test_a_method_without_codes_is_refused(pairs: Any) -> None:
    with pytest.raises(DataError, match="hasher is a str"):
        PairHasher("CVH").fit(*pairs)  # type: ignore[arg-type]
