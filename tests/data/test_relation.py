import numpy as np
import pytest

from transhash.data.draw import draw_items
from transhash.data.relation import (
    GradedRelation,
    LabelRelation,
    Relation,
    SparseRelation,
)
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError

RNG = np.random.default_rng(0)
LX, LY = RNG.random((9, 4)) > 0.6, RNG.random((7, 4)) > 0.6
DENSE = ((LX.astype(int) @ LY.T.astype(int)) > 0).astype(float)


def relations() -> list[Relation]:
    listed = [(i, j) for i in range(9) for j in range(7) if DENSE[i, j]]
    return [
        LabelRelation(LX, LY),
        SparseRelation.from_triples(
            [(i, j) for i in range(9) for j in range(7)], DENSE.ravel().tolist(), (9, 7)
        ),
        SparseRelation.from_triples(listed, [1.0] * len(listed), (9, 7)),
        graded(),
    ]


def graded() -> GradedRelation:
    """Return the same relation with one image whose pairs replace its labels."""
    i = int(np.argwhere(DENSE)[0, 0])
    labels = LX.copy()
    labels[i] = False
    pairs = [(i, k) for k in range(7) if DENSE[i, k]] + [(8, int(np.flatnonzero(DENSE[8])[0]))]
    return GradedRelation(
        LabelRelation(labels, LY), SparseRelation.from_triples(pairs, [1.0] * len(pairs), (9, 7))
    )


@pytest.mark.parametrize("relation", relations())
def test_products_equal_those_of_the_dense_matrix(relation: Relation) -> None:
    texts, images = RNG.standard_normal((7, 3)), RNG.standard_normal((9, 2))
    assert np.allclose(relation.times(texts), DENSE @ texts)
    assert np.allclose(relation.transposed_times(images), DENSE.T @ images)
    assert relation.positives == DENSE.sum()
    rows, columns = np.array([3, 0, 3]), np.array([6, 2])
    assert np.array_equal(relation.block(rows, columns)[0], DENSE[np.ix_(rows, columns)])
    factors = relation.factors()
    if factors is not None:
        np.testing.assert_allclose(factors[0] @ factors[1].T, DENSE)


@pytest.mark.parametrize("transposed", [False, True])
def test_factors_of_labels_are_as_narrow_as_the_fewer_label_sets(transposed: bool) -> None:
    labels, dense = ((LY, LX), DENSE.T) if transposed else ((LX, LY), DENSE)
    factors = LabelRelation(*labels).factors()
    assert factors is not None
    np.testing.assert_allclose(factors[0] @ factors[1].T, dense)
    fewer = min(len(np.unique(part, axis=0)) for part in labels)
    assert factors[0].shape[1] == factors[1].shape[1] == fewer


@pytest.mark.parametrize("relation", relations())
def test_sampled_partners_are_related_if_a_related_text_exists(relation: Relation) -> None:
    rows = np.repeat(np.arange(9), 5)
    sample = relation.sample_partners(rows, np.random.default_rng(1))
    for row, column in zip(rows, sample, strict=True):
        assert DENSE[row, column] or not DENSE[row].any()


def test_unlisted_clicks_are_unknown_and_unlisted_pairs_unrelated() -> None:
    clicks = SparseRelation.from_triples([(0, 0), (0, 1)], [1.0, 0.0], (2, 2))
    everything = np.arange(2)
    assert clicks.known == 2
    assert clicks.block(everything, everything)[1].tolist() == [[1, 1], [0, 0]]
    pairs = SparseRelation.from_pairs(["a", "b"], ["b", "c"])
    assert pairs.known == 4
    assert pairs.block(everything, everything)[1] is None
    assert pairs.block(everything, everything)[0].tolist() == [[0, 0], [1, 0]]


def test_a_relation_without_a_related_pair_is_refused() -> None:
    with pytest.raises(DataError, match="No pair is related"):
        SparseRelation.from_triples([(0, 0)], [0.0], (1, 1))
    with pytest.raises(DataError, match="paired with a text"):
        SparseRelation.from_pairs(["a"], ["b"])


def test_a_training_set_has_no_field_for_target_labels() -> None:
    fields = set(TrainingSet.__dataclass_fields__)
    assert fields == {"images", "texts", "relation", "target_images", "target_texts"}


TWO = np.eye(2)  # one item of each of two classes


def test_the_first_row_with_an_invalid_feature_is_named() -> None:
    parts = ("auxiliary image", "auxiliary text", "target image", "target text")
    for bad, name in enumerate(parts):
        for value, message in (
            (np.nan, "nan"),
            (-np.inf, "-inf"),
            (1e37, r"1e\+37.*standard deviation"),
        ):
            features = [np.ones((2, 3)) for _ in parts]
            features[bad][1, 2] = value
            x, y, target_x, target_y = features
            with pytest.raises(DataError, match=f"^The {name} 1 has .*{message}"):
                TrainingSet(x, y, LabelRelation(TWO, TWO), target_x, target_y)


