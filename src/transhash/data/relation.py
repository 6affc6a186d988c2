"""The relation S between images and texts: which belong together.

`LabelRelation` and `SparseRelation` store S. `SumRelation` adds relations over the same items, and
`ExtendedRelation` adds items that are mixtures of others. None of them forms S.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.errors import DataError, check_type, type_name

_Float = npt.NDArray[np.float32]
_Double = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
MatchMatrix: TypeAlias = npt.NDArray[np.float64] | sp.csr_array  # (target items, auxiliary items)
_MAX_FACTORS = 256  # more label sets than this would be more columns than most features have


class Relation(Protocol):
    """s_ij in {0, 1} for image i and text j; some pairs may be unknown."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def positives(self) -> int:
        """Number of pairs with s_ij = 1."""

    @property
    def known(self) -> int:
        """Number of pairs with a known s_ij."""

    def block(self, rows: Rows, columns: Rows) -> tuple[_Float, _Float | None]:
        """Return s_ij and, unless all are known, a 0/1 mask of the known ones."""

    def times(self, texts: npt.NDArray[np.floating]) -> _Double:
        """Return S @ texts."""

    def transposed_times(self, images: npt.NDArray[np.floating]) -> _Double:
        """Return S.T @ images."""

    def factors(self) -> tuple[_Double, _Double] | None:
        """Return A (n, k) and B (m, k) with S = A B' if there are any with a small k."""

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Sample a related text for each image, or any text for an image without one."""

    def subset(self, rows: Rows, columns: Rows) -> Relation: ...


class LabelRelation:
    """s_ij = 1 if image i and text j share at least one label; every pair is known."""

    def __init__(self, image_labels: npt.ArrayLike, text_labels: npt.ArrayLike) -> None:
        self.image_labels = _truth(image_labels, "image")  # (n, classes)
        self.text_labels = _truth(text_labels, "text")  # (m, classes)
        if self.image_labels.ndim != 2 or self.image_labels.shape[1:] != self.text_labels.shape[1:]:
            raise DataError(
                f"Image and text labels have shapes {self.image_labels.shape} and "
                f"{self.text_labels.shape}. Pass two matrices over the same classes."
            )
        # Items with equal label sets have equal rows of S, so S is stored between the few
        # distinct label sets: 50,000 x 50,000 items cost no more than 2,000 x 2,000.
        sets_x, self._set_of_image = np.unique(self.image_labels, axis=0, return_inverse=True)
        sets_y, self._set_of_text = np.unique(self.text_labels, axis=0, return_inverse=True)
        self._sets = (sets_x.astype(np.float32) @ sets_y.T.astype(np.float32)) > 0
        self._x = _membership(self._set_of_image, len(sets_x))
        self._y = _membership(self._set_of_text, len(sets_y))

    @classmethod
    def from_classes(cls, images: Iterable[Any], texts: Iterable[Any]) -> LabelRelation:
        """Build from each item's class ("dog", 3) or collection of classes, which may be empty."""
        sets = [[_classes_of(item) for item in items] for items in (images, texts)]
        column = {name: i for i, name in enumerate(sorted(set().union(*sets[0], *sets[1])))}
        matrices = [np.zeros((len(part), max(1, len(column))), np.bool_) for part in sets]
        for matrix, part in zip(matrices, sets):
            for row, names in enumerate(part):
                matrix[row, [column[name] for name in names]] = True
        return cls(*matrices)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.image_labels), len(self.text_labels)

    @property
    def positives(self) -> int:
        counts_x = np.bincount(self._set_of_image, minlength=self._sets.shape[0])
        counts_y = np.bincount(self._set_of_text, minlength=self._sets.shape[1])
        return int(counts_x @ self._sets @ counts_y)

    @property
    def known(self) -> int:
        return self.shape[0] * self.shape[1]

    def block(self, rows: Rows, columns: Rows) -> tuple[_Float, None]:
        sets = self._sets[np.ix_(self._set_of_image[rows], self._set_of_text[columns])]
        return sets.astype(np.float32), None

    def times(self, texts: npt.NDArray[np.floating]) -> _Double:
        return np.asarray(self._x @ (self._sets @ (self._y.T @ texts.astype(np.float64))))

    def transposed_times(self, images: npt.NDArray[np.floating]) -> _Double:
        return np.asarray(self._y @ (self._sets.T @ (self._x.T @ images.astype(np.float64))))

    def factors(self) -> tuple[_Double, _Double] | None:
        if min(self._sets.shape) > _MAX_FACTORS:
            return None
        if self._sets.shape[0] <= self._sets.shape[1]:
            return self._x.toarray(), self._y @ self._sets.T.astype(np.float64)
        return self._x @ self._sets.astype(np.float64), self._y.toarray()

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        sets = self._set_of_image[rows].ravel()
        sample = rng.integers(0, self.shape[1], len(rows))
        for label_set in np.unique(sets):
            related = np.flatnonzero(self._sets[label_set][self._set_of_text])
            if len(related):
                members = sets == label_set
                sample[members] = rng.choice(related, int(members.sum()))
        return sample

    def subset(self, rows: Rows, columns: Rows) -> LabelRelation:
        return LabelRelation(self.image_labels[rows], self.text_labels[columns])

    def pad(self, images: int, texts: int) -> LabelRelation:
        """Append items without labels."""
        return LabelRelation(
            np.pad(self.image_labels, ((0, images), (0, 0))),
            np.pad(self.text_labels, ((0, texts), (0, 0))),
        )


