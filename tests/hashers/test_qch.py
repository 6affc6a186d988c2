import numpy as np
import pytest

from transhash.data.training_set import TrainingSet
from transhash.hashers.canonical import canonical_analysis
from transhash.hashers.components import select_components
from transhash.hashers.qch import QCH
from transhash.hashers.tuning import held_out_map

from .worlds import World


@pytest.mark.parametrize("sort", ["labels", "pairs", "triples"])
@pytest.mark.parametrize(
    "setting",
    [{}, {"correlation_weight": 0.0}, {"correlation_weight": 1.0, "rank_threshold": 0.01}],
)
def test_the_objective_never_decreases(sort: str, setting: dict[str, float]) -> None:
    hasher = QCH(bits=16, seed=1, tolerance=0.0, **setting).fit(World().training(150, sort))
    values = np.array(hasher.objective_)
    assert len(values) > 2
    assert (np.diff(values) >= -1e-9 * np.abs(values[1:])).all()


def test_the_objective_is_that_of_the_docstring() -> None:
    training = World(dx=12, dy=15).training(50)
    hasher = QCH(bits=8, iterations=1, correlation_weight=2.0, ridge=0.1).fit(training)
    analysis = canonical_analysis(training.images, training.texts, training.relation, 0.1, 8)
    components = select_components(analysis, training.images, training.texts, training.relation)
    r = len(components.weights)
    assert (components.weights == 1).all()
    # One iteration: initial codes, then R, Ux and Uy; only K Ux R is stored, so undo K.
    initial = QCH(bits=8, iterations=0, correlation_weight=2.0, ridge=0.1).fit(training)
    t = analysis.whitened_cross
    total = 0.0
    axes = []
    for features, mean, whiten, before, after in (
        (
            training.images,
            analysis.mean_x,
            analysis.whiten_x,
            initial.weights_x_,
            hasher.weights_x_,
        ),
        (training.texts, analysis.mean_y, analysis.whiten_y, initial.weights_y_, hasher.weights_y_),
    ):
        z = (features - mean) @ whiten
        codes = np.where(features @ before - mean @ before > 0, 1.0, -1.0)
        rotated = np.linalg.solve(whiten, after)  # U R
        axes.append(rotated)
        total += float(np.sum(codes * (z @ rotated))) / len(features)
    # tr(Ux' T Uy) = (r/b) tr((Ux R)' T (Uy R)), because R R' = (b/r) I
    total += 2.0 * 8 / r * (r / 8) * float(np.sum(axes[0] * (t @ axes[1])))
    np.testing.assert_allclose(hasher.objective_[-1], total, rtol=1e-9)


def test_bits_share_a_tight_frame_over_the_useful_components() -> None:
    training = World(classes=5).training(200)
    hasher = QCH(bits=24).fit(training)
    analysis = canonical_analysis(
        training.images, training.texts, training.relation, hasher.ridge, 24
    )
    rotated = np.linalg.solve(analysis.whiten_x, hasher.weights_x_)  # Ux R, with R R' = (b/r) I
    values = np.linalg.svd(rotated)[1]
    r = len(select_components(analysis, training.images, training.texts, training.relation).weights)
    assert r == 4
    np.testing.assert_allclose(values[:r], np.sqrt(24 / r))
    np.testing.assert_allclose(values[r:], 0, atol=1e-8)


def test_components_may_outnumber_bits() -> None:
    training = World(classes=20).training(300)  # 11 components
    hasher = QCH(bits=8, tolerance=0.0).fit(training)
    analysis = canonical_analysis(
        training.images, training.texts, training.relation, hasher.ridge, 11
    )
    rotated = np.linalg.solve(analysis.whiten_x, hasher.weights_x_)  # Ux R, with R'R = I
    np.testing.assert_allclose(rotated.T @ rotated, np.eye(8), atol=1e-8)
    # Components after the eighth have a part in the bits.
    assert np.linalg.norm(analysis.u[:, 8:].T @ rotated) > 0.5
    values = np.array(hasher.objective_)
    assert (np.diff(values) >= -1e-9 * np.abs(values[1:])).all()


def test_components_of_pairs_are_weighted_by_leave_one_out_correlations() -> None:
    training = World(seed=3).training(300, "pairs")
    hasher = QCH(bits=16).fit(training)
    analysis = canonical_analysis(
        training.images, training.texts, training.relation, hasher.ridge, 16
    )
    components = select_components(analysis, training.images, training.texts, training.relation)
    assert components.weights[0] > 1.1 * components.weights[-1]
    rotated = np.linalg.solve(analysis.whiten_x, hasher.weights_x_)  # Ux diag(w) R
    r = len(components.weights)
    expected = np.sort(components.weights)[::-1] * np.sqrt(16 / r)
    np.testing.assert_allclose(np.linalg.svd(rotated)[1][:r], expected)


def test_longer_codes_are_better_although_the_relation_has_few_components() -> None:
    world = World()
    training, fresh = world.training(300), world.related(300)
    short, long = (held_out_map(QCH(bits=b).fit(training), fresh) for b in (8, 32))
    assert min(long) > max(short)


def test_fewer_features_than_bits_work() -> None:
    training = World(dx=6, dy=5).training(60)
    assert QCH(bits=16).fit(training).encode_images(training.images).bits == 16


def test_the_scale_of_the_features_does_not_change_the_codes() -> None:
    training = World().training(100)
    scaled = TrainingSet(training.images * 1000, training.texts * 1e-3, training.relation)
    plain, other = QCH(bits=8).fit(training), QCH(bits=8).fit(scaled)
    assert plain.encode_images(training.images) == other.encode_images(scaled.images)
