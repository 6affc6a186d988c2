"""Canonical analysis of a relation: what CVH, QCH and the first layer of THN stand on.

The relation S is rectangular and the training items are unpaired. Every (i, j) with s_ij = 1
counts as one training pair, but the pairs are never written out: with r = S 1, c = S' 1 and
n = sum of s_ij,

    m_x = r'X / n    C_xx = (X - m_x)' diag(r) (X - m_x) / n    C_xy = (X - m_x)' S (Y - m_y) / n

and the same for texts with c. With S = I these are the classical paired covariances. Then

    L_x L_x' = C_xx + ρ λmax(C_xx) I    K_x = L_x^-T    T = K_x' C_xy K_y = U diag(s) V'

and (X - m_x) K_x U, (Y - m_y) K_y V are the canonical coordinates. The L are triangular, so that
solving with them takes half of what multiplying takes, and no inverse is formed. Where S = A B'
with k columns, T = (K_x'(X - m_x)'A) (K_y'(Y - m_y)'B)' / n is not formed either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse.linalg

from transhash.data.training_set import Features
from transhash.errors import DataError

Matrix = npt.NDArray[np.float64]

_CHUNK = 4096  # rows turned into float64 at a time: 40 MB at 1,280 features


class RelationProduct(Protocol):
    """What the analysis asks of a relation; weights may be fractions."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def times(self, texts: Matrix) -> Matrix: ...

    def transposed_times(self, images: Matrix) -> Matrix: ...

    def factors(self) -> tuple[Matrix, Matrix] | None:
        """A (nx, k) and B (ny, k) with S = A B', where k is small."""


@dataclass(frozen=True)
class Covariances:
    """First and second moments of the related pairs (i, j)."""

    mean_x: Matrix  # (dx,)
    mean_y: Matrix  # (dy,)
    xx: Matrix  # (dx, dx)
    yy: Matrix  # (dy, dy)
    cross: tuple[Matrix, Matrix | None]  # F (dx, k), G (dy, k) with C_xy = F G'; None: G = I

    @property
    def xy(self) -> Matrix:  # (dx, dy)
        f, g = self.cross
        return f if g is None else f @ g.T


@dataclass(frozen=True)
class Canonical:
    """The leading directions in which related items agree.

    Coordinate i of a related pair has correlation s_i (a little less than the unregularised one,
    because of the ridge). With one label an item, at most classes - 1 of the s_i differ from
    zero; later coordinates carry nothing of the relation.
    """

    moments: Covariances
    lower_x: Matrix  # L_x, (dx, dx)
    lower_y: Matrix  # L_y, (dy, dy)
    u: Matrix  # (dx, k)
    s: Matrix  # (k,), falling
    v: Matrix  # (dy, k)

    @property
    def mean_x(self) -> Matrix:
        return self.moments.mean_x

    @property
    def mean_y(self) -> Matrix:
        return self.moments.mean_y

    @cached_property
    def image_axes(self) -> Matrix:
        return solve_triangular(self.lower_x, self.u, transposed=True)

    @cached_property
    def text_axes(self) -> Matrix:
        return solve_triangular(self.lower_y, self.v, transposed=True)

    @cached_property
    def whiten_x(self) -> Matrix:  # K_x, (dx, dx)
        return _inverse(self.lower_x)

    @cached_property
    def whiten_y(self) -> Matrix:  # K_y, (dy, dy)
        return _inverse(self.lower_y)

    @cached_property
    def relating(self) -> Matrix:  # T, (dx, dy)
        return _relating(self.moments.xy, self.lower_x, self.lower_y)

    def rank(self, threshold: float) -> int:
        """How many directions are stronger than `threshold` times the strongest; at least one."""
        return max(1, int((self.s > threshold * self.s[0]).sum()))

    def cut(self, rank: int) -> Canonical:
        return replace(self, u=self.u[:, :rank], s=self.s[:rank], v=self.v[:, :rank])