class SparseRelation:
    """Listed pairs. If `known` is None, all other pairs are dissimilar, else they are unknown."""

    def __init__(self, similar: sp.csr_array, known: sp.csr_array | None = None) -> None:
        try:
            self.similar = sp.csr_array(similar, dtype=np.float32)
        except (TypeError, ValueError):
            raise DataError(
                f"The related pairs are {type_name(similar)}. Pass a sparse matrix, or use "
                "SparseRelation.from_pairs."
            ) from None
        self.mask = None if known is None else sp.csr_array(known, dtype=np.float32)

    @classmethod
    def from_pairs(cls, image_keys: Sequence[str], text_keys: Sequence[str]) -> SparseRelation:
        """Relate images and texts with equal keys, those of one row."""
        for keys in (image_keys, text_keys):
            if isinstance(keys, str | bytes) or np.ndim(keys) != 1:
                raise DataError(f"The keys are {type_name(keys)}. Pass a list of ids.")
        columns: dict[str, list[int]] = {}
        for j, key in enumerate(text_keys):
            columns.setdefault(key, []).append(j)
        pairs = [(i, j) for i, key in enumerate(image_keys) for j in columns.get(key, ())]
        if not pairs:
            raise DataError(
                "No auxiliary image is paired with a text. "
                "Put both in one row, or use the same ids for both."
            )
        return cls(sparse_ones(np.array(pairs), (len(image_keys), len(text_keys))))

    @classmethod
    def from_triples(
        cls, pairs: Sequence[tuple[int, int]], values: Sequence[float], shape: tuple[int, int]
    ) -> SparseRelation:
        """Build from clicks: only the listed pairs are known, 1 similar and 0 dissimilar."""
        check_type(pairs, (Sequence, np.ndarray), "The pairs", "a list of (image row, text row)")
        check_type(values, (Sequence, np.ndarray), "The values", "a list of 0 and 1")
        if np.ndim(values) != 1:
            raise DataError(f"The values have {np.ndim(values)} dimensions. Pass one per pair.")
        if others := set(values) - {0, 1}:
            raise DataError(f"A pair has the value {max(others)}. Use 1 if related, 0 if not.")
        ij = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        if len(ij) and not ((ij >= 0) & (ij < shape)).all():
            raise DataError(
                f"A pair lies outside {shape[0]} x {shape[1]} items. Pass row numbers from 0."
            )
        if not any(values):
            raise DataError("No pair is related. Add pairs with the value 1.")
        return cls(sparse_ones(ij[np.asarray(values) != 0], shape), sparse_ones(ij, shape))

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.similar.shape
        return rows, columns

    @property
    def positives(self) -> int:
        return int(self.similar.nnz)

    @property
    def known(self) -> int:
        return self.shape[0] * self.shape[1] if self.mask is None else int(self.mask.nnz)

    def block(self, rows: Rows, columns: Rows) -> tuple[_Float, _Float | None]:
        s = self.similar[rows][:, columns].toarray()
        return s, None if self.mask is None else self.mask[rows][:, columns].toarray()

    def times(self, texts: npt.NDArray[np.floating]) -> _Double:
        return np.asarray(self.similar @ texts.astype(np.float64))

    def transposed_times(self, images: npt.NDArray[np.floating]) -> _Double:
        return np.asarray(self.similar.T @ images.astype(np.float64))

    def factors(self) -> None:
        return None

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        start, end = self.similar.indptr[rows], self.similar.indptr[rows + 1]
        sample = rng.integers(0, self.shape[1], len(rows))
        position = start + (rng.random(len(rows)) * (end - start)).astype(np.int64)
        has_partner = end > start
        sample[has_partner] = self.similar.indices[position[has_partner]]
        return sample

    def subset(self, rows: Rows, columns: Rows) -> SparseRelation:
        mask = None if self.mask is None else self.mask[rows][:, columns]
        return SparseRelation(self.similar[rows][:, columns], mask)

    def pad(self, images: int, texts: int) -> SparseRelation:
        """Append items that are related to nothing."""
        n, m = self.shape
        similar, mask = self.similar.copy(), None if self.mask is None else self.mask.copy()
        for matrix in (similar, mask):
            if matrix is not None:
                matrix.resize(n + images, m + texts)
        return SparseRelation(similar, mask)


