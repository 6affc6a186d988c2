"""An auxiliary set that is appended to another."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from transhash.data.feedback import FeedbackRelation, UnionRelation, append_auxiliary, drop_votes
from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError

LABELS = LabelRelation.from_classes([0, 1, 0], [0, 1])
PAIRS = SparseRelation(sp.csr_array(np.eye(2)))
WEIGHT = 3 / 2  # pairs of LABELS per appended pair


def dense(relation: Relation) -> tuple[np.ndarray, np.ndarray]:
    n, m = relation.shape
    s, known = relation.block(np.arange(n), np.arange(m))
    return s, np.ones_like(s) if known is None else known


def test_relations_between_the_two_sets_are_unknown() -> None:
    s, known = dense(UnionRelation(LABELS, PAIRS))
    expected = np.zeros((5, 4))
    expected[:3, :2] = [[1, 0], [0, 1], [1, 0]]
    expected[3:, 2:] = np.eye(2)
    np.testing.assert_array_equal(s, expected)
    inside = np.zeros((5, 4))
    inside[:3, :2], inside[3:, 2:] = 1, 1
    np.testing.assert_array_equal(known, inside)


def test_both_sets_weigh_the_same_in_products() -> None:
    relation = UnionRelation(LABELS, PAIRS)
    s = dense(relation)[0]
    s[3:] *= WEIGHT
    rng = np.random.default_rng(0)
    texts, images = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    np.testing.assert_allclose(relation.times(texts), s @ texts)
    np.testing.assert_allclose(relation.transposed_times(images), s.T @ images)


def test_counts_are_those_of_both_sets() -> None:
    relation = UnionRelation(LABELS, PAIRS)
    assert relation.positives == 3 + 2
    assert relation.known == 3 * 2 + 2 * 2


def test_appended_images_sample_their_own_partners() -> None:
    relation = UnionRelation(LABELS, PAIRS)
    rows = np.arange(5)
    for seed in range(5):
        partners = relation.sample_partners(rows, np.random.default_rng(seed))
        np.testing.assert_array_equal(partners, [0, 1, 0, 2, 3])


def test_a_subset_is_the_same_as_of_the_dense_relation() -> None:
    relation = UnionRelation(LABELS, PAIRS)
    rows, columns = np.array([0, 2, 4]), np.array([1, 2, 3])
    part = relation.subset(rows, columns)
    for ours, whole in zip(dense(part), dense(relation), strict=True):
        np.testing.assert_array_equal(ours, whole[np.ix_(rows, columns)])


def test_votes_stay_votes_when_pairs_are_appended() -> None:
    relation = FeedbackRelation.extend(LABELS, {(0, 0): 1}, 1, 1)
    rng = np.random.default_rng(0)
    training = TrainingSet(rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), relation)
    pairs = AuxiliarySet(rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), PAIRS)
    both = append_auxiliary(training, pairs)
    assert isinstance(both.relation, FeedbackRelation)
    np.testing.assert_array_equal(both.relation.voted_images, [0, 0, 0, 1, 0, 0])
    s, known = dense(both.relation)
    assert s[3, 2] == known[3, 2] == 1
    assert s[4, 3] == s[5, 4] == 1
    assert known[3].sum() == 1  # an item with votes is known to the votes alone
    assert len(drop_votes(both).images) == 5
    assert isinstance(drop_votes(both).relation, UnionRelation)


def test_an_appended_set_needs_pairs() -> None:
    rng = np.random.default_rng(0)
    training = TrainingSet(rng.normal(size=(3, 3)), rng.normal(size=(2, 3)), LABELS)
    with pytest.raises(DataError, match="pairs"):
        append_auxiliary(training, training)
