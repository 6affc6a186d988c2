"""Two auxiliary sets learned from together; how their items relate to each other is unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from transhash.data.feedback import FeedbackRelation
from transhash.data.relation import (
    GradedRelation,
    LabelRelation,
    Relation,
    Rows,
    SparseRelation,
    SumRelation,
    Term,
)
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError


class UnionRelation(SumRelation):
    """S of a first and an appended set: known within each of them, unknown between them.

    In products, the pairs of the appended set weigh as much in sum as those of the first, however
    many each has.
    """

    def __init__(self, first: Relation, appended: SparseRelation) -> None:
        if not isinstance(first, LabelRelation | SparseRelation | GradedRelation):
            kind = type(first).__name__
            raise DataError(f"Pairs cannot be appended to a {kind}. Use labels, pairs or both.")
        self.first, self.appended = first, appended
        weight = first.positives / max(1, appended.positives) if first.positives else 1.0
        (n, m), (added_n, added_m) = first.shape, appended.shape
        images, texts = np.arange(n + added_n) >= n, np.arange(m + added_m) >= m
        super().__init__(
            Term(first.pad(added_n, added_m), scope=(~images, ~texts)),
            Term(_pad_before(appended, n, m), weight, images=images, scope=(images, texts)),
        )

    def subset(self, rows: Rows, columns: Rows) -> UnionRelation:
        """Return S of sorted rows and columns."""
        n, m = self.first.shape
        return UnionRelation(
            self.first.subset(rows[rows < n], columns[columns < m]),
            self.appended.subset(rows[rows >= n] - n, columns[columns >= m] - m),
        )


def append_auxiliary(training: TrainingSet, appended: AuxiliarySet) -> TrainingSet:
    """Return a training set that also has the items of another auxiliary set."""
    if not isinstance(appended.relation, SparseRelation):
        raise DataError("Only an auxiliary set of pairs can be appended. Pass one without labels.")
    relation: Relation = training.relation
    added = appended.relation.shape
    if isinstance(relation, FeedbackRelation):
        relation = FeedbackRelation(
            UnionRelation(relation.base, appended.relation),
            relation.votes.pad(*added),
            np.pad(relation.voted_images, (0, added[0])),
            np.pad(relation.voted_texts, (0, added[1])),
        )
    else:
        relation = UnionRelation(relation, appended.relation)
    return replace(
        training,
        images=np.concatenate([training.images, appended.images]),
        texts=np.concatenate([training.texts, appended.texts]),
        relation=relation,
    )


def _pad_before(relation: SparseRelation, images: int, texts: int) -> SparseRelation:
    """Prepend items that are related to nothing."""

    def pad(matrix: sp.csr_array) -> sp.csr_array:
        coordinates = matrix.tocoo()
        shape = (matrix.shape[0] + images, matrix.shape[1] + texts)
        return sp.csr_array(
            (coordinates.data, (coordinates.row + images, coordinates.col + texts)), shape=shape
        )

    return SparseRelation(
        pad(relation.similar), None if relation.mask is None else pad(relation.mask)
    )
