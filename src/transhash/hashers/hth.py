"""HTH, Heterogeneous Translated Hashing (Wei et al., KDD 2014): a reconstruction.

Only the abstracts could be read: one Hamming space per medium, hash functions and a translator
between the spaces learned together from auxiliary data. The losses are those of Co-Regularized
Hashing, as remembered; the optimiser (Adam instead of CCCP and sub-gradients), the pair weights
and the early stop are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import Relation, Rows
from transhash.data.training import Features, Related, TrainingSet
from transhash.hashers.base import Array, Setting
from transhash.hashers.canonical import Matrix, vectors
from transhash.hashers.linear import LinearHasher
from transhash.hashers.settings import FromOne, NotNegative, Positive, Range, ShareBelowOne
from transhash.hashers.tuning import map_both_ways
from transhash.progress import Track, silent


class Weights(NamedTuple):
    """What is learned, or its gradient."""

    wx: Matrix  # (dx, b)
    wy: Matrix  # (dy, b)
    translator: Matrix  # C, (b, b)


class Batch(NamedTuple):
    """Scaled features of some images and texts, their s_ij and the weights w_ij of their pairs."""

    x: Matrix
    y: Matrix
    s: Matrix
    w: Matrix


@dataclass
class HTH(LinearHasher):
    """An image code in its own Hamming space, translated into the space of the texts.

        J = mean_i sum_k [1 - |p_ik|]_+ + mean_j sum_k [1 - |q_jk|]_+
            + beta sum_ij w_ij (s_ij d_ij² + (1 - s_ij) tau(d_ij))
            + gamma/2 (|Wx|² + |Wy|²) + gamma_C/2 |C|²
        p = Wx' x,  q = Wy' y,  d_ij² = |C' p_i - q_j|² / b

    tau is the concave-then-convex penalty that pushes dissimilar pairs to a distance of `reach`.
    The code of an image is sgn(C' sgn(p)), that of a text sgn(q); both directions rank by it.
    """

    name: ClassVar[str] = "HTH"
    learned: ClassVar[tuple[str, ...]] = (*LinearHasher.learned, "translator")

    # beta, gamma and the rate are ours, the best on held-out auxiliary items of the COCO benchmark.
    pair_weight: NotNegative = 100.0  # beta; remembered of the original: 1000, on another scale
    weight_decay: NotNegative = 1e-3  # gamma_x = gamma_y
    translator_decay: NotNegative = 1.0  # gamma_C; as remembered of the original
    shape: Annotated[float, Range(1, above=True)] = 3.7  # a of tau; the original's
    reach: Positive = 2.0  # a·l of tau; ours: the distance between opposite codes
    learning_rate: Positive = 0.05  # of Adam
    steps: FromOne = 300  # at most; ours: 1,000 were worse
    batch: FromOne = 256  # images and texts a step; all of them where there are no more; ours
    held_out: ShareBelowOne = 0.1  # share that decides when to stop; 0 runs all steps; ours
    patience: FromOne = 5  # checks without gain before stopping; ours
    check_every: FromOne = 20  # steps; ours

    def fit(
        self, training: TrainingSet, *, folder: Path | None = None, track: Track = silent
    ) -> Self:
        vectors(training.images, "images"), vectors(training.texts, "texts")
        rng = np.random.default_rng(self.seed)
        learn, stop = self._split(training)
        mean_x, scale_x = scaling(learn.images)
        mean_y, scale_y = scaling(learn.texts)
        b, dx, dy = self.bits, learn.images.shape[1], learn.texts.shape[1]
        weights = Weights(
            rng.standard_normal((dx, b)), rng.standard_normal((dy, b)), np.eye(b)
        )  # rows of norm 1 then give projections of variance 1
        adam = Adam(weights, self.learning_rate)

        best, best_score, waited = weights, -1.0, 0
        for step in track(range(1, self.steps + 1), f"HTH {self.bits} bits"):
            rows, columns, s, w = draw(learn.relation, self.batch, rng)
            x = (learn.images[rows] - mean_x) / scale_x
            y = (learn.texts[columns] - mean_y) / scale_y
            _, gradient = self.objective(weights, Batch(x, y, s, w))
            weights = adam.step(weights, gradient)
            if stop is None or (step % self.check_every and step < self.steps):
                continue
            self._keep(weights, mean_x, scale_x, mean_y, scale_y)
            score = sum(
                map_both_ways(
                    Codes.from_projections(self.project_images(stop.images)),
                    Codes.from_projections(self.project_texts(stop.texts)),
                    stop.relation,
                )
            )
            waited += 1
            if score > best_score:
                best, best_score, waited = weights, score, 0
            if waited == self.patience:
                break
        self._keep(weights if stop is None else best, mean_x, scale_x, mean_y, scale_y)
        return self

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        """C' sgn(Wx' x): the image's own code, translated."""
        own = np.where(super().project_images(images) > 0, 1.0, -1.0)
        return np.asarray(own @ self.translator_, dtype=np.float32)

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        names = ("pair_weight", "weight_decay", "translator_decay", "learning_rate")
        return [
            dict(zip(names, values, strict=True))
            for values in (
                (100.0, 1e-3, 1.0, 0.02),
                (100.0, 1e-3, 1.0, 0.1),
                (100.0, 1e-3, 1e-3, 0.1),
                (30.0, 1e-3, 1.0, 0.05),
                (300.0, 1e-2, 1.0, 0.05),
                (100.0, 1e-2, 0.1, 0.05),
                (30.0, 1e-3, 0.1, 0.02),
                (10.0, 1e-3, 1e-3, 0.02),
                (1000.0, 1e-2, 1.0, 0.05),
            )
        ]

    def objective(self, weights: Weights, batch: Batch) -> tuple[float, Weights]:
        """J on the batch and its exact gradient."""
        wx, wy, c = weights
        p, q = batch.x @ wx, batch.y @ wy  # (nx, b), (ny, b)
        t = p @ c
        squared = (t**2).sum(axis=1)[:, None] + (q**2).sum(axis=1) - 2 * (t @ q.T)
        d = np.sqrt(np.maximum(squared / self.bits, 1e-12))  # tau'(d) / 2d is finite at 0
        tau, half_slope = penalty(d, self.shape, self.reach)
        value = (
            np.maximum(1 - np.abs(p), 0).sum() / len(p)
            + np.maximum(1 - np.abs(q), 0).sum() / len(q)
            + self.pair_weight * (batch.w * (batch.s * d**2 + (1 - batch.s) * tau)).sum()
            + self.weight_decay / 2 * ((wx**2).sum() + (wy**2).sum())
            + self.translator_decay / 2 * (c**2).sum()
        )
        # dJ/d(d²) of each pair, then d² = |t - q|² / b
        g = self.pair_weight * batch.w * (batch.s + (1 - batch.s) * half_slope)
        of_t = 2 / self.bits * (g.sum(axis=1)[:, None] * t - g @ q)
        of_q = 2 / self.bits * (g.sum(axis=0)[:, None] * q - g.T @ t)
        of_p = of_t @ c.T - _margin_side(p) / len(p)
        of_q -= _margin_side(q) / len(q)
        return float(value), Weights(
            batch.x.T @ of_p + self.weight_decay * wx,
            batch.y.T @ of_q + self.weight_decay * wy,
            p.T @ of_t + self.translator_decay * c,
        )

    def _split(self, training: TrainingSet) -> tuple[Related, Related | None]:
        """What to learn from and what decides the stop, if both can hold related pairs."""
        if self.held_out > 0:
            learn, stop = training.split(self.held_out, self.seed)
            if learn.relation.positives and stop.relation.positives:
                return learn, stop
        return training, None

    def _keep(
        self, weights: Weights, mean_x: Matrix, scale_x: float, mean_y: Matrix, scale_y: float
    ) -> None:
        wx, wy = weights.wx / scale_x, weights.wy / scale_y
        self._learn(wx, mean_x @ wx, wy, mean_y @ wy)
        self.translator_: Matrix = weights.translator


