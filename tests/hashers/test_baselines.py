"""Real-valued baselines against their definitions written as loops."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from transhash.data.relation import LabelRelation, Relation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError, NotFittedError
from transhash.hashers import METHODS, Scorer, make_hasher, make_method
from transhash.hashers.baselines import NearestNeighbors, RidgeClassifier, RidgeRegression

from .worlds import Sample, World, dense

NAMES = [method.name for method in METHODS if not method.has_codes]
every_baseline = pytest.mark.parametrize("name", NAMES)
every_sort = pytest.mark.parametrize("sort", ["labels", "pairs", "triples"])

Matrix = npt.NDArray[np.floating]


def make(name: str) -> Scorer:
    learner = make_method(name, bits=16)
    assert isinstance(learner, Scorer)
    return learner


@cache
def world() -> tuple[World, TrainingSet, Sample]:
    source = World(seed=2)
    return source, source.training(120), source.draw(20)


def cosine(a: Matrix, b: Matrix) -> float:
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


def nearest(item: Matrix, others: Matrix, allowed: list[int], k: int) -> list[int]:
    return sorted(allowed, key=lambda other: -cosine(item, others[other]))[:k]


@every_sort
def test_knn_is_the_mean_over_partners_of_neighbors(sort: str) -> None:
    source = World(seed=8)
    training, fresh = source.training(40, sort), source.draw(6)
    s = dense(training.relation)
    s[3], s[:, 5] = 0, 0  # an image and a text without partners
    relation = LabelRelation(s > 0, np.eye(s.shape[1], dtype=bool))
    data = TrainingSet(training.images, training.texts, relation)
    scores = NearestNeighbors(n_neighbors=4).fit(data).score(fresh.images, fresh.texts)
    mean_x, mean_y = (part.mean(axis=0, dtype=np.float64) for part in (data.images, data.texts))
    x, y = data.images - mean_x, data.texts - mean_y
    with_text = [a for a in range(len(x)) if s[a].any()]
    with_image = [j for j in range(len(y)) if s[:, j].any()]
    for i, image in enumerate(fresh.images - mean_x):
        for t, text in enumerate(fresh.texts - mean_y):
            by_text = [
                np.mean([cosine(image, x[a]) for a in np.flatnonzero(s[:, j])])
                for j in nearest(text, y, with_image, 4)
            ]
            by_image = [
                np.mean([cosine(text, y[j]) for j in np.flatnonzero(s[a])])
                for a in nearest(image, x, with_text, 4)
            ]
            expected = (np.mean(by_text) + np.mean(by_image)) / 2
            assert scores[i, t] == pytest.approx(expected, abs=1e-5)


def solve_ridge(features: Matrix, wanted: Matrix, penalty: float) -> Matrix:
    """Solve the normal equations, one output at a time."""
    gram = features.T @ features + penalty * np.eye(features.shape[1])
    return np.stack([np.linalg.solve(gram, features.T @ column) for column in wanted.T], axis=1)


@every_sort
def test_ridge_predicts_the_mean_partner(sort: str) -> None:
    source = World(seed=9, dx=12, dy=90)  # fewer and more features than items
    training, fresh = source.training(50, sort), source.draw(6)
    scores = RidgeRegression(ridge=0.5).fit(training).score(fresh.images, fresh.texts)
    s = dense(training.relation)
    x = training.images - training.images.mean(axis=0, dtype=np.float64)
    y = training.texts - training.texts.mean(axis=0, dtype=np.float64)
    own_x, own_y = s.any(axis=1), s.any(axis=0)
    mean_text = np.array([y[row > 0].mean(axis=0) for row in s[own_x]])
    mean_image = np.array([x[column > 0].mean(axis=0) for column in s.T[own_y]])
    to_text = solve_ridge(x[own_x], mean_text, 0.5 * (x**2).sum() / x.shape[1])
    to_image = solve_ridge(y[own_y], mean_image, 0.5 * (y**2).sum() / y.shape[1])
    for i, image in enumerate(fresh.images - training.images.mean(axis=0, dtype=np.float64)):
        for t, text in enumerate(fresh.texts - training.texts.mean(axis=0, dtype=np.float64)):
            expected = (cosine(image, text @ to_image) + cosine(image @ to_text, text)) / 2
            assert scores[i, t] == pytest.approx(expected, abs=1e-5)


def test_the_ridge_classifier_regresses_on_one_hot_labels() -> None:
    source = World(seed=9, dx=12, dy=90)
    training, fresh = source.training(50), source.draw(6)
    scores = RidgeClassifier(ridge=0.5).fit(training).score(fresh.images, fresh.texts)
    assert isinstance(training.relation, LabelRelation)
    predictions = []
    for features, labels, items in (
        (training.images, training.relation.image_labels, fresh.images),
        (training.texts, training.relation.text_labels, fresh.texts),
    ):
        mean = features.mean(axis=0, dtype=np.float64)
        x, targets = features - mean, labels - labels.mean(axis=0)
        weights = solve_ridge(x, targets, 0.5 * (x**2).sum() / x.shape[1])
        predictions.append((items - mean) @ weights)
    for i, p in enumerate(predictions[0]):
        for t, q in enumerate(predictions[1]):
            assert scores[i, t] == pytest.approx(cosine(p, q), abs=1e-5)


def test_the_ridge_classifier_needs_labels() -> None:
    with pytest.raises(DataError, match="needs class labels"):
        RidgeClassifier().fit(World().training(50, "pairs"))


def precision(scores: Matrix, relation: Relation) -> float:
    """Return the mean precision of the first tenth of every list, in both directions."""
    s = dense(relation)
    precisions = []
    for values, relevant in [*zip(scores, s, strict=True), *zip(scores.T, s.T, strict=True)]:
        best = np.argsort(-values)[: len(values) // 10]
        precisions.append(relevant[best].mean())
    return float(np.mean(precisions))


@pytest.mark.parametrize(
    ("name", "sort"),
    [
        (name, sort)
        for name in NAMES
        for sort in ("labels", "pairs", "triples")
        if sort == "labels" or not name.startswith("ridge-classifier")
    ],
)
def test_related_items_rank_first(name: str, sort: str) -> None:
    source = World(seed=3)
    scorer = make(name).fit(source.training(300, sort))
    fresh = source.related(100)
    scores = scorer.score(fresh.images, fresh.texts)
    assert scores.shape == (100, 100)
    assert precision(scores, fresh.relation) > 2 / source.classes


@pytest.mark.parametrize("name", ["kNN", "ridge", "ridge-classifier"])
def test_target_items_are_not_used(name: str) -> None:
    _, training, items = world()
    without = replace(training, target_images=None, target_texts=None)
    with_target = make(name).fit(training).score(items.images, items.texts)
    np.testing.assert_array_equal(
        make(name).fit(without).score(items.images, items.texts), with_target
    )


@every_baseline
def test_a_batch_scores_the_same_as_single_items(name: str) -> None:
    _, training, items = world()
    scorer = make(name).fit(training)
    batch = scorer.score(items.images, items.texts)
    rows = [scorer.score(items.images[i : i + 1], items.texts) for i in range(len(items.images))]
    np.testing.assert_allclose(np.concatenate(rows), batch, atol=1e-5)
    assert scorer.score(items.images[:0], items.texts).shape == (0, 20)


@every_baseline
def test_items_without_features_have_finite_scores(name: str) -> None:
    _, training, items = world()
    zeros = np.zeros_like(items.texts[:1])
    scores = make(name).fit(training).score(items.images, zeros)
    assert np.isfinite(scores).all()


def test_a_text_of_unknown_words_scores_zero_with_knn() -> None:
    _, training, items = world()
    knn = NearestNeighbors().fit(training)
    assert not knn.score(items.images, np.zeros_like(items.texts[:1])).any()


@every_baseline
def test_misuse_is_refused(name: str) -> None:
    _, training, items = world()
    with pytest.raises(NotFittedError, match=name.partition("+")[0]):
        make(name).score(items.images, items.texts)
    scorer = make(name).fit(training)
    with pytest.raises(DataError, match="63"):
        scorer.score(items.images[:, :63], items.texts)
    with pytest.raises(DataError, match="99"):
        scorer.score(items.images, items.texts[:, :99])
    pixels = replace(
        training, images=np.zeros((120, 3, 8, 8), np.uint8), target_images=None, target_texts=None
    )
    with pytest.raises(DataError, match="feature vectors"):
        make(name).fit(pixels)
    with pytest.raises(DataError, match="no codes"):
        make_hasher(name)


@every_baseline
def test_there_are_candidates_for_eight_trials(name: str) -> None:
    scorer = make(name)
    variants = [replace(scorer, **setting) for setting in scorer.candidates()]
    assert sum(variant != scorer for variant in variants) >= 7


@pytest.mark.parametrize("method", ["kNN", "ridge", "ridge-classifier"])
def test_with_target_data_scored_items_are_centered_by_their_own_mean(method: str) -> None:
    training = World().training(100)
    assert training.target_images is not None
    assert training.target_texts is not None
    plain = make_method(method, bits=16).fit(training)
    centered = make_method(f"{method}+target", bits=16).fit(training)
    shift_x = training.target_images.mean(axis=0) - training.images.mean(axis=0)
    shift_y = training.target_texts.mean(axis=0) - training.texts.mean(axis=0)
    assert isinstance(plain, Scorer)
    assert isinstance(centered, Scorer)
    np.testing.assert_allclose(
        centered.score(training.target_images, training.target_texts),
        plain.score(training.target_images - shift_x, training.target_texts - shift_y),
        atol=1e-5,
    )
