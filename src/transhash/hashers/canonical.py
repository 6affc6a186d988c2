"""Canonical correlation analysis of a relation, used by CVH, QCH and the input layer of THN.

The relation S is rectangular and the training items are unpaired. Every (i, j) with s_ij = 1
counts as one training pair, but the pairs are never listed: with r = S 1, c = S' 1 and
n = sum of s_ij,

    m_x = r'X / n    C_xx = (X - m_x)' diag(r) (X - m_x) / n    C_xy = (X - m_x)' S (Y - m_y) / n

and the same for texts with c. With S = I these are the classical paired covariances. Then

    L_x L_x' = C_xx + ρ λmax(C_xx) I    K_x = L_x^-T    T = K_x' C_xy K_y = U diag(s) V'

and (X - m_x) K_x U, (Y - m_y) K_y V are the canonical coordinates. Solving with the triangular L
takes half the time of multiplying by an inverse, so none is formed. If S = A B' with k columns,
T = (K_x'(X - m_x)'A) (K_y'(Y - m_y)'B)' / n is not formed either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from transhash.data.training_set import Features
from transhash.errors import DataError
from transhash.hashers.base import require_vectors
from transhash.hashers.projection import Matrix, chunks
from transhash.progress import phase

_CHUNK_COLUMNS = 256


class RelationProduct(Protocol):
    """The products with a relation that the analysis needs; its entries may be fractions."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def times(self, texts: Matrix) -> Matrix: ...

    def transposed_times(self, images: Matrix) -> Matrix: ...

    def factors(self) -> tuple[Matrix, Matrix] | None:
        """Return A (nx, k) and B (ny, k) with S = A B' for a small k, or None."""


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
    """The leading components, in which related items agree.

    Coordinate i of a related pair has correlation s_i (slightly less than the unregularized one,
    because of the ridge). With one label per item, at most classes - 1 of the s_i differ from zero.
    """

    moments: Covariances
    lower_x: Matrix  # L_x, (dx, dx)
    lower_y: Matrix  # L_y, (dy, dy)
    u: Matrix  # (dx, k)
    s: Matrix  # (k,), decreasing
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
    def whitened_cross(self) -> Matrix:  # T, (dx, dy)
        return _whitened_cross(self.moments.xy, self.lower_x, self.lower_y)

    def rank(self, threshold: float) -> int:
        """Count the components above `threshold` times the strongest; at least one."""
        return max(1, int((self.s > threshold * self.s[0]).sum()))

    def cut(self, rank: int) -> Canonical:
        return replace(self, u=self.u[:, :rank], s=self.s[:rank], v=self.v[:, :rank])


@phase("canonical analysis")
def canonical_analysis(
    images: Features,
    texts: Features,
    relation: RelationProduct,
    ridge: float,
    count: int,
    *,
    centered: bool = False,
    allow_fewer: bool = False,
) -> Canonical:
    """Return `count` components of the regularized canonical analysis of the related pairs.

    Features that are `centered` already are used as they are. With `allow_fewer`, components that
    carry nothing of the relation may be missing, which is faster for few label sets.
    Deterministic: the entry of largest magnitude of each image axis is positive. Time
    O(nx dx² + ny dy² + nx dx dy); memory on top of the inputs O(dx² + dy² + nx · 256).
    """
    images, texts = require_vectors(images, "images"), require_vectors(texts, "texts")
    moments = covariances(images, texts, relation, centered=centered)
    lower_x, lower_y = (lower_factor(c, ridge) for c in (moments.xx, moments.yy))
    f, g = moments.cross
    if g is not None and (allow_fewer or count <= g.shape[1]) and g.shape[1] <= min(len(f), len(g)):
        u, s, v = _product_svd(solve_triangular(lower_x, f), solve_triangular(lower_y, g), count)
    else:
        u, s, v = leading_singular_vectors(_whitened_cross(moments.xy, lower_x, lower_y), count)
    axes = solve_triangular(lower_x, u, transposed=True)
    signs = np.where(axes[np.abs(axes).argmax(axis=0), np.arange(len(s))] < 0, -1.0, 1.0)
    return Canonical(moments, lower_x, lower_y, u * signs, s, v * signs)


def covariances(
    images: Features,
    texts: Features,
    relation: RelationProduct,
    *,
    centered: bool = False,
) -> Covariances:
    """Return the moments of the module docstring in float64, without forming S."""
    image_counts = relation.times(np.ones((relation.shape[1], 1)))  # r, (nx, 1)
    text_counts = relation.transposed_times(np.ones((relation.shape[0], 1)))  # c, (ny, 1)
    pairs = float(image_counts.sum())
    if pairs == 0:
        raise DataError("No auxiliary image and text are related. Pass related pairs or labels.")
    mean_x = np.zeros(images.shape[1]) if centered else weighted_mean(images, image_counts)
    mean_y = np.zeros(texts.shape[1]) if centered else weighted_mean(texts, text_counts)
    factors = relation.factors()
    cross: tuple[Matrix, Matrix | None]
    if factors is not None:  # labels: one column per label set instead of one per feature
        a, b = factors
        cross = _cross_moment(images, mean_x, a) / pairs, _cross_moment(texts, mean_y, b)
    else:
        total = np.zeros((images.shape[1], texts.shape[1]))
        for start in range(0, texts.shape[1], _CHUNK_COLUMNS):
            columns = slice(start, start + _CHUNK_COLUMNS)
            related = relation.times(texts[:, columns] - mean_y[columns])  # S (Y - m_y)
            for rows, x in chunks(images, mean_x):
                total[:, columns] += x.T @ related[rows]
        cross = total / pairs, None
    return Covariances(
        mean_x,
        mean_y,
        _second_moment(images, mean_x, image_counts) / pairs,
        _second_moment(texts, mean_y, text_counts) / pairs,
        cross,
    )