def canonical_analysis(
    images: Features,
    texts: Features,
    relation: RelationProduct,
    ridge: float,
    count: int,
    *,
    centred: bool = False,
    fewer: bool = False,
) -> Canonical:
    """Regularised canonical correlation analysis of the related pairs, `count` directions of it.

    Features that are `centred` already keep the zero they have. With `fewer`, directions of which
    the relation says nothing may be missing, which of few label sets takes less time.
    Deterministic: of each image axis the entry largest in size is positive. Time
    O(nx dx² + ny dy² + nx dx dy); memory beside the inputs O(dx² + dy² + nx · 256).
    """
    images, texts = require_vectors(images, "images"), require_vectors(texts, "texts")
    moments = covariances(images, texts, relation, centred=centred)
    lower_x, lower_y = (lower_factor(c, ridge) for c in (moments.xx, moments.yy))
    f, g = moments.cross
    if g is not None and (fewer or count <= g.shape[1]) and g.shape[1] <= min(len(f), len(g)):
        u, s, v = _of_product(solve_triangular(lower_x, f), solve_triangular(lower_y, g), count)
    else:
        u, s, v = leading_singular_vectors(_relating(moments.xy, lower_x, lower_y), count)
    axes = solve_triangular(lower_x, u, transposed=True)
    signs = np.where(axes[np.abs(axes).argmax(axis=0), np.arange(len(s))] < 0, -1.0, 1.0)
    return Canonical(moments, lower_x, lower_y, u * signs, s, v * signs)


def covariances(
    images: Features,
    texts: Features,
    relation: RelationProduct,
    *,
    centred: bool = False,
) -> Covariances:
    """The five moments of the module docstring, in float64, S never formed."""
    of_image = relation.times(np.ones((relation.shape[1], 1)))  # r, (nx, 1)
    of_text = relation.transposed_times(np.ones((relation.shape[0], 1)))  # c, (ny, 1)
    pairs = float(of_image.sum())
    if pairs == 0:
        raise DataError("no auxiliary image and text are related; nothing can be learned")
    mean_x = np.zeros(images.shape[1]) if centred else weighted_mean(images, of_image)
    mean_y = np.zeros(texts.shape[1]) if centred else weighted_mean(texts, of_text)
    factors = relation.factors()
    cross: tuple[Matrix, Matrix | None]
    if factors is not None:  # of labels: as wide as there are label sets, not as features
        a, b = factors
        cross = _cross_moment(images, mean_x, a) / pairs, _cross_moment(texts, mean_y, b)
    else:
        total = np.zeros((images.shape[1], texts.shape[1]))
        for start in range(0, texts.shape[1], 256):  # S (Y - m_y) a few columns at a time
            columns = slice(start, start + 256)
            related = relation.times(texts[:, columns] - mean_y[columns])  # (nx, 256)
            for rows, x in chunks(images, mean_x):
                total[:, columns] += x.T @ related[rows]
        cross = total / pairs, None
    return Covariances(
        mean_x,
        mean_y,
        _second_moment(images, mean_x, of_image) / pairs,
        _second_moment(texts, mean_y, of_text) / pairs,
        cross,
    )