class Adam:
    """Kingma & Ba's step with the usual constants, on all weights at once."""

    def __init__(self, weights: Weights, rate: float) -> None:
        self.rate = rate
        self.steps = 0
        self.first = [np.zeros_like(weight) for weight in weights]
        self.second = [np.zeros_like(weight) for weight in weights]

    def step(self, weights: Weights, gradient: Weights) -> Weights:
        self.steps += 1
        rate = self.rate * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        moved = []
        for weight, slope, first, second in zip(weights, gradient, self.first, self.second):
            first += 0.1 * (slope - first)
            second += 0.001 * (slope**2 - second)
            moved.append(weight - rate * first / (np.sqrt(second) + 1e-8))
        return Weights(*moved)


def penalty(d: Matrix, a: float, reach: float) -> tuple[Matrix, Matrix]:
    """tau(d) and tau'(d) / 2d: falls from a l²/2 at 0 to 0 at a l = reach, smoothly.

    -d²/2 + a l²/2 up to l, (d - a l)² / (2 (a - 1)) up to a l, 0 beyond.
    """
    near = reach / a  # l
    tau = np.where(d <= near, (a * near**2 - d**2) / 2, (d - reach) ** 2 / (2 * (a - 1)))
    half_slope = np.where(d <= near, -0.5, (d - reach) / (2 * (a - 1) * d))
    beyond = d > reach
    return np.where(beyond, 0.0, tau), np.where(beyond, 0.0, half_slope)


