from dataclasses import replace

import numpy as np
import pytest
from sklearn.cross_decomposition import CCA

from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers import projection
from transhash.hashers.canonical import canonical_analysis, covariances, lower_factor
from transhash.hashers.components import select_components
from transhash.hashers.cvh import CVH

from .worlds import World, dense


def subspace_angles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    qa, qb = np.linalg.qr(a)[0], np.linalg.qr(b)[0]
    return np.asarray(np.linalg.svd(qa.T @ qb)[1])


@pytest.mark.parametrize("sort", ["labels", "pairs", "triples"])
def test_covariances_equal_those_of_listed_pairs(sort: str) -> None:
    training = World(dx=7, dy=5).training(40, sort)
    i, j = np.nonzero(dense(training.relation))
    x, y = training.images[i].astype(float), training.texts[j].astype(float)
    x_centered, y_centered = x - x.mean(axis=0), y - y.mean(axis=0)

    moments = covariances(training.images, training.texts, training.relation)

    np.testing.assert_allclose(moments.mean_x, x.mean(axis=0))
    np.testing.assert_allclose(moments.mean_y, y.mean(axis=0))
    np.testing.assert_allclose(moments.xx, x_centered.T @ x_centered / len(i), atol=1e-10)
    np.testing.assert_allclose(moments.yy, y_centered.T @ y_centered / len(i), atol=1e-10)
    np.testing.assert_allclose(moments.xy, x_centered.T @ y_centered / len(i), atol=1e-10)


def test_covariances_do_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    training = World(dx=7, dy=300).training(50)
    full = covariances(training.images, training.texts, training.relation)
    monkeypatch.setattr(projection, "_CHUNK_ROWS", 9)
    parts = covariances(training.images, training.texts, training.relation)
    np.testing.assert_allclose(parts.xx, full.xx, atol=1e-10)
    np.testing.assert_allclose(parts.xy, full.xy, atol=1e-10)


def test_equal_relations_of_any_type_give_the_same_result() -> None:
    world = World()
    training = world.training(80)
    s = dense(training.relation)
    i, j = np.nonzero(np.ones_like(s))
    triples = SparseRelation.from_triples(list(zip(i.tolist(), j.tolist())), s[i, j], s.shape)
    listed = SparseRelation(s)
    by_label = CVH(bits=8).fit(training)
    for relation in (triples, listed):
        other = CVH(bits=8).fit(TrainingSet(training.images, training.texts, relation))
        np.testing.assert_allclose(other.weights_x_, by_label.weights_x_, atol=1e-8)
        np.testing.assert_allclose(other.weights_y_, by_label.weights_y_, atol=1e-8)


def test_the_triangular_factor_gives_the_regularized_covariance() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 6))
    c = x.T @ x
    lower = lower_factor(c, 0.1)
    ridge = 0.1 * np.linalg.eigvalsh(c)[-1]
    np.testing.assert_allclose(lower, np.tril(lower))
    np.testing.assert_allclose(lower @ lower.T, c + ridge * np.eye(6), atol=1e-10)


def test_with_pairs_and_no_ridge_the_analysis_equals_that_of_scikit_learn() -> None:
    training = World(latent=10).training(400, "pairs")
    x, y = training.images[:, :20].astype(float), training.texts[:, :25].astype(float)
    analysis = canonical_analysis(x, y, training.relation, 0.0, 6)
    reference = CCA(n_components=6, scale=False, max_iter=20_000, tol=1e-12).fit(x, y)
    scores_x, scores_y = reference.transform(x, y)
    correlations = [np.corrcoef(scores_x[:, k], scores_y[:, k])[0, 1] for k in range(6)]

    np.testing.assert_allclose(analysis.s[:6], correlations, atol=1e-6)
    assert subspace_angles(analysis.image_axes, reference.x_rotations_).min() > 1 - 1e-6
    assert subspace_angles(analysis.text_axes, reference.y_rotations_).min() > 1 - 1e-6