def lower_factor(covariance: Matrix, ridge: float) -> Matrix:
    """Return the lower triangular L with L L' = C + ridge · λmax(C) · I.

    The ridge is relative to the largest eigenvalue, so it does not depend on the feature scale. It
    makes more features than items possible.
    """
    largest = _largest_eigenvalue(covariance)
    if not largest > 0:
        raise DataError("All related auxiliary items have the same features. Use other features.")
    regularized = covariance.copy()
    regularized.flat[:: len(regularized) + 1] += ridge * largest
    try:
        # The transpose of a symmetric matrix is equal to it and in the order LAPACK needs.
        lower = scipy.linalg.cholesky(
            regularized.T, lower=True, overwrite_a=True, check_finite=False
        )
    except scipy.linalg.LinAlgError:
        lower = np.zeros((1, 1))
    if np.diag(lower).min() ** 2 <= 1e-13 * largest:
        raise DataError(f"The covariance is singular. Use a ridge above {ridge}, such as 0.01.")
    return np.asfortranarray(lower)


def solve_triangular(lower: Matrix, right: Matrix, *, transposed: bool = False) -> Matrix:
    """Return L^-1 B, or L^-T B, (d, k)."""
    solve = scipy.linalg.get_blas_funcs("trsm", (lower,))
    return np.asarray(solve(1.0, lower, right, lower=1, trans_a=int(transposed)))


def leading_singular_vectors(matrix: Matrix, count: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return U (d, k), s (k,), V (e, k) of the `count` largest singular values, or of all.

    Computes only the needed eigenvectors of the smaller Gram matrix; QR then makes the other side
    orthonormal, including columns whose singular value is zero.
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


def _whitened_cross(cross: Matrix, lower_x: Matrix, lower_y: Matrix) -> Matrix:
    """Return T = L_x^-1 C_xy L_y^-T, (dx, dy)."""
    solve = scipy.linalg.get_blas_funcs("trsm", (lower_y,))
    half = solve_triangular(lower_x, cross)
    whitened = solve(1.0, lower_y, half, side=1, lower=1, trans_a=1, overwrite_b=1)
    return np.asarray(whitened, np.float64)


def _product_svd(left: Matrix, right: Matrix, count: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return U, s, V of the `count` largest singular values of left @ right', or of all."""
    (q_x, r_x), (q_y, r_y) = np.linalg.qr(left), np.linalg.qr(right)
    u, s, vt = np.linalg.svd(r_x @ r_y.T)
    return q_x @ u[:, :count], s[:count], q_y @ vt[:count].T


def _inverse(lower: Matrix) -> Matrix:
    """Return K = L^-T."""
    inverse, _ = scipy.linalg.lapack.dtrtri(lower.astype(np.float64), lower=1)
    return np.ascontiguousarray(np.tril(inverse).T)


def weighted_mean(features: Features, weights: Matrix) -> Matrix:
    """Return the mean over related pairs, in which an item counts once per pair."""
    total = np.zeros(features.shape[1])
    for rows, part in chunks(features):
        total += weights[rows, 0] @ part
    return np.asarray(total / weights.sum())


def _cross_moment(features: Features, mean: Matrix, factor: Matrix) -> Matrix:
    """Return (X - m)' A, (d, k)."""
    total = np.zeros((features.shape[1], factor.shape[1]))
    for rows, part in chunks(features, mean):
        total += part.T @ factor[rows]
    return total


def _second_moment(features: Features, mean: Matrix, weights: Matrix) -> Matrix:
    total = np.zeros((features.shape[1], features.shape[1]))
    for rows, part in chunks(features, mean):
        weighted = part * np.sqrt(weights[rows])
        total += weighted.T @ weighted  # BLAS does half the work for a matrix with itself
    return total


def _largest_eigenvalue(symmetric: Matrix) -> float:
    if len(symmetric) < 32:
        return float(np.linalg.eigvalsh(symmetric)[-1])
    start = np.full(len(symmetric), len(symmetric) ** -0.5)  # fixed, to be reproducible
    start += symmetric.sum(axis=0) / max(float(np.abs(symmetric).sum()), 1e-300)
    eigenvalues = scipy.sparse.linalg.eigsh(
        symmetric, k=1, which="LA", v0=start, return_eigenvectors=False
    )
    return float(eigenvalues[0])
