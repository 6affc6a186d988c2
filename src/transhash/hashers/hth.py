"""HTH, Heterogeneous Translated Hashing (Wei et al., KDD 2014): a reconstruction.

Only the abstracts were available: one Hamming space per modality, with hash functions and a
translator between the spaces learned jointly from auxiliary data. The losses are those of
Co-Regularized Hashing, from memory; the optimizer (Adam instead of CCCP and sub-gradients), the
pair weights and the early stop are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from transhash.data.relation import Relation, Rows
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.hashers.base import FitOptions, LinearHasher, Setting, require_vectors
from transhash.hashers.modules import Translate
from transhash.hashers.projection import Matrix
from transhash.hashers.settings import NonNegative, Positive, PositiveInt, ProportionBelowOne, Range
from transhash.hashers.training_loop import AdamW, check_finite_weights, diverged_error
from transhash.hashers.tuning import held_out_map


class Weights(NamedTuple):
    wx: Tensor  # (dx, b)
    wy: Tensor  # (dy, b)
    translator: Tensor  # C, (b, b)


class PairBatch(NamedTuple):
    """Scaled features of images and texts, their s_ij and the weights w_ij of their pairs."""

    x: Tensor
    y: Tensor
    s: Tensor
    w: Tensor


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
    pair_weight: NonNegative = 100.0  # beta; probably 1000 in the original, on another scale
    weight_decay: NonNegative = 1e-3  # gamma_x = gamma_y
    translator_decay: NonNegative = 1.0  # gamma_C; probably the original's
    shape: Annotated[float, Range(1, exclusive_low=True)] = 3.7  # a of tau; the original's
    reach: Positive = 2.0  # a·l of tau; ours: the distance between opposite codes
    learning_rate: Positive = 0.05  # of Adam
    steps: PositiveInt = 300  # at most; ours: 1,000 were worse
    batch_size: PositiveInt = 256  # images and texts per step, at most; ours
    held_out: ProportionBelowOne = 0.1  # fraction for early stopping; 0 runs all steps; ours
    patience: PositiveInt = 5  # checks without gain before stopping; ours
    check_every: PositiveInt = 20  # steps; ours

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        require_vectors(training.images, "images")
        require_vectors(training.texts, "texts")
        rng = np.random.default_rng(self.seed)
        learn, validation = self._split(training)
        mean_x, scale_x = scaling(learn.images)
        mean_y, scale_y = scaling(learn.texts)
        b, dx, dy = self.bits, learn.images.shape[1], learn.texts.shape[1]
        initial = (rng.standard_normal((dx, b)), rng.standard_normal((dy, b)), np.eye(b))
        # Rows of norm 1 then give projections of variance 1.
        weights = Weights(*(torch.from_numpy(part).requires_grad_() for part in initial))
        adam = AdamW([{"params": weights, "lr": self.learning_rate, "weight_decay": 0.0}])

        best_score, checks_without_gain = -1.0, 0
        for step in options.track(range(1, self.steps + 1), f"HTH {self.bits} bits"):
            rows, columns, s, w = draw_pairs(learn.relation, self.batch_size, rng)
            x = (learn.images[rows] - mean_x) / scale_x
            y = (learn.texts[columns] - mean_y) / scale_y
            adam.zero_grad()
            objective = self.objective(weights, PairBatch(*map(torch.from_numpy, (x, y, s, w))))
            if not torch.isfinite(objective.float()):  # projections are float32
                raise diverged_error(f"at step {step}", self.learning_rate)
            objective.backward()  # type: ignore[no-untyped-call]
            adam.step()
            if step % self.check_every == 0 or step == self.steps:
                check_finite_weights(weights, f"at step {step}", self.learning_rate)
            if validation is None or (step % self.check_every and step < self.steps):
                continue
            self._use(weights, mean_x, scale_x, mean_y, scale_y)
            score = sum(held_out_map(self, validation))
            checks_without_gain += 1
            if score > best_score:
                best, best_score, checks_without_gain = self.state(), score, 0
            if checks_without_gain == self.patience:
                break
        self._use(weights, mean_x, scale_x, mean_y, scale_y)
        if validation is not None:
            self.restore(best)

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        """Return C' sgn(Wx' x), the code in the image space, translated."""
        code = np.where(super().project_images(images) > 0, 1.0, -1.0)
        return np.asarray(code @ self.translator_, dtype=np.float32)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        image, text = super().modules()
        return nn.Sequential(image, Translate(self.translator_)), text

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        names = ("pair_weight", "weight_decay", "translator_decay", "learning_rate")
        return [
            dict(zip(names, values, strict=True))
            for values in (
                (100.0, 1e-3, 1.0, 0.02), (100.0, 1e-3, 1.0, 0.1), (100.0, 1e-3, 1e-3, 0.1),
                (30.0, 1e-3, 1.0, 0.05), (300.0, 1e-2, 1.0, 0.05), (100.0, 1e-2, 0.1, 0.05),
                (30.0, 1e-3, 0.1, 0.02), (10.0, 1e-3, 1e-3, 0.02), (1000.0, 1e-2, 1.0, 0.05),
            )
        ]  # fmt: skip

    def objective(self, weights: Weights, pairs: PairBatch) -> Tensor:
        """Return J on these pairs."""
        wx, wy, c = weights
        p, q = pairs.x @ wx, pairs.y @ wy  # (nx, b), (ny, b)
        t = p @ c
        squared = t.square().sum(dim=1)[:, None] + q.square().sum(dim=1) - 2 * (t @ q.T)
        d = (squared / self.bits).clamp_min(1e-12).sqrt()  # sqrt has no slope at 0
        tau = penalty(d, self.shape, self.reach)
        return (
            relu(1 - p.abs()).sum() / len(p)
            + relu(1 - q.abs()).sum() / len(q)
            + self.pair_weight * (pairs.w * (pairs.s * d**2 + (1 - pairs.s) * tau)).sum()
            + self.weight_decay / 2 * (wx.square().sum() + wy.square().sum())
            + self.translator_decay / 2 * c.square().sum()
        )

    def _split(self, training: TrainingSet) -> tuple[AuxiliarySet, AuxiliarySet | None]:
        """Return the training part and the validation part, if both have related pairs."""
        if self.held_out > 0:
            learn, validation = training.split(self.held_out, self.seed)
            if learn.relation.positives and validation.relation.positives:
                return learn, validation
        return training, None

    def _use(
        self, weights: Weights, mean_x: Matrix, scale_x: float, mean_y: Matrix, scale_y: float
    ) -> None:
        wx, wy, translator = (part.detach().numpy().copy() for part in weights)
        wx, wy = wx / scale_x, wy / scale_y
        self._set_weights(wx, mean_x @ wx, wy, mean_y @ wy)
        self.translator_: Matrix = translator


def penalty(d: Tensor, a: float, reach: float) -> Tensor:
    """Return tau(d), which falls smoothly from a l²/2 at 0 to 0 at a l = reach.

    -d²/2 + a l²/2 up to l, (d - a l)² / (2 (a - 1)) up to a l, 0 beyond.
    """
    near = reach / a  # l
    inside = (a * near**2 - d**2) / 2
    between = (d - reach) ** 2 / (2 * (a - 1))
    return torch.where(d <= near, inside, torch.where(d <= reach, between, 0.0))


def draw_pairs(
    relation: Relation, size: int, rng: np.random.Generator
) -> tuple[Rows, Rows, Matrix, Matrix]:
    """Draw images and texts of one step; return them with s_ij and w_ij.

    Similar pairs have a total weight of 1/2, and so have dissimilar ones. Images are drawn evenly.
    Half of them come with a similar text and half with a text known to be dissimilar: evenly drawn
    texts would give almost no known pair if S is sparse.
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
        columns = np.unique(draw_column_per_row(wanted, rng))
    s, known = relation.block(rows, columns)
    similar = s.astype(np.float64)
    dissimilar = 1 - similar if known is None else known - similar
    w = similar / max(similar.sum(), 1) / 2 + dissimilar / max(dissimilar.sum(), 1) / 2
    return rows, columns, similar, w


def draw_column_per_row(wanted: npt.NDArray[np.bool_], rng: np.random.Generator) -> Rows:
    """Draw a wanted column for each row, or any column for a row without a wanted one."""
    counts = wanted.sum(axis=1)
    columns = np.append(np.nonzero(wanted)[1], 0)  # row by row
    pick = np.cumsum(counts) - counts + rng.integers(np.maximum(counts, 1))
    spare = rng.integers(wanted.shape[1], size=len(wanted))
    return np.where(counts > 0, columns[pick], spare)


def scaling(features: Features) -> tuple[Matrix, float]:
    """Return the mean and the root mean square norm of the centered rows, in float64."""
    mean = features.mean(axis=0, dtype=np.float64)
    squares = sum(
        float(((features[i : i + 4096] - mean) ** 2).sum()) for i in range(0, len(features), 4096)
    )
    return mean, float(np.sqrt(squares / len(features))) or 1.0