def test_factors_of_few_label_sets_give_the_components_of_the_full_analysis() -> None:
    training = World(classes=8).training(300)
    x, y, relation = training.images, training.texts, training.relation
    short = canonical_analysis(x, y, relation, 0.05, 7)  # from the label sets
    full = canonical_analysis(x, y, relation, 0.05, 20)  # more than label sets: from T
    np.testing.assert_allclose(short.s, full.s[:7], atol=1e-10)
    np.testing.assert_allclose(short.image_axes, full.image_axes[:, :7], atol=1e-8)
    np.testing.assert_allclose(short.text_axes, full.text_axes[:, :7], atol=1e-8)
    np.testing.assert_allclose(short.whitened_cross, full.whitened_cross, atol=1e-12)
    few = canonical_analysis(x, y, relation, 0.05, 20, allow_fewer=True)
    assert len(few.s) == 8
    np.testing.assert_allclose(few.s[:7], full.s[:7], atol=1e-10)


def test_rounding_does_not_make_an_empty_component_useful() -> None:
    training = World(classes=8).training(300)
    x, y, relation = training.images, training.texts, training.relation
    analysis = canonical_analysis(x, y, relation, 0.05, 20, allow_fewer=True)
    # As if T had been computed in float32: the last component contains a little of the others.
    little = 1e-7 * analysis.u[:, :7].sum(axis=1), 1e-7 * analysis.v[:, :7].sum(axis=1)
    u, v = analysis.u.copy(), analysis.v.copy()
    u[:, 7] += little[0]
    v[:, 7] += little[1]
    rough = replace(analysis, u=u, v=v)
    assert len(select_components(rough, x, y, relation).weights) == 7


def test_with_single_labels_there_is_one_component_less_than_classes() -> None:
    training = World(classes=8).training(300)
    analysis = canonical_analysis(training.images, training.texts, training.relation, 1e-2, 64)
    assert analysis.rank(1e-8) == 7


def test_a_shorter_code_is_a_prefix_of_a_longer_one() -> None:
    training = World(classes=12).training(100)  # more classes than bits: no arbitrary component
    short, long = CVH(bits=8).fit(training), CVH(bits=24).fit(training)
    np.testing.assert_allclose(short.weights_x_, long.weights_x_[:, :8], atol=1e-9)


def test_bits_beyond_the_useful_components_repeat_them_unless_rank_is_set() -> None:
    training = World(classes=5).training(200)
    hasher, published = CVH(bits=16).fit(training), CVH(bits=16, rank=16).fit(training)
    np.testing.assert_array_equal(hasher.weights_x_[:, :4], hasher.weights_x_[:, 4:8])
    np.testing.assert_array_equal(hasher.weights_x_[:, :4], published.weights_x_[:, :4])
    assert np.linalg.matrix_rank(published.weights_x_) == 16


def test_the_scale_of_the_features_does_not_change_the_codes() -> None:
    training = World(classes=12).training(120)  # more classes than bits: no arbitrary component
    scaled = TrainingSet(training.images * 1000, training.texts * 1e-3, training.relation)
    plain, other = CVH(bits=8).fit(training), CVH(bits=8).fit(scaled)
    assert plain.encode_images(training.images) == other.encode_images(scaled.images)
    assert plain.encode_texts(training.texts) == other.encode_texts(scaled.texts)


def test_more_bits_than_features_are_refused() -> None:
    with pytest.raises(DataError, match="10 image features"):
        CVH(bits=16).fit(World(dx=10).training(40))


def test_pixels_are_refused() -> None:
    pixels = np.zeros((4, 3, 8, 8), np.uint8)
    relation: Relation = LabelRelation(np.eye(4), np.eye(4))
    with pytest.raises(DataError, match="feature vectors"):
        CVH(bits=8).fit(TrainingSet(pixels, np.eye(4), relation))


def test_features_that_never_vary_are_refused() -> None:
    relation: Relation = LabelRelation(np.eye(9), np.eye(9))
    with pytest.raises(DataError, match="same features"):
        CVH(bits=8).fit(TrainingSet(np.ones((9, 8)), np.eye(9), relation))
