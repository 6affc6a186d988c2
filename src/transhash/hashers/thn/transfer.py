"""The transfer step: canonical components of S, computed with the help of unlabeled target items.

Each target item is softly matched with the auxiliary items of its modality, by the cosine of their
canonical coordinates, and takes over their relations in proportion. With n, m auxiliary and n̂, m̂
target images and texts, the current image axes A and the temperature τ,

    P = softmax over rows of cos(X̂ A, X A) / τ      (n̂, n), Q (m̂, m) for texts
    S⁺ = [I; P] S [I; Q]'                           (n + n̂, m + m̂)

and the components are recomputed from S⁺ over both domains, each with its own center: auxiliary
items by their mean over related pairs, target items by mean(X̂) - κ mean(P X). κ = 0 gives both
domains one mean, which is wrong if their class frequencies differ; κ = 1 gives matched items one
mean, which trusts the matches. Only S is needed, no classes.

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
from transhash.hashers.canonical import canonical_analysis, weighted_mean
from transhash.hashers.components import (
    MAX_RANK,
    clip_correlations,
    is_pairwise,
    leave_one_out_coordinates,
    leave_one_out_correlations,
    select_components,
)
from transhash.hashers.projection import AffineMap, Matrix
from transhash.hashers.thn.initialization import MIN_BITS, RESIDUAL_FRACTION, residual_bit_axes
from transhash.hashers.thn.input_layer import InputLayer, TowerInputs
from transhash.progress import tracked


def soft_match(target: Features, auxiliary: Features, temperature: float) -> Matrix:
    """Return P, the soft assignment of target items to auxiliary items; rows sum to 1."""
    a = target / np.maximum(np.linalg.norm(target, axis=1, keepdims=True), 1e-9)
    b = auxiliary / np.maximum(np.linalg.norm(auxiliary, axis=1, keepdims=True), 1e-9)
    logits = (a / temperature) @ b.T
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits, out=logits)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(weights)


def matched_weights(mean_match: Matrix) -> Matrix:
    """Return weights of auxiliary items in MMD: half even, half by their mean match.

    If class frequencies differ in the target, even weights align with the wrong distribution.
    """
    return np.asarray(0.5 + 0.5 * mean_match * len(mean_match))


class ModalityData:
    """One modality in both domains: centered features, their centers and the match P.

    Auxiliary items that were `voted` on come from the target set and use its center. With the
    auxiliary center they would all look alike, and most similar to every target item.
    """

    def __init__(
        self,
        auxiliary: Features,
        counts: Matrix,
        target: Features | None,
        voted: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        others = np.ones(len(auxiliary), np.bool_) if voted is None else ~voted
        self.center = weighted_mean(auxiliary[others], counts[others])
        self.target = target
        self.target_mean = self.center if target is None else target.mean(axis=0, dtype=np.float64)
        self.target_center = self.target_mean
        n, n_target = len(auxiliary), 0 if target is None else len(target)
        self._all = np.empty((n + n_target, auxiliary.shape[1]))
        self.auxiliary, self._centered_target = np.split(self._all, [n])
        self.auxiliary[others] = auxiliary[others] - self.center
        self.auxiliary[~others] = auxiliary[~others] - self.target_center
        self._center_target()
        self.match: Matrix | None = None

    def match_target(
        self, project: Callable[[Matrix], Features], temperature: float, target_centering: float
    ) -> None:
        """Update P from projections of centered features, and the target's center with it."""
        if self.target is None:
            return
        self.match = soft_match(
            project(self._centered_target), project(self.auxiliary), temperature
        )
        matched_mean = self.match.mean(axis=0, dtype=np.float64) @ self.auxiliary  # mean(P X)
        self.target_center = self.target_mean - target_centering * matched_mean
        self._center_target()

    def stacked(self) -> Matrix:
        """Return centered features, auxiliary items first; target items only once matched."""
        return self.auxiliary if self.match is None else self._all

    def _center_target(self) -> None:
        if self.target is not None:
            np.subtract(self.target, self.target_center, out=self._centered_target)

    def mmd_weights(self, rows: npt.NDArray[np.int64], n: int) -> Array | None:
        """Return the weights in MMD of n auxiliary items, of which `rows` were matched."""
        if self.match is None:
            return None
        weights = np.ones(n, dtype=np.float32)
        weights[rows] = matched_weights(self.match.mean(axis=0))
        return weights