@dataclass(frozen=True)
class Term:
    """One summand of a `SumRelation`."""

    relation: Relation
    weight: float = 1.0  # of its pairs in products
    images: _Mask | None = None  # images that sample their partners from this term
    scope: tuple[_Mask, _Mask] | None = None  # images and texts it is known for; None: all


class SumRelation:
    """S = sum of terms over the same items that have no positive pair in common.

    Products weight each term. Partners come from the first term, except for the images that a
    later term claims.
    """

    def __init__(self, *terms: Term) -> None:
        self.terms = terms

    @property
    def shape(self) -> tuple[int, int]:
        return self.terms[0].relation.shape

    @property
    def positives(self) -> int:
        return sum(term.relation.positives for term in self.terms)

    @property
    def known(self) -> int:
        total = self.shape[0] * self.shape[1]
        count = 0
        for term in self.terms:
            known = term.relation.known
            if known == total and term.scope is not None:
                known = int(term.scope[0].sum() * term.scope[1].sum())
            count += known
        return min(count, total)

    def block(self, rows: Rows, columns: Rows) -> tuple[_Float, _Float | None]:
        s = np.zeros((len(rows), len(columns)), np.float32)
        known: _Float | None = np.zeros(s.shape, np.float32)
        for term in self.terms:
            part, mask = term.relation.block(rows, columns)
            s += part
            if term.scope is not None:
                scope = np.outer(term.scope[0][rows], term.scope[1][columns]).astype(np.float32)
                mask = scope if mask is None else scope * mask
            known = None if known is None or mask is None else known + mask
        return s, known

    def times(self, texts: npt.NDArray[np.floating]) -> _Double:
        return _total(term.weight * term.relation.times(texts) for term in self.terms)

    def transposed_times(self, images: npt.NDArray[np.floating]) -> _Double:
        return _total(term.weight * term.relation.transposed_times(images) for term in self.terms)

    def factors(self) -> tuple[_Double, _Double] | None:
        first, *others = self.terms
        if first.scope is not None or any(term.relation.positives for term in others):
            return None
        return first.relation.factors()

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        sample = self.terms[0].relation.sample_partners(rows, rng)
        for term in self.terms[1:]:
            if term.images is not None:
                claimed = term.images[rows]
                sample[claimed] = term.relation.sample_partners(rows[claimed], rng)
        return sample


