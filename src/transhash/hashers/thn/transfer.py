"""The transfer step: canonical directions of S that unlabelled target items help to find.

Each target item is matched softly with the auxiliary items of its own modality, by the cosine of
their canonical coordinates, and inherits their relations in proportion. With n, m auxiliary and
n̂, m̂ target images and texts, A the image axes found so far and τ the temperature,

    P = softmax over rows of cos(X̂ A, X A) / τ      (n̂, n), Q (m̂, m) for texts
    S⁺ = [I; P] S [I; Q]'                           (n + n̂, m + m̂)

and the directions are found anew from S⁺ over both domains, each centred by itself: auxiliary
items by their mean over related pairs, target items by mean(X̂) - κ mean(P X). κ = 0 gives both
domains one mean, which is wrong where their class shares differ; κ = 1 gives one mean to what is
matched, which trusts the matches. Only S is needed, no classes.

To change the matching rule, change `soft_match`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from transhash.data.feedback import FeedbackRelation
from transhash.data.relation import ExtendedRelation, GradedRelation, Relation
from transhash.data.training_set import Features, TrainingSet
from transhash.hashers.base import Array
from transhash.hashers.canonical import (
    Matrix,
    canonical_analysis,
    weighted_mean,
)
from transhash.hashers.components import (
    MAX_RANK,
    clip_correlations,
    is_pairwise,
    leave_one_out_coordinates,
    leave_one_out_correlations,
    select_components,
)
from transhash.hashers.thn.initialization import FEWEST, SHARE, residual_bit_axes
from transhash.hashers.thn.input_layer import AffineMap, InputLayer, TowerInputs


def soft_match(target: Features, auxiliary: Features, temperature: float) -> Matrix:
    """P: each target item's soft assignment to auxiliary items; rows sum to 1."""
    a = target / np.maximum(np.linalg.norm(target, axis=1, keepdims=True), 1e-9)
    b = auxiliary / np.maximum(np.linalg.norm(auxiliary, axis=1, keepdims=True), 1e-9)
    logits = (a / temperature) @ b.T
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits, out=logits)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(weights)