@dataclass(frozen=True)
class TransferStep:
    """Builds the canonical input layer."""

    bits: int
    ridge: float
    rank: int | None  # None: as many components as hold up in validation
    matching_rounds: int
    matching_temperature: float  # τ
    target_centering: float  # κ
    seed: int

    # Items of a modality in the analysis; further auxiliary items are only projected.
    max_items: ClassVar[int] = 10_000

    def build(self, training: TrainingSet, use_target: bool) -> tuple[InputLayer, TowerInputs]:
        """Return the layer and its outputs, leave-one-out coordinates of analyzed items."""
        rows, columns, relation = self._sample(training)
        n, m = relation.shape
        target_images = self._sample_target(training.target_images if use_target else None)
        target_texts = self._sample_target(training.target_texts if use_target else None)
        image_counts = relation.times(np.ones((m, 1)))
        text_counts = relation.transposed_times(np.ones((n, 1)))
        # Most voted texts are typed queries, which belong to neither domain.
        voted = relation.voted_images if isinstance(relation, FeedbackRelation) else None
        images = ModalityData(training.images[rows], image_counts, target_images, voted)
        texts = ModalityData(training.texts[columns], text_counts, target_texts)
        x, y = images.auxiliary, texts.auxiliary
        analyze = partial(canonical_analysis, ridge=self.ridge, centered=True)
        analysis = analyze(
            x, y, relation, count=self.rank or MAX_RANK, allow_fewer=self.rank is None
        )
        components = select_components(analysis, x, y, relation, self.rank)
        analysis, weights = components.analysis, components.weights
        coordinates = components.coordinates
        by_correlation = self.rank is None and is_pairwise(relation)
        has_target = target_images is not None or target_texts is not None
        rounds = range(self.matching_rounds if has_target else 0)
        for remaining in tracked(rounds[::-1], "matching target items"):
            all_axes = analysis.image_axes * weights, analysis.text_axes * weights
            for modality, axes in zip((images, texts), all_axes, strict=True):
                modality.match_target(
                    partial(_project, axes), self.matching_temperature, self.target_centering
                )
            extended = ExtendedRelation(relation, images.match, texts.match)
            x, y = images.stacked(), texts.stacked()
            analysis = analyze(x, y, extended, count=len(analysis.s))
            if by_correlation or not remaining:
                coordinates = leave_one_out_coordinates(analysis, x, y, extended)
            if by_correlation:  # of auxiliary items: the relations of the others are guesses
                own = coordinates[0][:n], coordinates[1][:m]
                weights = clip_correlations(leave_one_out_correlations(*own, relation))
        image_axes, text_axes = analysis.image_axes * weights, analysis.text_axes * weights
        residual: tuple[Matrix | None, Matrix | None] = (None, None)
        graded = relation.base if isinstance(relation, FeedbackRelation) else relation
        if isinstance(graded, GradedRelation) and self.bits >= MIN_BITS:
            residual = residual_bit_axes(
                images.auxiliary, texts.auxiliary, image_axes, text_axes, graded.pairs, self.ridge,
                int(self.bits * RESIDUAL_FRACTION), self.seed,
            )  # fmt: skip
        image_map = AffineMap(
            image_axes, images.center, images.target_center, residual_axes=residual[0]
        )
        text_map = AffineMap(
            text_axes, texts.center, texts.target_center, residual_axes=residual[1]
        )
        out_x, out_y = (z * weights for z in coordinates)
        z_x, target_x = _tower_inputs(image_map, training.images, rows, out_x, target_images)
        z_y, target_y = _tower_inputs(text_map, training.texts, columns, out_y, target_texts)
        mmd_weights = images.mmd_weights(rows, len(z_x)), texts.mmd_weights(columns, len(z_y))
        inputs = TowerInputs(z_x, z_y, target_x, target_y, *mmd_weights)
        return InputLayer(image_map, text_map), inputs

    def _sample_target(self, features: Features | None) -> Features | None:
        if features is None or len(features) <= self.max_items:
            return features
        rng = np.random.default_rng([self.seed, 0xCD])
        return np.asarray(features[np.sort(rng.permutation(len(features))[: self.max_items])])

    def _sample(self, training: TrainingSet) -> tuple[Array, Array, Relation]:
        rng = np.random.default_rng([self.seed, 0xCA])
        rows, columns = (
            np.sort(rng.permutation(n)[: self.max_items]) for n in training.relation.shape
        )
        if (len(rows), len(columns)) == training.relation.shape:
            return rows, columns, training.relation
        return rows, columns, training.relation.subset(rows, columns)


def _project(axes: Matrix, rows: Matrix) -> Matrix:
    return rows @ axes


def _tower_inputs(
    layer: AffineMap,
    features: Features,
    rows: Array,
    coordinates: Matrix,
    target: Features | None,
) -> tuple[Array, Array | None]:
    """Return auxiliary and target inputs; `rows` were analyzed and have leave-one-out ones."""
    auxiliary = layer.apply(features, target=False)
    auxiliary[rows] = coordinates[: len(rows)]
    if target is None:
        return auxiliary, None
    if len(coordinates) == len(rows):  # without matching, the target was not analyzed
        return auxiliary, layer.apply(target)
    return auxiliary, coordinates[len(rows) :].astype(np.float32)
