"""A scikit-learn estimator that learns codes from pairs: for pipelines and searches of settings."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from transhash.codes import Codes
from transhash.data.relation import SparseRelation, sparse_ones
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.errors import DataError, check_type
from transhash.hashers import make_hasher
from transhash.hashers.base import Hasher
from transhash.hashers.tuning import held_out_map

Bits = npt.NDArray[np.uint8]


class PairHasher(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # untyped
    """Learns from rows X of image features and y of text features that belong together.

    An image or text may have several rows: equal rows are one item. The settings are those of
    `hasher` (`hasher__bits`), which is copied and not changed. None stands for CVH with 32 bits.
    """

    def __init__(self, hasher: Hasher | None = None) -> None:
        self.hasher = hasher

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        target_images: Features | None = None,
        target_texts: Features | None = None,
    ) -> Self:
        """Learn from pairs; methods such as THN also use unpaired rows of the target."""
        check_type(self.hasher, (Hasher, type(None)), "hasher", "a hasher such as transhash.CVH()")
        hasher = make_hasher("CVH") if self.hasher is None else clone(self.hasher)
        pairs = _relate(X, y)
        self.hasher_: Hasher = hasher.fit(
            TrainingSet(pairs.images, pairs.texts, pairs.relation, target_images, target_texts)
        )
        self.n_features_in_ = pairs.images.shape[1]
        return self

    def transform(self, X: npt.ArrayLike) -> Bits:
        """Return the code of each image as a row of 0 and 1, (n, bits)."""
        check_is_fitted(self)
        return _to_bits(self.hasher_.encode_images(_to_rows(X, "X")))

    def transform_texts(self, y: npt.ArrayLike) -> Bits:
        """Return the code of each text as a row of 0 and 1, (n, bits)."""
        check_is_fitted(self)
        return _to_bits(self.hasher_.encode_texts(_to_rows(y, "y")))

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """Return MAP of both directions, on average, among the images and texts of these pairs."""
        check_is_fitted(self)
        return float(np.mean(held_out_map(self.hasher_, _relate(X, y))))


def _relate(X: npt.ArrayLike, y: npt.ArrayLike) -> AuxiliarySet:
    """Return the distinct images and texts of pairs, and which belong together."""
    rows_x, rows_y = _to_rows(X, "X"), _to_rows(y, "y")
    if len(rows_x) != len(rows_y):
        raise DataError(
            f"X has {len(rows_x):,} rows and y has {len(rows_y):,}. Pass the image and the text of "
            "a pair in the same row."
        )
    images, i = np.unique(rows_x, axis=0, return_inverse=True)
    texts, j = np.unique(rows_y, axis=0, return_inverse=True)
    shape = len(images), len(texts)
    relation = SparseRelation(sparse_ones(np.column_stack([i.ravel(), j.ravel()]), shape))
    return AuxiliarySet(images, texts, relation)


def _to_rows(values: npt.ArrayLike, name: str) -> Features:
    rows = np.asarray(values)
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise DataError(
            f"{name} has the shape {rows.shape} and the type {rows.dtype}. Pass a matrix of "
            "features, one row per pair."
        )
    return rows


def _to_bits(codes: Codes) -> Bits:
    return np.unpackbits(codes.packed, axis=1, count=codes.bits)
