"""What the linear methods share: the relation's covariances, canonical directions, sgn(Wx - t).

The relation S is rectangular and the training items are unpaired. Every (i, j) with s_ij = 1
counts as one training pair, but the pairs are never written out: with r = S 1, c = S' 1 and
n = sum of s_ij,

    m_x = r'X / n    C_xx = (X - m_x)' diag(r) (X - m_x) / n    C_xy = (X - m_x)' S (Y - m_y) / n

and the same for texts with c. With S = I these are the classical paired covariances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg

from transhash.data.relation import Relation
from transhash.data.training import Features
from transhash.errors import DataError
from transhash.hashers.base import Array, Hasher

Matrix = npt.NDArray[np.float64]

CHUNK = 4096  # rows turned into float64 at a time: 40 MB at 1,280 features


@dataclass(frozen=True)
class Covariances:
    """First and second moments of the related pairs (i, j)."""

    mean_x: Matrix  # (dx,)
    mean_y: Matrix  # (dy,)
    xx: Matrix  # (dx, dx)
    yy: Matrix  # (dy, dy)
    xy: Matrix  # (dx, dy)


@dataclass(frozen=True)
class Canonical:
    """Whitening of both views and the SVD of what relates them, T = Kx C_xy Ky = U diag(s) V'.

    `(X - mean_x) @ image_axes(k)` and `(Y - mean_y) @ text_axes(k)` are the k leading canonical
    coordinates. Coordinate i of a related pair has correlation s_i (a little less than the
    unregularised one, because of the ridge). With one label an item, at most classes - 1 of the
    s_i differ from zero; later coordinates carry nothing of the relation.
    """

    mean_x: Matrix  # (dx,)
    mean_y: Matrix  # (dy,)
    whiten_x: Matrix  # Kx, (dx, dx)
    whiten_y: Matrix  # Ky, (dy, dy)
    u: Matrix  # (dx, min(dx, dy))
    s: Matrix  # (min(dx, dy),), falling
    v: Matrix  # (dy, min(dx, dy))

    def image_axes(self, count: int) -> Matrix:
        return self.whiten_x @ self.u[:, :count]

    def text_axes(self, count: int) -> Matrix:
        return self.whiten_y @ self.v[:, :count]

    def rank(self, threshold: float) -> int:
        """How many directions are stronger than `threshold` times the strongest; at least one."""
        return max(1, int((self.s > threshold * self.s[0]).sum()))


def covariances(images: Features, texts: Features, relation: Relation) -> Covariances:
    """The five moments of the module docstring, in float64, S never formed.

    Time O(nx dx² + ny dy² + nx dx dy); memory beside the inputs O(dx² + dy² + nx · 256).
    """
    nx, ny = relation.shape
    of_image = relation.times(np.ones((ny, 1)))  # r, (nx, 1)
    of_text = relation.transposed_times(np.ones((nx, 1)))  # c, (ny, 1)
    pairs = float(of_image.sum())
    if pairs == 0:
        raise DataError("no auxiliary image and text are related; nothing can be learned")
    mean_x = _weighted_mean(images, of_image)
    mean_y = _weighted_mean(texts, of_text)

    xx = np.zeros((images.shape[1], images.shape[1]))
    for rows, x in chunks(images):
        x -= mean_x
        xx += (x * of_image[rows]).T @ x
    yy = np.zeros((texts.shape[1], texts.shape[1]))
    for rows, y in chunks(texts):
        y -= mean_y
        yy += (y * of_text[rows]).T @ y
    xy = np.zeros((images.shape[1], texts.shape[1]))
    for start in range(0, texts.shape[1], 256):  # S (Y - m_y) a few columns at a time
        columns = slice(start, start + 256)
        related = relation.times(texts[:, columns] - mean_y[columns])  # (nx, 256)
        for rows, x in chunks(images):
            xy[:, columns] += (x - mean_x).T @ related[rows]
    return Covariances(mean_x, mean_y, xx / pairs, yy / pairs, xy / pairs)


def whitening(covariance: Matrix, ridge: float) -> Matrix:
    """K = (C + ridge · λmax(C) · I)^(-1/2), symmetric.

    The ridge is relative to the largest eigenvalue, so it means the same for features of any
    scale, and it is what makes more features than items possible.
    """
    values, vectors = np.linalg.eigh(covariance)
    largest = float(values[-1])
    if largest <= 0:
        raise DataError("all related auxiliary items have the same features; nothing to learn from")
    values = np.maximum(values, 0) + ridge * largest
    if values[0] <= 1e-13 * largest:
        raise DataError(f"the covariance is singular; a ridge above {ridge} is needed, say 0.01")
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def canonical(images: Features, texts: Features, relation: Relation, ridge: float) -> Canonical:
    """Regularised canonical correlation analysis of the related pairs.

    Deterministic: of each column of U the entry largest in size is positive.
    """
    images, texts = vectors(images, "images"), vectors(texts, "texts")
    moments = covariances(images, texts, relation)
    whiten_x, whiten_y = whitening(moments.xx, ridge), whitening(moments.yy, ridge)
    u, s, vt = scipy.linalg.svd(whiten_x @ moments.xy @ whiten_y, full_matrices=False)
    signs = np.where(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])] < 0, -1.0, 1.0)
    return Canonical(moments.mean_x, moments.mean_y, whiten_x, whiten_y, u * signs, s, vt.T * signs)


def chunks(features: Features) -> Iterator[tuple[slice, Matrix]]:
    """Fresh float64 copies of a few rows at a time; writing to them leaves the input alone."""
    for start in range(0, len(features), CHUNK):
        rows = slice(start, start + CHUNK)
        yield rows, features[rows].astype(np.float64)


def vectors(features: Features, what: str) -> Features:
    """`features` if it is a matrix of numbers; linear methods cannot use pixels."""
    if features.ndim != 2:
        raise DataError(
            f"a linear method needs {what} as feature vectors (n, d), got shape {features.shape}; "
            "extract features first"
        )
    return features


def _weighted_mean(features: Features, weights: Matrix) -> Matrix:
    total = np.zeros(features.shape[1])
    for rows, part in chunks(features):
        total += weights[rows, 0] @ part
    return np.asarray(total / weights.sum())


@dataclass
class LinearHasher(Hasher):
    """Codes sgn(x Wx - tx) and sgn(y Wy - ty); `learned` names the arrays that are saved."""

    learned: ClassVar[tuple[str, ...]] = ("weights_x", "offset_x", "weights_y", "offset_y")

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        self._check_fitted()
        return project(vectors(images, "images"), self.weights_x_, self.offset_x_, "images")

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        self._check_fitted()
        return project(vectors(texts, "texts"), self.weights_y_, self.offset_y_, "texts")

    def state(self) -> dict[str, Array]:
        self._check_fitted()
        return {name: getattr(self, f"{name}_") for name in self.learned}

    def restore(self, state: Mapping[str, Array]) -> Self:
        missing = sorted(set(self.learned) - set(state))
        if missing:
            raise DataError(f"this is not a saved {self.name}: it lacks {', '.join(missing)}")
        if state["weights_x"].shape[1] != self.bits:
            raise DataError(
                f"the saved {self.name} has {state['weights_x'].shape[1]} bits, not {self.bits}"
            )
        for name in self.learned:
            setattr(self, f"{name}_", np.asarray(state[name], dtype=np.float64))
        return self

    def _learn(
        self, weights_x: Matrix, offset_x: Matrix, weights_y: Matrix, offset_y: Matrix
    ) -> None:
        self.weights_x_: Matrix = weights_x  # (dx, bits)
        self.offset_x_: Matrix = offset_x  # (bits,)
        self.weights_y_: Matrix = weights_y
        self.offset_y_: Matrix = offset_y

    def _check_fitted(self) -> None:
        if not hasattr(self, "weights_x_"):
            raise self.unfitted()


def project(
    features: Features, weights: Matrix, offset: Matrix, what: str
) -> npt.NDArray[np.float32]:
    """x W - t, computed in float64."""
    if features.shape[1] != len(weights):
        raise DataError(
            f"{what} have {features.shape[1]} features each, but the method learned from "
            f"{len(weights)}; use the same features for both"
        )
    out = np.empty((len(features), weights.shape[1]), dtype=np.float32)
    for rows, part in chunks(features):
        out[rows] = part @ weights - offset
    if not np.isfinite(out).all():
        row = int(np.argmin(np.isfinite(out).all(axis=1)))
        raise DataError(f"row {row} of the {what} has a feature that is not a finite number")
    return out
