"""S, the cross-modal relation between auxiliary images and texts (they need not be paired)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.errors import DataError

_Float = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
_FEW_SETS = 256  # label sets that are fewer than features


class Relation(Protocol):
    """s_ij in {0, 1} for image i and text j; some pairs may be unknown."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def positives(self) -> int:
        """How many pairs have s_ij = 1."""

    @property
    def known(self) -> int:
        """How many pairs have a known s_ij."""

    def block(self, rows: Rows, columns: Rows) -> tuple[_Float, _Float | None]:
        """s_ij and, unless all are known, a 0/1 mask of the known ones."""

    def times(self, texts: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """S @ texts, without forming S."""

    def transposed_times(self, images: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """S.T @ images, without forming S."""

    def factors(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """A (n, k) and B (m, k) with S = A B', where k is small."""

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """A related text of each image, drawn evenly; any text where there is none."""

    def subset(self, rows: Rows, columns: Rows) -> Relation: ...


class LabelRelation:
    """s_ij = 1 if image i and text j share at least one label; every pair is known."""

    def __init__(self, image_labels: npt.ArrayLike, text_labels: npt.ArrayLike) -> None:
        self.image_labels = _truth(image_labels, "image")  # (n, classes)
        self.text_labels = _truth(text_labels, "text")  # (m, classes)
        if self.image_labels.ndim != 2 or self.image_labels.shape[1:] != self.text_labels.shape[1:]:
            raise DataError(
                "image and text labels must be two matrices over the same classes, got shapes "
                f"{self.image_labels.shape} and {self.text_labels.shape}"
            )
        # Items with the same label set have the same row of S, so S is kept between the few
        # distinct label sets: 50,000 x 50,000 items cost no more than 2,000 x 2,000.
        sets_x, self._set_of_image = np.unique(self.image_labels, axis=0, return_inverse=True)
        sets_y, self._set_of_text = np.unique(self.text_labels, axis=0, return_inverse=True)
        self._sets = (sets_x.astype(np.float32) @ sets_y.T.astype(np.float32)) > 0
        self._x = _membership(self._set_of_image, len(sets_x))
        self._y = _membership(self._set_of_text, len(sets_y))

    @classmethod
    def of_classes(cls, images: Iterable[Any], texts: Iterable[Any]) -> LabelRelation:
        """From each item's class ("dog", 3) or collection of classes; one may have none."""
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

    def times(self, texts: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return np.asarray(self._x @ (self._sets @ (self._y.T @ texts.astype(np.float64))))

    def transposed_times(self, images: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return np.asarray(self._y @ (self._sets.T @ (self._x.T @ images.astype(np.float64))))

    def factors(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        if min(self._sets.shape) > _FEW_SETS:
            return None
        if self._sets.shape[0] <= self._sets.shape[1]:
            return self._x.toarray(), self._y @ self._sets.T.astype(np.float64)
        return self._x @ self._sets.astype(np.float64), self._y.toarray()

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        sets = self._set_of_image[rows].ravel()
        drawn = rng.integers(0, self.shape[1], len(rows))
        for one in np.unique(sets):
            related = np.flatnonzero(self._sets[one][self._set_of_text])
            if len(related):
                here = sets == one
                drawn[here] = rng.choice(related, int(here.sum()))
        return drawn

    def subset(self, rows: Rows, columns: Rows) -> LabelRelation:
        return LabelRelation(self.image_labels[rows], self.text_labels[columns])


class SparseRelation:
    """Listed pairs: `known=None` means that every pair that is not listed is dissimilar."""

    def __init__(self, similar: sp.csr_array, known: sp.csr_array | None = None) -> None:
        self.similar = sp.csr_array(similar, dtype=np.float32)
        self.mask = None if known is None else sp.csr_array(known, dtype=np.float32)

    @classmethod
    def from_pairs(cls, image_keys: Sequence[str], text_keys: Sequence[str]) -> SparseRelation:
        """s_ij = 1 where the keys agree: the picture and the text of one row belong together."""
        of_text: dict[str, list[int]] = {}
        for j, key in enumerate(text_keys):
            of_text.setdefault(key, []).append(j)
        listed = [(i, j) for i, key in enumerate(image_keys) for j in of_text.get(key, ())]
        if not listed:
            raise DataError("no auxiliary image has a text of its own row; nothing can be learned")
        return cls(_sparse(listed, [1.0] * len(listed), (len(image_keys), len(text_keys))))

    @classmethod
    def from_triples(
        cls, pairs: Sequence[tuple[int, int]], values: Sequence[float], shape: tuple[int, int]
    ) -> SparseRelation:
        """Click-through: only the listed pairs are known, 1 similar and 0 dissimilar."""
        if set(values) - {0, 1}:
            raise DataError(f"the relation of a pair is 0 or 1, got {max(set(values) - {0, 1})}")
        ij = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        if len(ij) and not ((ij >= 0) & (ij < shape)).all():
            raise DataError(f"the relation names a pair outside of {shape[0]} x {shape[1]} items")
        if not any(values):
            raise DataError("the relation holds no similar pair (value 1); nothing can be learned")
        positive = [pair for pair, value in zip(pairs, values, strict=True) if value]
        return cls(
            _sparse(positive, [1.0] * len(positive), shape),
            _sparse(list(pairs), [1.0] * len(pairs), shape),
        )

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

    def times(self, texts: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return np.asarray(self.similar @ texts.astype(np.float64))

    def transposed_times(self, images: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return np.asarray(self.similar.T @ images.astype(np.float64))

    def factors(self) -> None:
        return None

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        start, end = self.similar.indptr[rows], self.similar.indptr[rows + 1]
        drawn = rng.integers(0, self.shape[1], len(rows))
        place = start + (rng.random(len(rows)) * (end - start)).astype(np.int64)
        some = end > start
        drawn[some] = self.similar.indices[place[some]]
        return drawn

    def subset(self, rows: Rows, columns: Rows) -> SparseRelation:
        mask = None if self.mask is None else self.mask[rows][:, columns]
        return SparseRelation(self.similar[rows][:, columns], mask)


class GradedRelation:
    """Labels and pairs together: s_ij = 1 for either, and the pair stands above the shared label.

    Methods that ask for s_ij alone see the labels, and the pairs of items without a label; THN
    looks for what tells a pair from its class, too.
    """

    def __init__(self, labels: LabelRelation, pairs: SparseRelation) -> None:
        if labels.shape != pairs.shape:
            raise DataError(f"labels relate {labels.shape} items and pairs {pairs.shape}")
        self.labels, self.pairs = labels, pairs
        i, j = pairs.similar.nonzero()
        alone = ~(labels.image_labels[i] & labels.text_labels[j]).any(axis=1)
        listed = list(zip(i[alone].tolist(), j[alone].tolist()))
        # Pairs whose items share no label: few, mostly of rows without one.
        self._unlabelled = SparseRelation(_sparse(listed, [1.0] * len(listed), labels.shape))

    @property
    def shape(self) -> tuple[int, int]:
        return self.labels.shape

    @property
    def positives(self) -> int:
        return self.labels.positives + self._unlabelled.positives

    @property
    def known(self) -> int:
        return self.labels.known

    def block(self, rows: Rows, columns: Rows) -> tuple[_Float, None]:
        s = self.labels.block(rows, columns)[0] + self._unlabelled.block(rows, columns)[0]
        return s, None

    def times(self, texts: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return self.labels.times(texts) + self._unlabelled.times(texts)

    def transposed_times(self, images: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return self.labels.transposed_times(images) + self._unlabelled.transposed_times(images)

    def factors(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        return None if self._unlabelled.positives else self.labels.factors()

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        own = self._unlabelled.similar.indptr
        alone = own[rows + 1] > own[rows]
        drawn = self.labels.sample_partners(rows, rng)
        drawn[alone] = self._unlabelled.sample_partners(rows[alone], rng)
        return drawn

    def subset(self, rows: Rows, columns: Rows) -> GradedRelation:
        return GradedRelation(self.labels.subset(rows, columns), self.pairs.subset(rows, columns))


def _truth(labels: npt.ArrayLike, name: str) -> npt.NDArray[np.bool_]:
    """The matrix as booleans; class numbers or label sets would all count as true."""
    hint = "with a column for each class; LabelRelation.of_classes takes classes and label sets"
    try:
        matrix = np.asarray(labels)
    except ValueError:
        raise DataError(f"{name} labels must be a matrix of 0 and 1 {hint}") from None
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"{name} labels must be a matrix of 0 and 1 {hint}, got {matrix.dtype}")
    bad = (matrix != 0) & (matrix != 1)
    if bad.any():
        raise DataError(f"{name} labels must be a matrix of 0 and 1 {hint}, got {matrix[bad][0]}")
    return matrix.astype(np.bool_)


def _classes_of(item: Any) -> set[str]:
    if isinstance(item, str | int | np.integer):
        return {str(item)}
    if isinstance(item, list | tuple | set | frozenset | np.ndarray):
        return set().union(*(_classes_of(one) for one in item))
    raise DataError(f"a class is a text or a whole number, got a {type(item).__name__}")


def _membership(group: npt.NDArray[np.int64], groups: int) -> sp.csr_array:
    """(items, groups) with a 1 where the item belongs to the group."""
    n = len(group)
    return sp.csr_array((np.ones(n), (np.arange(n), group.ravel())), shape=(n, groups))


def _sparse(
    pairs: Sequence[tuple[int, int]], values: Sequence[float], shape: tuple[int, int]
) -> sp.csr_array:
    ij = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    matrix = sp.csr_array((np.asarray(values, np.float32), (ij[:, 0], ij[:, 1])), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = np.minimum(matrix.data, 1.0)
    return matrix