class ModalityData:
    """One modality in both domains: its features, their centres and its match P.

    Auxiliary items that are `voted` on stood in the target. By the other centre all of them would
    look alike, and every target item more like them than like anything else.
    """

    def __init__(
        self,
        auxiliary: Features,
        counts: Matrix,
        target: Features | None,
        voted: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        others = np.ones(len(auxiliary), np.bool_) if voted is None else ~voted
        self.centre = weighted_mean(auxiliary[others], counts[others])
        self.target = target
        self.target_mean = self.centre if target is None else target.mean(axis=0, dtype=np.float64)
        self.target_centre = self.target_mean
        # Of both domains, centred; the target's are written anew where their centre moves.
        self._both = np.empty(
            (len(auxiliary) + (0 if target is None else len(target)), auxiliary.shape[1])
        )
        self.auxiliary, self._moved = np.split(self._both, [len(auxiliary)])
        self.auxiliary[others] = auxiliary[others] - self.centre
        self.auxiliary[~others] = auxiliary[~others] - self.target_centre
        self._move()
        self.match: Matrix | None = None

    def match_target(
        self, project: Callable[[Matrix], Features], temperature: float, target_centering: float
    ) -> None:
        """P by projections of centred features, and the target's centre that goes with it."""
        if self.target is None:
            return
        self.match = soft_match(project(self._moved), project(self.auxiliary), temperature)
        self.target_centre = self.target_mean - target_centering * self._matched_mean()
        self._move()

    def both(self) -> Matrix:
        """Centred features, auxiliary items first."""
        return self.auxiliary if self.match is None else self._both

    def _move(self) -> None:
        for start in range(0, len(self._moved), 4096):  # no whole copy in float64
            rows = slice(start, start + 4096)
            if self.target is not None:
                self._moved[rows] = self.target[rows] - self.target_centre

    def _matched_mean(self) -> Matrix:
        """The mean of what target items are matched with, mean(P X)."""
        assert self.match is not None
        return np.asarray(self.match.mean(axis=0, dtype=np.float64) @ self.auxiliary)

    def mass(self, rows: npt.NDArray[np.int64], n: int) -> Array | None:
        """Weights of auxiliary items in MMD: half even, half by the target mass matched with them.

        With other class shares in the target, even weights would ask for the wrong distribution.
        """
        if self.match is None:
            return None
        weight = np.ones(n, dtype=np.float32)
        weight[rows] = 0.5 + 0.5 * self.match.mean(axis=0) * len(rows)
        return weight


@dataclass(frozen=True)
class TransferStep:
    """How the canonical layer is found."""

    bits: int
    ridge: float
    rank: int | None  # None: as many directions as hold up when left out, by their worth
    matching_rounds: int
    matching_temperature: float  # τ
    target_centering: float  # κ
    seed: int

    # Items of a kind that are analysed; auxiliary ones beyond are projected.
    limit: ClassVar[int] = 10_000

    def bridge(self, training: TrainingSet, use_target: bool) -> tuple[InputLayer, TowerInputs]:
        """The layer, and all items as it gives them: left-out coordinates of those analysed."""
        rows, columns, relation = self._sample(training)
        n, m = relation.shape
        target_images = self._target(training.target_images if use_target else None)
        target_texts = self._target(training.target_texts if use_target else None)
        of_image, of_text = (
            relation.times(np.ones((m, 1))),
            relation.transposed_times(np.ones((n, 1))),
        )
        # Of texts most are typed: they are of neither.
        voted = relation.voted_images if isinstance(relation, FeedbackRelation) else None
        images = ModalityData(training.images[rows], of_image, target_images, voted)
        texts = ModalityData(training.texts[columns], of_text, target_texts)
        x, y = images.auxiliary, texts.auxiliary
        count, fewer = self.rank or MAX_RANK, self.rank is None
        analyse = partial(canonical_analysis, ridge=self.ridge, centred=True)
        found = analyse(x, y, relation, count=count, fewer=fewer)
        first = select_components(found, x, y, relation, self.rank)
        found, weights, left_out = first.found, first.weights, first.left_out
        weigh = self.rank is None and is_pairwise(relation)
        unmatched = target_images is None and target_texts is None
        for left in reversed(range(0 if unmatched else self.matching_rounds)):
            along = found.image_axes * weights, found.text_axes * weights
            for side, axes in zip((images, texts), along, strict=True):
                side.match_target(
                    partial(_along, axes), self.matching_temperature, self.target_centering
                )
            extended = ExtendedRelation(relation, images.match, texts.match)
            x, y = images.both(), texts.both()
            found = analyse(x, y, extended, count=len(found.s))
            if weigh or not left:  # else nobody asks
                left_out = leave_one_out_coordinates(found, x, y, extended)
            if weigh:  # measured on auxiliary items: relations of the others are guesses
                own = left_out[0][:n], left_out[1][:m]
                weights = clip_correlations(leave_one_out_correlations(*own, relation))
        image_axes, text_axes = found.image_axes * weights, found.text_axes * weights
        finer: tuple[Matrix | None, Matrix | None] = (None, None)
        graded = relation.base if isinstance(relation, FeedbackRelation) else relation
        if isinstance(graded, GradedRelation) and self.bits >= FEWEST:
            bits = self.bits // SHARE
            finer = residual_bit_axes(
                images.auxiliary,
                texts.auxiliary,
                image_axes,
                text_axes,
                graded.pairs,
                self.ridge,
                bits,
                self.seed,
            )
        bridge = InputLayer(
            AffineMap(image_axes, images.centre, images.target_centre, finer=finer[0]),
            AffineMap(text_axes, texts.centre, texts.target_centre, finer=finer[1]),
        )
        out_x, out_y = (z * weights for z in left_out)
        z_x, target_x = _inputs(bridge.image, training.images, rows, out_x, target_images)
        z_y, target_y = _inputs(bridge.text, training.texts, columns, out_y, target_texts)
        mass = images.mass(rows, len(z_x)), texts.mass(columns, len(z_y))
        return bridge, TowerInputs(z_x, z_y, target_x, target_y, *mass)

    def _target(self, features: Features | None) -> Features | None:
        """Those that take part, drawn evenly: P is as wide as they are many."""
        if features is None or len(features) <= self.limit:
            return features
        rng = np.random.default_rng([self.seed, 0xCD])
        return np.asarray(features[np.sort(rng.permutation(len(features))[: self.limit])])

    def _sample(self, training: TrainingSet) -> tuple[Array, Array, Relation]:
        rng = np.random.default_rng([self.seed, 0xCA])
        rows, columns = (np.sort(rng.permutation(n)[: self.limit]) for n in training.relation.shape)
        if (len(rows), len(columns)) == training.relation.shape:
            return rows, columns, training.relation
        return rows, columns, training.relation.subset(rows, columns)


def _along(axes: Matrix, rows: Matrix) -> Matrix:
    return rows @ axes


def _inputs(
    view: AffineMap | None,
    features: Features,
    rows: Array,
    left_out: Matrix,
    target: Features | None,
) -> tuple[Array, Array | None]:
    """Auxiliary and target items; analysed ones as if each had been left out."""
    assert view is not None  # a canonical layer has both
    own = view.apply(features, target=False)
    own[rows] = left_out[: len(rows)]
    if target is None:
        return own, None
    if len(left_out) == len(rows):  # no round: the target took no part
        return own, view.apply(target)
    return own, left_out[len(rows) :].astype(np.float32)
