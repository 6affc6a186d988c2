"""The transfer step: canonical components of S, computed with the help of unlabeled target items.

Each target item is softly matched with the auxiliary items of its modality, by the cosine of their
canonical coordinates, and takes over their relations in proportion. With n, m auxiliary and n̂, m̂
target images and texts, the current image axes A and the temperature τ,

    P = softmax over rows of cos(X̂ A, X A) / τ      (n̂, n), Q (m̂, m) for texts
    w = min(1, n / n̂)                               the weight of a target item
    P ← w P + (1 - w) G P                           G: means over the 10 nearest target items
    S⁺ = [I; w P] S [I; w Q]'                       (n + n̂, m + m̂)

w keeps target items, whose relations are guesses, from outweighing auxiliary ones. With more target
than auxiliary items, the target is dense enough for matches to be shared among neighbors. Then
the components are recomputed from S⁺ over both domains, each with its own center: auxiliary
items by their mean over related pairs, target items by mean(X̂) - κ mean(P X). κ = 0 gives both
domains one mean, which is wrong if their class frequencies differ; κ = 1 gives matched items one
mean, which trusts the matches. Only S is needed, no classes.

Time and memory are linear in target items. To change the matching rule, change `soft_match`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.data.draw import draw_items
from transhash.data.feedback import FeedbackRelation
from transhash.data.relation import (
    ExtendedRelation,
    GradedRelation,
    MatchMatrix,
    Relation,
)
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

MAX_TARGET_ITEMS = 100_000  # of a modality; time and memory are linear in them
_MAX_DENSE_ENTRIES = 20_000_000  # of P: 160 MB
_MATCHES_PER_ITEM = 128  # kept of a larger P
_NEIGHBORS = 10  # of a target item among the others
_MAX_NEIGHBOR_SAMPLE = 10_000  # target items that neighbors are chosen from
_CHUNK_ROWS = 1024


def soft_match(target: Features, auxiliary: Features, temperature: float) -> Matrix:
    """Return P, the soft assignment of target items to auxiliary items; rows sum to 1."""
    a = target / np.maximum(np.linalg.norm(target, axis=1, keepdims=True), 1e-9)
    b = auxiliary / np.maximum(np.linalg.norm(auxiliary, axis=1, keepdims=True), 1e-9)
    logits = (a / temperature) @ b.T
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits, out=logits)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(weights)


def match_items(target: Features, auxiliary: Features, temperature: float) -> MatchMatrix:
    """Return P of `soft_match`; of a large P, only the largest entries of each row."""
    n_target, n = len(target), len(auxiliary)
    if n_target * n <= _MAX_DENSE_ENTRIES:
        return soft_match(target, auxiliary, temperature)
    return _largest_entries(
        lambda rows: soft_match(target[rows], auxiliary, temperature), (n_target, n)
    )


def nearest_targets(target: Features) -> sp.csr_array:
    """Return G (n̂, n̂), the weights of the nearest other target items; rows sum to 1.

    Neighbors are found by the cosine of centered features, among a sample of many target items, so
    that time is linear. The row of an item that resembles no other is its own.
    """
    n, mean = len(target), target.mean(axis=0, dtype=np.float64)
    x = np.empty(target.shape, np.float32)
    for rows in _row_chunks(n):
        part = target[rows] - mean
        x[rows] = part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-9)
    sample = np.unique(np.linspace(0, n - 1, min(n, _MAX_NEIGHBOR_SAMPLE)).astype(np.int64))
    k = min(_NEIGHBORS, len(sample) - 1)
    values, columns = np.empty((n, k)), np.empty((n, k), np.int64)
    for rows in _row_chunks(n):
        cosine = x[rows] @ x[sample].T
        cosine[np.arange(*rows.indices(n))[:, None] == sample] = -np.inf
        nearest = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
        values[rows] = np.maximum(np.take_along_axis(cosine, nearest, axis=1), 0)
        columns[rows] = sample[nearest]
    graph = sp.csr_array((values.ravel(), columns.ravel(), np.arange(n + 1) * k), (n, n))
    total = values.sum(axis=1)
    alone = (total <= 0).astype(np.float64)
    return sp.csr_array(
        sp.diags_array(1 / np.where(alone, 1, total)) @ graph + sp.diags_array(alone)
    )


def smooth_matches(p: MatchMatrix, graph: sp.csr_array, own_share: float) -> MatchMatrix:
    """Return own_share · P + (1 - own_share) · G P."""
    if isinstance(p, sp.csr_array):
        return _largest_entries(
            lambda rows: (own_share * p[rows] + (1 - own_share) * (graph[rows] @ p)).toarray(),
            p.shape,
        )
    return np.asarray(own_share * p + (1 - own_share) * (graph @ p))


def _largest_entries(dense_rows: Callable[[slice], Matrix], shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix with the largest entries of each row, rescaled to a sum of 1."""
    n, width = shape
    k = min(_MATCHES_PER_ITEM, width)
    values, columns = np.empty((n, k)), np.empty((n, k), np.int32)
    for rows in _row_chunks(n):
        p = dense_rows(rows)
        largest = np.argpartition(-p, k - 1, axis=1)[:, :k]
        columns[rows], values[rows] = largest, np.take_along_axis(p, largest, axis=1)
    values /= values.sum(axis=1, keepdims=True)
    return sp.csr_array((values.ravel(), columns.ravel(), np.arange(n + 1) * k), shape)