def test_float16_and_integer_features_are_checked() -> None:
    half = np.ones((2, 3), np.float16)
    half[1, 0] = np.inf
    integer = np.ones((2, 3), np.int64)
    integer[1, 0] = -(10**18)
    for images in (half, integer):
        with pytest.raises(DataError, match="auxiliary image 1"):
            AuxiliarySet(images, TWO, LabelRelation(TWO, TWO))
    with pytest.raises(DataError, match="array of numbers"):
        AuxiliarySet(np.array([["a"], ["b"]]), TWO, LabelRelation(TWO, TWO))
    AuxiliarySet(np.full((2, 3, 4, 4), 255, np.uint8), TWO, LabelRelation(TWO, TWO))  # pixels


def test_features_must_not_all_be_zero() -> None:
    relation, some, none = LabelRelation(TWO, TWO), np.diag([1.0, 0.0]), np.zeros((2, 2))
    TrainingSet(some, some, relation, some, some)
    for parts, name in (
        ((none, some), "auxiliary image"),
        ((some, none), "auxiliary text"),
        ((some, some, none, some), "target image"),
        ((some, some, some, none), "target text"),
    ):
        with pytest.raises(DataError, match=f"All {name} features are zero"):
            TrainingSet(*parts[:2], relation, *parts[2:])


def test_some_pair_must_be_unrelated() -> None:
    one_class = LabelRelation([[1], [1]], [[1], [1]])
    only_clicks = SparseRelation.from_triples([(0, 0), (1, 1)], [1.0, 1.0], (2, 2))
    for relation in (one_class, only_clicks):
        with pytest.raises(DataError, match="All known pairs"):
            TrainingSet(TWO, TWO, relation)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1], [2]], "contain 2"),
        ([[0.5], [1]], "contain 0.5"),
        ([["a"], ["b"]], "type <U1"),
        ([[1], []], "not a matrix"),
    ],
)
def test_labels_must_be_a_matrix_of_0_and_1(labels: list[object], message: str) -> None:
    for pair in ((labels, TWO), (TWO, labels)):
        with pytest.raises(DataError, match=message):
            LabelRelation(*pair)  # type: ignore[arg-type]


def test_items_are_related_if_they_share_a_class() -> None:
    relation = LabelRelation.from_classes(
        ["dog", "cat", ["dog", "cat"], []], [{"dog"}, "cow", "cat"]
    )
    everything = relation.block(np.arange(4), np.arange(3))[0]
    assert everything.tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]]
    numbers = LabelRelation.from_classes([[1], [2]], np.array([2, 1]))
    assert numbers.block(np.arange(2), np.arange(2))[0].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(DataError, match="type float"):
        LabelRelation.from_classes([0.5], ["a"])


def test_triples_must_name_existing_items_and_0_or_1() -> None:
    with pytest.raises(DataError, match="outside 2 x 2 items"):
        SparseRelation.from_triples([(0, 0), (2, 0)], [1.0, 1.0], (2, 2))
    with pytest.raises(DataError, match="value 3"):
        SparseRelation.from_triples([(0, 0)], [3.0], (2, 2))


def test_target_and_auxiliary_features_must_have_the_same_shape() -> None:
    relation = LabelRelation([[1]], [[1]])
    with pytest.raises(DataError, match="same features"):
        TrainingSet(np.ones((1, 3)), np.ones((1, 3)), relation, np.ones((1, 4)))


def test_a_split_holds_out_images_and_texts_independently() -> None:
    related = AuxiliarySet(np.arange(20.0)[:, None], np.arange(10.0)[:, None], _ones(20, 10))
    rest, held = related.split(0.2, seed=3)
    assert (len(rest.images), len(held.images), len(rest.texts), len(held.texts)) == (16, 4, 8, 2)
    assert sorted([*rest.images.ravel(), *held.images.ravel()]) == list(range(20))


def _ones(n: int, m: int) -> LabelRelation:
    return LabelRelation(np.ones((n, 1)), np.ones((m, 1)))


def test_few_pairs_stay_together_when_items_are_drawn() -> None:
    order = np.random.default_rng(1).permutation(300)
    pairs = SparseRelation.from_triples(list(enumerate(order)), [1.0] * 300, (300, 300))
    draw = draw_items(pairs, 60, 600, np.random.default_rng(0))
    assert draw.partners_first
    assert len(draw.images) == len(draw.texts) == 60
    assert pairs.subset(draw.images, draw.texts).positives == 60
    independent = draw_items(pairs, 60, 5, np.random.default_rng(0))  # 12 pairs are expected
    assert not independent.partners_first
    assert pairs.subset(independent.images, independent.texts).positives < 30


def test_all_items_are_drawn_if_they_are_few() -> None:
    relation = LabelRelation(LX, LY)
    draw = draw_items(relation, 9, 10**9, np.random.default_rng(0))
    assert [part.tolist() for part in draw[:2]] == [list(range(9)), list(range(7))]
    assert not draw.partners_first
