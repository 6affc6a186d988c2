"""IMH, Inter-Media Hashing (Song et al., SIGMOD 2013)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import scipy.linalg

from transhash.data.relation import Relation
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Setting
from transhash.hashers.canonical import Matrix, require_vectors
from transhash.hashers.linear import LinearHasher
from transhash.hashers.settings import NonNegative, Positive, PositiveInt
from transhash.progress import Track, no_progress


@dataclass
class IMH(LinearHasher):
    """Codes smooth over each view's neighbour graph, equal for related items, linear in features.

        min  sum over both views of (|Z W - F|² + beta |W|² + lambda tr(F' L F))
             + U sum_ij R_ij |F1_i - F2_j|²      s.t.  F1' F1 = I

    F1 (nx, b) and F2 (ny, b) are relaxed codes, L the Laplacian of the k-nearest-neighbour graph,
    R = D_r^(-1/2) S D_c^(-1/2): for paired data R = I as published, and for an unpaired relation
    (ours) U keeps its meaning however many items are related to one. Bits are cut at the median
    of the *training* projections; public code takes the median of whatever is being encoded.

    Time O(n³), memory about seven n x n matrices of doubles: 0.2 GB at 2,000 items, 1.4 GB at the
    limit of 5,000. A shorter code is a prefix of a longer one before the cut.
    """

    name: ClassVar[str] = "IMH"
    max_items: ClassVar[int] = 5000  # images or texts; O(n³) beyond it takes hours

    ridge: Positive = (
        1.0  # beta / n, for features of unit variance; ours: public code has an absolute
    )
    # 1 or 1e-3. 0.5 to 1.5 were best on held-out auxiliary items of the COCO benchmark.
    smoothness: NonNegative = 0.1  # lambda; ours, public code has 1 and 1e-3
    n_neighbors: PositiveInt = 10  # k; public code has 1 and 10
    agreement: Positive = 1e4  # U; public code has 1e4 and 1e10, which loses digits here

    def fit(
        self, training: TrainingSet, *, folder: Path | None = None, track: Track = no_progress
    ) -> Self:
        images, texts = (
            require_vectors(training.images, "images"),
            require_vectors(training.texts, "texts"),
        )
        self._check_size(len(images), len(texts))
        zx, mean_x, scale_x = unit_variance(images)
        zy, mean_y, scale_y = unit_variance(texts)
        regress_x = regression(zx, self.ridge * len(zx))
        regress_y = regression(zy, self.ridge * len(zy))
        system_x = np.eye(len(zx)) - zx @ regress_x + self.smoothness * self._laplacian(zx)
        system_y = np.eye(len(zy)) - zy @ regress_y + self.smoothness * self._laplacian(zy)
        agree = normalised(training.relation)
        reduced, follow = eliminate_texts(system_x, system_y, agree, self.agreement)
        # No eigenvector is skipped, as public code does: the features are centred, so the constant
        # vector is not trivial, and leaving out the nearly constant one lowered held-out MAP.
        _, f1 = scipy.linalg.eigh(reduced, subset_by_index=[0, self.bits - 1])
        f1 *= np.where(f1[np.abs(f1).argmax(axis=0), np.arange(self.bits)] < 0, -1.0, 1.0)

        weights_x, weights_y = regress_x @ f1, regress_y @ (follow @ f1)
        for z, weights in ((zx, weights_x), (zy, weights_y)):
            spread = (z @ weights).std(axis=0)
            # An exactly constant eigenvector leaves rounding noise, which would make random bits.
            weights[:, spread < 1e-9 * spread.max()] = 0.0
        self._learn(
            weights_x / scale_x,
            mean_x @ (weights_x / scale_x) + np.median(zx @ weights_x, axis=0),
            weights_y / scale_y,
            mean_y @ (weights_y / scale_y) + np.median(zy @ weights_y, axis=0),
        )
        return self

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [
            {"ridge": ridge, "smoothness": smoothness}
            for ridge, smoothness in (
                (0.3, 0.1),
                (3.0, 0.1),
                (1.0, 0.01),
                (0.05, 0.1),
                (1.0, 1.0),
                (0.3, 0.01),
                (0.01, 0.1),
                (0.3, 1.0),
                (0.05, 0.01),
                (0.001, 0.1),
            )
        ]

    def _laplacian(self, features: Matrix) -> Matrix:
        return neighbour_laplacian(features, self.n_neighbors)

    def _check_size(self, nx: int, ny: int) -> None:
        if max(nx, ny) > self.max_items:
            raise DataError(
                f"IMH takes time cubic and memory quadratic in the training items: {nx:,} images "
                f"and {ny:,} texts given, at most {self.max_items:,} of each allowed; train on a "
                "sample or use QCH"
            )
        if nx < self.bits:
            raise DataError(
                f"IMH needs at least as many auxiliary images as bits: {nx} images, "
                f"{self.bits} bits; ask for fewer bits or give more images"
            )


def unit_variance(features: Features) -> tuple[Matrix, Matrix, float]:
    """Centred features divided by one number, so that an entry has variance 1 on average.

    One number a view and not one a feature: dividing each feature by its own deviation would lift
    the last, noisy components of a PCA to the level of the first.
    """
    z = features.astype(np.float64)
    mean = z.mean(axis=0)
    z -= mean
    scale = float(np.sqrt((z**2).mean())) or 1.0
    return z / scale, mean, scale


def regression(z: Matrix, ridge: float) -> Matrix:
    """P = (Z'Z + beta I)^-1 Z', (d, n): W = P F is the ridge regression of F on Z."""
    if z.shape[1] <= len(z):
        gram = z.T @ z + ridge * np.eye(z.shape[1])
        return np.asarray(scipy.linalg.solve(gram, z.T, assume_a="pos"))
    gram = z @ z.T + ridge * np.eye(len(z))  # the same matrix, solved on the shorter side
    return np.asarray(scipy.linalg.solve(gram, z, assume_a="pos").T)


def neighbour_laplacian(z: Matrix, k: int) -> Matrix:
    """D - A for A_ij = 1 if i is among the k nearest of j or j among those of i, never itself."""
    squares = (z**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * (z @ z.T)
    np.fill_diagonal(distances, np.inf)
    k = min(k, len(z) - 1)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :k]  # ties: the earlier item
    graph = np.zeros_like(distances)
    np.put_along_axis(graph, nearest, 1.0, axis=1)
    graph = np.maximum(graph, graph.T)
    return np.asarray(np.diag(graph.sum(axis=1)) - graph)


def normalised(relation: Relation) -> Matrix:
    """R = D_r^(-1/2) S D_c^(-1/2), dense; rows and columns without a relation stay zero."""
    nx, ny = relation.shape
    s, _ = relation.block(np.arange(nx), np.arange(ny))
    r = s.astype(np.float64)
    rows = np.maximum(r.sum(axis=1, keepdims=True), 1.0)
    columns = np.maximum(r.sum(axis=0, keepdims=True), 1.0)
    r /= np.sqrt(rows)
    r /= np.sqrt(columns)
    return r


def eliminate_texts(
    system_x: Matrix, system_y: Matrix, agree: Matrix, strength: float
) -> tuple[Matrix, Matrix]:
    """M and E: the best F2 is E F1, and with it the objective is tr(F1' M F1).

    E = (A_2 + lambda L_2 + U diag(R'1))^-1 U R',  M = A_1 + lambda L_1 + U diag(R1) - U R E,
    where system_v = A_v + lambda L_v.
    """
    texts = system_y + np.diag(strength * agree.sum(axis=0))
    follow = scipy.linalg.solve(texts, strength * agree.T, assume_a="pos")  # E, (ny, nx)
    reduced = system_x + np.diag(strength * agree.sum(axis=1)) - strength * (agree @ follow)
    return (reduced + reduced.T) / 2, follow