class GradedRelation(SumRelation):
    """Labels and pairs: s_ij = 1 for either, and a pair is closer than a shared label.

    Most methods use only s_ij, in which a pair counts where its items share no label. THN also
    learns from `pairs` what distinguishes an item within its class.
    """

    def __init__(self, labels: LabelRelation, pairs: SparseRelation) -> None:
        check_type(labels, LabelRelation, "The labels", "a LabelRelation")
        check_type(pairs, SparseRelation, "The pairs", "a SparseRelation")
        if labels.shape != pairs.shape:
            raise DataError(
                f"Labels cover {labels.shape} items but pairs {pairs.shape}. "
                "Pass both for the same images and texts."
            )
        self.labels, self.pairs = labels, pairs
        i, j = pairs.similar.nonzero()
        unlabeled = ~(labels.image_labels[i] & labels.text_labels[j]).any(axis=1)
        rest = SparseRelation(sparse_ones(np.stack([i, j], axis=1)[unlabeled], labels.shape))
        super().__init__(Term(labels), Term(rest, images=np.diff(rest.similar.indptr) > 0))

    def subset(self, rows: Rows, columns: Rows) -> GradedRelation:
        return GradedRelation(self.labels.subset(rows, columns), self.pairs.subset(rows, columns))

    def pad(self, images: int, texts: int) -> GradedRelation:
        return GradedRelation(self.labels.pad(images, texts), self.pairs.pad(images, texts))


