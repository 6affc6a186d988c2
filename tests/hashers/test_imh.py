import numpy as np
import pytest

from transhash.data.relation import LabelRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers.imh import (
    IMH,
    eliminate_texts,
    neighbor_laplacian,
    normalize_relation,
    regression,
    unit_variance,
)

from .worlds import World


def parts(sort: str, n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    training = World(dx=20, dy=30).training(n, sort)
    systems = []
    for features in (training.images, training.texts):
        z, _, _ = unit_variance(features)
        systems.append(np.eye(n) - z @ regression(z, 1.0) + 0.1 * neighbor_laplacian(z, 5))
    return systems[0], systems[1], normalize_relation(training.relation)


@pytest.mark.parametrize("sort", ["labels", "pairs", "triples"])
def test_the_reduced_matrix_equals_the_objective_written_out(sort: str) -> None:
    a1, a2, r = parts(sort)
    u = 1e4
    m, e = eliminate_texts(a1, a2, r, u)
    rows, columns = np.diag(r.sum(axis=1)), np.diag(r.sum(axis=0))
    direct = a1 + e.T @ a2 @ e + u * (rows - r @ e - e.T @ r.T + e.T @ columns @ e)
    np.testing.assert_allclose(m, direct, atol=1e-8)


def test_for_pairs_the_reduced_matrix_equals_the_published_form() -> None:
    a1, a2, r = parts("pairs")
    np.testing.assert_array_equal(r, np.eye(len(r)))
    u = 1e4
    m, e = eliminate_texts(a1, a2, r, u)
    gap = np.eye(len(r)) - e
    np.testing.assert_allclose(m, a1 + e.T @ a2 @ e + u * gap.T @ gap, atol=1e-8)


def test_for_pairs_and_a_large_agreement_both_systems_add() -> None:
    a1, a2, r = parts("pairs")
    m, _ = eliminate_texts(a1, a2, r, 1e4)
    np.testing.assert_allclose(m, a1 + a2, atol=5e-3)


def test_text_codes_minimize_the_objective() -> None:
    a1, a2, r = parts("labels")
    u = 100.0
    _, e = eliminate_texts(a1, a2, r, u)
    f1 = np.random.default_rng(0).standard_normal((len(r), 3))
    f2 = e @ f1
    gradient = a2 @ f2 + u * (r.sum(axis=0)[:, None] * f2 - r.T @ f1)
    np.testing.assert_allclose(gradient, 0, atol=1e-8)


def test_regression_is_the_same_with_more_features_than_items() -> None:
    z = np.random.default_rng(0).standard_normal((12, 12))
    wide = np.hstack([z, z[:, :5]])  # more features than items
    direct = np.linalg.solve(wide.T @ wide + 2 * np.eye(17), wide.T)
    np.testing.assert_allclose(regression(wide, 2.0), direct, atol=1e-10)
    direct = np.linalg.solve(z.T @ z + 2 * np.eye(12), z.T)
    np.testing.assert_allclose(regression(z, 2.0), direct, atol=1e-10)


def test_the_graph_connects_neighbors_but_no_item_with_itself() -> None:
    line = np.array([[0.0], [1.0], [2.1], [10.0]])
    laplacian = neighbor_laplacian(line, 1)
    # 0-1 and 1-0 are mutual, 2's nearest is 1, 3's nearest is 2
    expected = [[1, -1, 0, 0], [-1, 2, -1, 0], [0, -1, 2, -1], [0, 0, -1, 1]]
    np.testing.assert_array_equal(laplacian, expected)


def test_equal_items_are_connected_with_earlier_ones() -> None:
    laplacian = neighbor_laplacian(np.zeros((4, 2)), 1)
    assert (np.diag(laplacian) > 0).all()
    np.testing.assert_array_equal(laplacian.sum(axis=0), 0)


def test_bits_are_thresholded_at_the_training_median() -> None:
    training = World().training(100)
    hasher = IMH(bits=8).fit(training)
    for codes in (hasher.encode_images(training.images), hasher.encode_texts(training.texts)):
        balance = codes.bit_balance()
        np.testing.assert_allclose(balance[balance > 0], 0.5)  # 0: the constant bit
        assert (balance > 0).sum() >= 7
    # Encoding one item alone uses the same threshold.
    assert hasher.encode_images(training.images)[:1] == hasher.encode_images(training.images[:1])


def test_a_bit_of_rounding_noise_is_constant() -> None:
    training = World(classes=4).training(100)  # balanced: the constant vector is an eigenvector
    hasher = IMH(bits=8).fit(training)
    spread = hasher.project_images(training.images).std(axis=0)
    assert (spread == 0).sum() == 1
    assert np.sort(spread)[1] > 1e-6 * spread.max()


def test_the_scale_of_the_features_does_not_change_the_codes() -> None:
    training = World().training(80)
    scaled = TrainingSet(training.images * 1000, training.texts * 1e-3, training.relation)
    plain, other = IMH(bits=8).fit(training), IMH(bits=8).fit(scaled)
    same = (
        plain.encode_images(training.images).signs() == other.encode_images(scaled.images).signs()
    )
    assert same.mean() > 0.99


def test_too_many_items_are_refused() -> None:
    labels = np.ones((5001, 2))
    labels[:, 1] = 0
    labels[0] = 1 - labels[0]
    training = TrainingSet(np.ones((5001, 2)), np.ones((5001, 2)), LabelRelation(labels, labels))
    with pytest.raises(DataError, match="5,001 images"):
        IMH(bits=8).fit(training)


def test_fewer_images_than_bits_are_refused() -> None:
    with pytest.raises(DataError, match="24 bits"):
        IMH(bits=24).fit(World().training(20))
