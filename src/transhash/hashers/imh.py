"""IMH, Inter-Media Hashing (Song et al., SIGMOD 2013)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg

from transhash.data.relation import Relation
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import FitOptions, LinearHasher, Setting, require_vectors
from transhash.hashers.projection import Matrix
from transhash.hashers.settings import NonNegative, Positive, PositiveInt
from transhash.progress import phase


@dataclass
class IMH(LinearHasher):
    """Codes smooth over each view's neighbor graph, equal for related items, linear in features.

        min  sum over both views of (|Z W - F|² + beta |W|² + lambda tr(F' L F))
             + U sum_ij R_ij |F1_i - F2_j|²      s.t.  F1' F1 = I

    F1 (nx, b) and F2 (ny, b) are relaxed codes, L the Laplacian of the k-nearest-neighbor graph,
    R = D_r^(-1/2) S D_c^(-1/2): for paired data R = I as published, and for an unpaired relation
    (ours) U keeps its meaning for any number of related items. Bits are thresholded at the median
    of the *training* projections; public code uses the median of the items being encoded.

    Time O(n³), memory about seven n x n matrices of doubles: 0.2 GB at 2,000 items, 1.4 GB at the
    limit of 5,000. A shorter code is a prefix of a longer one before thresholding.
    """

    name: ClassVar[str] = "IMH"
    max_items: ClassVar[int] = 5000  # images or texts; more would take hours

    # beta / n, for features of unit variance. Ours: public code has an absolute 1 or 1e-3; 0.5 to
    # 1.5 were best on held-out auxiliary items of the COCO benchmark.
    ridge: Positive = 1.0
    smoothness: NonNegative = 0.1  # lambda; ours, public code has 1 and 1e-3
    n_neighbors: PositiveInt = 10  # k; public code has 1 and 10
    agreement: Positive = 1e4  # U; public code has 1e4, and 1e10, which loses digits here

    @phase("neighbor graphs (IMH)")
    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        images = require_vectors(training.images, "images")
        texts = require_vectors(training.texts, "texts")
        self._check_size(len(images), len(texts))
        zx, mean_x, scale_x = unit_variance(images)
        zy, mean_y, scale_y = unit_variance(texts)
        regress_x = regression(zx, self.ridge * len(zx))
        regress_y = regression(zy, self.ridge * len(zy))
        laplacian_x = neighbor_laplacian(zx, self.n_neighbors)
        laplacian_y = neighbor_laplacian(zy, self.n_neighbors)
        system_x = np.eye(len(zx)) - zx @ regress_x + self.smoothness * laplacian_x
        system_y = np.eye(len(zy)) - zy @ regress_y + self.smoothness * laplacian_y
        relation = normalize_relation(training.relation)
        reduced, text_map = eliminate_texts(system_x, system_y, relation, self.agreement)
        # Public code skips the first eigenvector. Here features are centered, so the constant
        # vector is not trivial, and skipping the nearly constant one lowered held-out MAP.
        _, f1 = scipy.linalg.eigh(reduced, subset_by_index=[0, self.bits - 1])
        f1 *= np.where(f1[np.abs(f1).argmax(axis=0), np.arange(self.bits)] < 0, -1.0, 1.0)

        weights_x, weights_y = regress_x @ f1, regress_y @ (text_map @ f1)
        for z, weights in ((zx, weights_x), (zy, weights_y)):
            spread = (z @ weights).std(axis=0)
            # An exactly constant eigenvector leaves rounding noise, which would give random bits.
            weights[:, spread < 1e-9 * spread.max()] = 0.0
        self._set_weights(
            weights_x / scale_x,
            mean_x @ (weights_x / scale_x) + np.median(zx @ weights_x, axis=0),
            weights_y / scale_y,
            mean_y @ (weights_y / scale_y) + np.median(zy @ weights_y, axis=0),
        )

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [
            {"ridge": ridge, "smoothness": smoothness}
            for ridge, smoothness in (
                (0.3, 0.1), (3.0, 0.1), (1.0, 0.01), (0.05, 0.1), (1.0, 1.0),
                (0.3, 0.01), (0.01, 0.1), (0.3, 1.0), (0.05, 0.01), (0.001, 0.1),
            )
        ]  # fmt: skip

    def _check_size(self, nx: int, ny: int) -> None:
        if max(nx, ny) > self.max_items:
            raise DataError(
                f"IMH trains on at most {self.max_items:,} images and texts each, got {nx:,} "
                f"images and {ny:,} texts. Train on a sample or use QCH."
            )
        if nx < self.bits:
            raise DataError(
                f"IMH needs at least as many auxiliary images as bits: {nx} images, "
                f"{self.bits} bits. Use fewer bits or more images."
            )


def unit_variance(features: Features) -> tuple[Matrix, Matrix, float]:
    """Return centered features divided by one number, so that their mean variance is 1.

    One number per view and not per feature: dividing each feature by its own deviation would lift
    the last, noisy components of a PCA to the level of the first.
    """
    z = features.astype(np.float64)
    mean = z.mean(axis=0)
    z -= mean
    scale = float(np.sqrt((z**2).mean())) or 1.0
    return z / scale, mean, scale


def regression(z: Matrix, ridge: float) -> Matrix:
    """Return P = (Z'Z + beta I)^-1 Z', (d, n): W = P F is the ridge regression of F on Z."""
    if z.shape[1] <= len(z):
        gram = z.T @ z + ridge * np.eye(z.shape[1])
        return np.asarray(scipy.linalg.solve(gram, z.T, assume_a="pos"))
    gram = z @ z.T + ridge * np.eye(len(z))  # the same matrix, solved on the shorter side
    return np.asarray(scipy.linalg.solve(gram, z, assume_a="pos").T)


def neighbor_laplacian(z: Matrix, k: int) -> Matrix:
    """Return D - A, where A_ij = 1 if i is one of the k nearest neighbors of j, or j of i."""
    squares = (z**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * (z @ z.T)
    np.fill_diagonal(distances, np.inf)
    k = min(k, len(z) - 1)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :k]  # ties: the earlier item
    graph = np.zeros_like(distances)
    np.put_along_axis(graph, nearest, 1.0, axis=1)
    graph = np.maximum(graph, graph.T)
    return np.asarray(np.diag(graph.sum(axis=1)) - graph)


def normalize_relation(relation: Relation) -> Matrix:
    """Return R = D_r^(-1/2) S D_c^(-1/2), dense; empty rows and columns stay zero."""
    nx, ny = relation.shape
    s, _ = relation.block(np.arange(nx), np.arange(ny))
    r = s.astype(np.float64)
    rows = np.maximum(r.sum(axis=1, keepdims=True), 1.0)
    columns = np.maximum(r.sum(axis=0, keepdims=True), 1.0)
    r /= np.sqrt(rows)
    r /= np.sqrt(columns)
    return r


def eliminate_texts(
    system_x: Matrix, system_y: Matrix, relation: Matrix, strength: float
) -> tuple[Matrix, Matrix]:
    """Return M and E: the best F2 is E F1, and with it the objective is tr(F1' M F1).

    E = (A_2 + lambda L_2 + U diag(R'1))^-1 U R',  M = A_1 + lambda L_1 + U diag(R1) - U R E,
    where system_v = A_v + lambda L_v.
    """
    texts = system_y + np.diag(strength * relation.sum(axis=0))
    text_map = scipy.linalg.solve(texts, strength * relation.T, assume_a="pos")  # E, (ny, nx)
    images = system_x + np.diag(strength * relation.sum(axis=1))
    reduced = images - strength * (relation @ text_map)
    return (reduced + reduced.T) / 2, text_map