def _row_chunks(n: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK_ROWS) for start in range(0, n, _CHUNK_ROWS))


def sample_target(features: Features | None, count: int, seed: int) -> Features | None:
    """Return at most `count` random rows in their order, None without any."""
    if features is None or not count:
        return None
    if len(features) <= count:
        return features
    rng = np.random.default_rng([seed, 0xCD])
    return np.asarray(features[np.sort(rng.permutation(len(features))[:count])])


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
        self.match: MatchMatrix | None = None  # P times the weight of a target item
        self._mean_match: Matrix | None = None  # column means of P

    def match_target(
        self, project: Callable[[Matrix], Features], temperature: float, target_centering: float
    ) -> None:
        """Update P from projections of centered features, and the target's center with it."""
        if self.target is None:
            return
        p = match_items(project(self._centered_target), project(self.auxiliary), temperature)
        weight = min(1.0, len(self.auxiliary) / len(self.target))
        if weight < 1:
            p = smooth_matches(p, self._graph, own_share=weight)
        self.match = p * weight
        self._mean_match = np.asarray(p.mean(axis=0, dtype=np.float64)).ravel()
        matched_mean = self._mean_match @ self.auxiliary  # mean(P X)
        self.target_center = self.target_mean - target_centering * matched_mean
        self._center_target()

    def stacked(self) -> Matrix:
        """Return centered features, auxiliary items first; target items only once matched."""
        return self.auxiliary if self.match is None else self._all

    @cached_property
    def _graph(self) -> sp.csr_array:
        assert self.target is not None
        return nearest_targets(self.target)

    def _center_target(self) -> None:
        if self.target is not None:
            np.subtract(self.target, self.target_center, out=self._centered_target)

    def mmd_weights(self, rows: npt.NDArray[np.int64], n: int) -> Array | None:
        """Return the weights in MMD of n auxiliary items, of which `rows` were matched."""
        if self._mean_match is None:
            return None
        weights = np.ones(n, dtype=np.float32)
        weights[rows] = matched_weights(self._mean_match)
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
    max_target_items: ClassVar[int] = MAX_TARGET_ITEMS

    def build(self, training: TrainingSet, use_target: bool) -> tuple[InputLayer, TowerInputs]:
        """Return the layer and its outputs, leave-one-out coordinates of analyzed items."""
        rows, columns, relation = self._sample(training)
        n, m = relation.shape
        target_images = self._sample_target(training.target_images, use_target)
        target_texts = self._sample_target(training.target_texts, use_target)
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
        if isinstance(graded, GradedRelation) and graded.pairs.positives and self.bits >= MIN_BITS:
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

    def _sample_target(self, features: Features | None, use_target: bool) -> Features | None:
        return sample_target(features, self.max_target_items if use_target else 0, self.seed)

    def _sample(self, training: TrainingSet) -> tuple[Array, Array, Relation]:
        relation = training.relation
        rows, columns, _ = draw_items(
            relation.pairs if isinstance(relation, GradedRelation) else relation,
            self.max_items, 10 * self.max_items, np.random.default_rng([self.seed, 0xCA]),
        )  # fmt: skip
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
