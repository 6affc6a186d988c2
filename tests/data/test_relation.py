import numpy as np
import pytest

from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.data.training import Related, TrainingSet
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
    ]


@pytest.mark.parametrize("relation", relations())
def test_products_with_the_relation_equal_those_with_the_dense_matrix(relation: Relation) -> None:
    texts, images = RNG.standard_normal((7, 3)), RNG.standard_normal((9, 2))
    assert np.allclose(relation.times(texts), DENSE @ texts)
    assert np.allclose(relation.transposed_times(images), DENSE.T @ images)
    assert relation.positives == DENSE.sum()
    rows, columns = np.array([3, 0, 3]), np.array([6, 2])
    assert np.array_equal(relation.block(rows, columns)[0], DENSE[np.ix_(rows, columns)])


@pytest.mark.parametrize("relation", relations())
def test_partners_are_related_wherever_a_related_text_exists(relation: Relation) -> None:
    rows = np.repeat(np.arange(9), 5)
    drawn = relation.partners(rows, np.random.default_rng(1))
    for row, column in zip(rows, drawn, strict=True):
        assert DENSE[row, column] or not DENSE[row].any()


def test_unlisted_clicks_are_unknown_and_unlisted_pairs_are_unrelated() -> None:
    clicks = SparseRelation.from_triples([(0, 0), (0, 1)], [1.0, 0.0], (2, 2))
    everything = np.arange(2)
    assert clicks.known == 2
    assert clicks.block(everything, everything)[1].tolist() == [[1, 1], [0, 0]]
    pairs = SparseRelation.from_pairs(["a", "b"], ["b", "c"])
    assert pairs.known == 4
    assert pairs.block(everything, everything)[1] is None
    assert pairs.block(everything, everything)[0].tolist() == [[0, 0], [1, 0]]


def test_a_relation_without_a_related_pair_is_refused() -> None:
    with pytest.raises(DataError, match="no similar pair"):
        SparseRelation.from_triples([(0, 0)], [0.0], (1, 1))
    with pytest.raises(DataError, match="nothing can be learned"):
        SparseRelation.from_pairs(["a"], ["b"])


def test_target_parts_of_a_training_set_have_no_place_for_labels() -> None:
    fields = set(TrainingSet.__dataclass_fields__)
    assert fields == {"images", "texts", "relation", "target_images", "target_texts"}


def test_features_that_are_not_numbers_are_named_by_row() -> None:
    images = np.zeros((2, 3))
    images[1, 2] = np.nan
    with pytest.raises(DataError, match="image 1"):
        Related(images, np.zeros((2, 3)), LabelRelation([[1], [1]], [[1], [1]]))


def test_target_features_of_another_kind_are_refused() -> None:
    relation = LabelRelation([[1]], [[1]])
    with pytest.raises(DataError, match="same features for both"):
        TrainingSet(np.zeros((1, 3)), np.zeros((1, 3)), relation, np.zeros((1, 4)))


def test_a_split_holds_out_images_and_texts_independently() -> None:
    related = Related(np.arange(20.0)[:, None], np.arange(10.0)[:, None], _ones(20, 10))
    rest, held = related.split(0.2, seed=3)
    assert (len(rest.images), len(held.images), len(rest.texts), len(held.texts)) == (16, 4, 8, 2)
    assert sorted([*rest.images.ravel(), *held.images.ravel()]) == list(range(20))


def _ones(n: int, m: int) -> LabelRelation:
    return LabelRelation(np.ones((n, 1)), np.ones((m, 1)))