def lower_factor(covariance: Matrix, ridge: float) -> Matrix:
    """L, lower triangular, with L L' = C + ridge · λmax(C) · I.

    The ridge is relative to the largest eigenvalue, so it means the same for features of any
    scale, and it is what makes more features than items possible.
    """
    largest = _largest_eigenvalue(covariance)
    if not largest > 0:
        raise DataError("all related auxiliary items have the same features; nothing to learn from")
    raised = covariance.copy()
    raised.flat[:: len(raised) + 1] += ridge * largest
    try:
        # A symmetric matrix is its transpose, and the transpose is as LAPACK wants it.
        lower = scipy.linalg.cholesky(raised.T, lower=True, overwrite_a=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        lower = np.zeros((1, 1))
    if np.diag(lower).min() ** 2 <= 1e-13 * largest:
        raise DataError(f"the covariance is singular; a ridge above {ridge} is needed, say 0.01")
    return np.asfortranarray(lower)


def solve_triangular(lower: Matrix, right: Matrix, *, transposed: bool = False) -> Matrix:
    """L^-1 B, or L^-T B, (d, k)."""
    solve = scipy.linalg.get_blas_funcs("trsm", (lower,))
    return np.asarray(solve(1.0, lower, right, lower=1, trans_a=int(transposed)))


def leading_singular_vectors(matrix: Matrix, count: int) -> tuple[Matrix, Matrix, Matrix]:
    """U (d, k), s (k,), V (e, k) of the `count` largest singular values, or of all.

    From the smaller Gram matrix, of which only the wanted eigenvectors are computed; QR then
    makes the other side orthonormal also where singular values vanish.
    """
    if matrix.shape[0] < matrix.shape[1]:
        v, s, u = leading_singular_vectors(matrix.T, count)
        return u, s, v
    size = matrix.shape[1]
    first = max(0, size - count)
    _, v = scipy.linalg.eigh(matrix.T @ matrix, subset_by_index=[first, size - 1])
    v = v[:, ::-1]
    u, r = np.linalg.qr(matrix @ v)
    u = u * np.where(np.diag(r) < 0, -1.0, 1.0)
    return u, np.abs(np.diag(r)), v


def _relating(cross: Matrix, lower_x: Matrix, lower_y: Matrix) -> Matrix:
    """T = L_x^-1 C_xy L_y^-T, (dx, dy)."""
    solve = scipy.linalg.get_blas_funcs("trsm", (lower_y,))
    half = solve_triangular(lower_x, cross)
    found = solve(1.0, lower_y, half, side=1, lower=1, trans_a=1, overwrite_b=1)
    return np.asarray(found, np.float64)


def _of_product(left: Matrix, right: Matrix, count: int) -> tuple[Matrix, Matrix, Matrix]:
    """U, s, V of the `count` largest singular values of left @ right', or of as many as it has."""
    (q_x, r_x), (q_y, r_y) = np.linalg.qr(left), np.linalg.qr(right)
    u, s, vt = np.linalg.svd(r_x @ r_y.T)
    return q_x @ u[:, :count], s[:count], q_y @ vt[:count].T


def _inverse(lower: Matrix) -> Matrix:
    """K = L^-T."""
    inverse, _ = scipy.linalg.lapack.dtrtri(lower.astype(np.float64), lower=1)
    return np.ascontiguousarray(np.tril(inverse).T)


def weighted_mean(features: Features, weights: Matrix) -> Matrix:
    """The mean over related pairs: an item counts as often as it is related."""
    total = np.zeros(features.shape[1])
    for rows, part in chunks(features):
        total += weights[rows, 0] @ part
    return np.asarray(total / weights.sum())


def chunks(features: Features, mean: Matrix | None = None) -> Iterator[tuple[slice, Matrix]]:
    """A few rows at a time in float64, less the mean; they are not to be written to."""
    for start in range(0, len(features), _CHUNK):
        rows = slice(start, start + _CHUNK)
        part = features[rows]
        if mean is None or not mean.any():
            yield rows, part.astype(np.float64, copy=False)
        else:
            yield rows, part - mean


def require_vectors(features: Features, what: str) -> Features:
    """`features` if it is a matrix of numbers; linear methods cannot use pixels."""
    if features.ndim != 2:
        raise DataError(
            f"a linear method needs {what} as feature vectors (n, d), got shape {features.shape}; "
            "extract features first"
        )
    return features


def _cross_moment(features: Features, mean: Matrix, factor: Matrix) -> Matrix:
    """(X - m)' A, (d, k)."""
    total = np.zeros((features.shape[1], factor.shape[1]))
    for rows, part in chunks(features, mean):
        total += part.T @ factor[rows]
    return total


def _second_moment(features: Features, mean: Matrix, weights: Matrix) -> Matrix:
    total = np.zeros((features.shape[1], features.shape[1]))
    for rows, part in chunks(features, mean):
        weighed = part * np.sqrt(weights[rows])
        total += weighed.T @ weighed  # of one matrix with itself: half the work
    return total


def _largest_eigenvalue(symmetric: Matrix) -> float:
    if len(symmetric) < 32:
        return float(np.linalg.eigvalsh(symmetric)[-1])
    start = np.full(len(symmetric), len(symmetric) ** -0.5)  # fixed: the same digits every time
    start += symmetric.sum(axis=0) / max(float(np.abs(symmetric).sum()), 1e-300)
    found = scipy.sparse.linalg.eigsh(
        symmetric, k=1, which="LA", v0=start, return_eigenvectors=False
    )
    return float(found[0])