class _Mixture:
    """Selected rows of the matrix [I; P]: n items, and further items as mixtures of them."""

    def __init__(self, n: int, p: MatchMatrix | None, rows: Rows | None = None) -> None:
        self.n, self.p = n, p
        self._size = n + (0 if p is None else p.shape[0])
        self.rows = np.arange(self._size) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def times(self, values: _Double) -> _Double:
        if self.p is not None:
            values = np.concatenate([values, self.p @ values])
        return values[self.rows] if len(self) != self._size else values

    def transposed_times(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        if len(self) != self._size:
            selected, values = values, np.zeros((self._size, values.shape[1]))
            values[self.rows] = selected
        if self.p is None:
            return values
        return np.asarray(values[: self.n] + self.p.T @ values[self.n :])

    def added(self, rows: Rows) -> _Double:
        """Return dense rows of P, by their row in [I; P]."""
        assert self.p is not None
        selected = self.p[rows - self.n]
        return np.asarray(selected.toarray() if isinstance(selected, sp.csr_array) else selected)

    def subset(self, rows: Rows) -> _Mixture:
        return _Mixture(self.n, self.p, self.rows[rows])


class ExtendedRelation:
    """S⁺ = [I; P] S [I; Q]', never formed. P or Q is None if no items of its modality are added.

    Rows of P and Q sum to 1 at most, so s_ij of added items lies between 0 and 1; it counts as
    known.
    """

    def __init__(
        self, relation: Relation, p: MatchMatrix | None = None, q: MatchMatrix | None = None
    ) -> None:
        n, m = relation.shape
        self.relation, self._images, self._texts = relation, _Mixture(n, p), _Mixture(m, q)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._images), len(self._texts)

    @property
    def positives(self) -> int:
        """Sum of s_ij, rounded."""
        return round(float(self.times(np.ones((self.shape[1], 1))).sum()))

    @property
    def known(self) -> int:
        rows, columns = (part.rows[part.rows < part.n] for part in (self._images, self._texts))
        added = self.shape[0] * self.shape[1] - len(rows) * len(columns)
        return added + self.relation.subset(rows, columns).known

    def block(self, rows: Rows, columns: Rows) -> tuple[_Float, _Float | None]:
        n, m = self.relation.shape
        rows, columns = self._images.rows[rows], self._texts.rows[columns]
        own_x, own_y = rows < n, columns < m
        half = np.empty((len(rows), m))  # rows of [I; P] S
        half[own_x], mask = self.relation.block(rows[own_x], np.arange(m))
        if not own_x.all():
            half[~own_x] = self.relation.transposed_times(self._images.added(rows[~own_x]).T).T
        s = np.empty((len(rows), len(columns)), np.float32)
        s[:, own_y] = half[:, columns[own_y]]
        if not own_y.all():
            s[:, ~own_y] = half @ self._texts.added(columns[~own_y]).T
        if mask is None:
            return s, None
        known = np.ones(s.shape, np.float32)
        known[np.ix_(own_x, own_y)] = mask[:, columns[own_y]]
        return s, known

    def times(self, texts: npt.NDArray[np.floating]) -> _Double:  # (m + m̂, k) -> (n + n̂, k)
        return self._images.times(self.relation.times(self._texts.transposed_times(texts)))

    def transposed_times(self, images: npt.NDArray[np.floating]) -> _Double:
        return self._texts.times(
            self.relation.transposed_times(self._images.transposed_times(images))
        )

    def factors(self) -> tuple[_Double, _Double] | None:
        factors = self.relation.factors()
        if factors is None:
            return None
        return self._images.times(factors[0]), self._texts.times(factors[1])

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Sample among all texts in proportion to s_ij."""
        sample = np.empty(len(rows), np.int64)
        for i, row in enumerate(rows):
            s = self.block(np.array([row]), np.arange(self.shape[1]))[0][0].astype(np.float64)
            sample[i] = rng.choice(len(s), p=s / s.sum() if s.sum() else None)
        return sample

    def subset(self, rows: Rows, columns: Rows) -> ExtendedRelation:
        part = ExtendedRelation(self.relation)
        part._images, part._texts = self._images.subset(rows), self._texts.subset(columns)
        return part


def _total(parts: Iterable[_Double]) -> _Double:
    return reduce(operator.add, parts)


def _truth(labels: npt.ArrayLike, name: str) -> _Mask:
    """Return the matrix as booleans; class numbers and label sets would all count as true."""
    hint = "Pass 0 and 1 with a column per class, or use LabelRelation.from_classes."
    try:
        matrix = np.asarray(labels)
    except ValueError:
        raise DataError(f"The {name} labels are not a matrix. {hint}") from None
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"The {name} labels have the type {matrix.dtype}. {hint}")
    bad = (matrix != 0) & (matrix != 1)
    if bad.any():
        raise DataError(f"The {name} labels contain {matrix[bad][0]}. {hint}")
    return matrix.astype(np.bool_)


def _classes_of(item: Any) -> set[str]:
    if isinstance(item, str | int | np.integer):
        return {str(item)}
    if isinstance(item, list | tuple | set | frozenset | np.ndarray):
        return set().union(*(_classes_of(part) for part in item))
    raise DataError(f"A class has the type {type(item).__name__}. Use strings or integers.")


def _membership(group: npt.NDArray[np.int64], groups: int) -> sp.csr_array:
    """Return an (items, groups) matrix with a 1 where an item belongs to a group."""
    n = len(group)
    return sp.csr_array((np.ones(n), (np.arange(n), group.ravel())), shape=(n, groups))


def sparse_ones(pairs: Rows, shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix with ones at the given (row, column) pairs, which may repeat."""
    matrix = sp.csr_array((np.ones(len(pairs), np.float32), tuple(pairs.T)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = np.minimum(matrix.data, 1.0)
    return matrix