def draw(
    relation: Relation, size: int, rng: np.random.Generator
) -> tuple[Rows, Rows, Matrix, Matrix]:
    """Images, texts, s_ij and w_ij of one step; similar pairs weigh 1/2 in sum, the others 1/2.

    Images are drawn evenly. Half of them bring along a text that is similar and half one known
    to be dissimilar: an even draw of texts would hold hardly any known pair where S is sparse.
    """
    nx, ny = relation.shape
    if max(nx, ny) <= size:
        rows, columns = np.arange(nx), np.arange(ny)
    else:
        rows = rng.permutation(nx)[:size]
        s, known = relation.block(rows, np.arange(ny))
        wanted = s > 0
        odd = slice(1, None, 2)
        wanted[odd] = ~wanted[odd] if known is None else (known[odd] > 0) & ~wanted[odd]
        columns = np.unique(one_of_each_row(wanted, rng))
    s, known = relation.block(rows, columns)
    similar = s.astype(np.float64)
    dissimilar = 1 - similar if known is None else known - similar
    w = similar / max(similar.sum(), 1) / 2 + dissimilar / max(dissimilar.sum(), 1) / 2
    return rows, columns, similar, w


def one_of_each_row(wanted: npt.NDArray[np.bool_], rng: np.random.Generator) -> Rows:
    """A random wanted column of each row; any column for a row that wants none."""
    counts = wanted.sum(axis=1)
    columns = np.append(np.nonzero(wanted)[1], 0)  # row by row
    pick = np.cumsum(counts) - counts + rng.integers(np.maximum(counts, 1))
    spare = rng.integers(wanted.shape[1], size=len(wanted))
    return np.where(counts > 0, columns[pick], spare)


def scaling(features: Features) -> tuple[Matrix, float]:
    """The mean and the root mean square norm of the centred rows, in float64."""
    mean = features.mean(axis=0, dtype=np.float64)
    squares = sum(
        float(((features[i : i + 4096] - mean) ** 2).sum()) for i in range(0, len(features), 4096)
    )
    return mean, float(np.sqrt(squares / len(features))) or 1.0


def _margin_side(z: Array) -> Matrix:
    """sgn(z) inside the margin |z| < 1, 0 outside: minus the slope of [1 - |z|]_+."""
    return np.where(np.abs(z) < 1, np.where(z > 0, 1.0, -1.0), 0.0)
