"""QCH, Quantized Correlation Hashing (Wu et al., IJCAI 2015): a reconstruction.

Neither code nor the paper's formulas could be found. Its abstract says: minimize the quantization
loss in both domains and maximize the correlation between the domains' codes, jointly, by
alternation. This implementation has exactly those ingredients; the details are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg

from transhash.data.training_set import Features, TrainingSet
from transhash.hashers.base import FitOptions, LinearHasher, Setting
from transhash.hashers.canonical import canonical_analysis
from transhash.hashers.components import MAX_RANK, select_components
from transhash.hashers.projection import Matrix, chunks
from transhash.hashers.settings import NonNegative, NonNegativeInt, Proportion


@dataclass
class QCH(LinearHasher):
    """Correlated subspaces, rotated so that their coordinates are close to -1 and +1.

    With whitened views Z = (X - m) K, orthonormal Ux (dx, r), Uy (dy, r), a tight frame R (r, b),
    R R' = (b/r) I or, if r > b, R'R = I, weights w of the components, and codes Bx, By:

        max  tr(Bx' Zx Ux diag(w) R) / nx + the same for texts + alpha (b/r) tr(Ux' T Uy)

    Whitened projections have fixed second moments, so with w = 1 this is, up to constants, minus
    the quantization loss plus alpha times the correlation. The frame R lets b bits share r < b
    components, because b components would put bits on noise, and r > b components share b bits. r
    and w follow the same rule as THN's components.
    """

    name: ClassVar[str] = "QCH"

    # alpha and the threshold are ours, chosen on held-out auxiliary items of the COCO benchmark. A
    # smaller alpha lets codes drift to components that quantize well and relate nothing.
    correlation_weight: NonNegative = 100.0  # alpha
    # r counts s_k > threshold · s_1, equally weighted; None: components that hold up in validation
    rank_threshold: Proportion | None = None
    ridge: NonNegative = 3e-2  # rho, relative to the largest variance
    iterations: NonNegativeInt = 50  # maximum; ours
    tolerance: NonNegative = 1e-7  # stop at a smaller relative gain; ours

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        images, texts, relation = training.images, training.texts, training.relation
        count = max(self.bits, MAX_RANK)
        analysis = canonical_analysis(images, texts, relation, self.ridge, count)
        rank = None if self.rank_threshold is None else analysis.rank(self.rank_threshold)
        weights = select_components(analysis, images, texts, relation, rank).weights
        r = len(weights)
        scale = np.sqrt(max(self.bits / r, 1.0))
        pull = self.correlation_weight * self.bits / r  # alpha (b/r)
        t = analysis.whitened_cross
        ux, uy = analysis.u[:, :r], analysis.v[:, :r]
        frame = scale * _random_orthogonal(max(self.bits, r), self.seed)[:r, : self.bits]

        self.objective_: list[float] = []
        for _ in options.track(range(self.iterations), f"QCH {self.bits} bits"):
            # Each update is the exact maximizer of its block, so the objective cannot decrease.
            gx = _code_moment(images, analysis.mean_x, analysis.whiten_x, (ux * weights) @ frame)
            gy = _code_moment(texts, analysis.mean_y, analysis.whiten_y, (uy * weights) @ frame)
            frame = scale * _polar((ux * weights).T @ gx + (uy * weights).T @ gy)
            ux = _polar(gx @ frame.T * weights + pull * t @ uy)
            uy = _polar(gy @ frame.T * weights + pull * t.T @ ux)
            correlation = float((ux * (t @ uy)).sum())
            agreement = (gx * ((ux * weights) @ frame)).sum() + (
                gy * ((uy * weights) @ frame)
            ).sum()
            self.objective_.append(float(agreement) + pull * correlation)
            if len(self.objective_) > 1:
                gain = self.objective_[-1] - self.objective_[-2]
                if gain < self.tolerance * abs(self.objective_[-1]):
                    break

        weights_x = analysis.whiten_x @ (ux * weights) @ frame
        weights_y = analysis.whiten_y @ (uy * weights) @ frame
        self._set_weights(
            weights_x, analysis.mean_x @ weights_x, weights_y, analysis.mean_y @ weights_y
        )

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [
            {"correlation_weight": alpha, "ridge": ridge}
            for alpha, ridge in (
                (100.0, 1e-1), (100.0, 1e-2), (10.0, 3e-2), (10.0, 1e-1), (1.0, 3e-2),
                (100.0, 3e-1), (1.0, 1e-1), (10.0, 1e-2), (100.0, 3e-3), (10.0, 3e-1), (1.0, 1e-2),
            )
        ]  # fmt: skip


def _code_moment(features: Features, mean: Matrix, whiten: Matrix, axes: Matrix) -> Matrix:
    """Return Z' B / n for B = sgn(Z axes) and Z = (X - m) K, in chunks of rows."""
    weights = whiten @ axes
    total = np.zeros_like(weights)
    for _, part in chunks(features, mean):
        total += part.T @ np.where(part @ weights > 0, 1.0, -1.0)
    return np.asarray(whiten.T @ total / len(features))


def _polar(matrix: Matrix) -> Matrix:
    """Return PQ' for M = P diag(s) Q', the orthonormal matrix nearest to M."""
    p, _, qt = scipy.linalg.svd(matrix, full_matrices=False)
    return np.asarray(p @ qt)


def _random_orthogonal(size: int, seed: int) -> Matrix:
    """Return a random orthogonal matrix, the same on every machine up to rounding."""
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return np.asarray(q * np.sign(np.diag(r)))  # QR alone leaves the signs to the library
