"""Chooses and weights canonical components: one rule for every method that has a rank.

Later components of an analysis are noise that fitted the training items. Leave-one-out coordinates
show it: along a component that carries nothing, those of related items do not correlate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transhash.data.relation import Relation
from transhash.data.training_set import Features
from transhash.hashers.canonical import Canonical, RelationProduct, solve_triangular
from transhash.hashers.projection import Matrix, chunks
from transhash.progress import phase

MAX_RANK = 64  # components considered
_MIN_RELATIVE_CORRELATION = 0.03  # of the first component's; weaker components carry nothing
_MAX_PARTNERS = 3  # mean number of partners per item in a pairwise relation
_MIN_RELATIVE_STRENGTH = 1e-5  # of the first component's; below, strength is rounding
_MIN_RELATIVE_DIAGONAL = 1e-2  # of a triangle that is solved in float32
_MIN_WEIGHT = 1e-3


@dataclass(frozen=True)
class Components:
    """The leading components that hold up in leave-one-out validation, and their weights."""

    analysis: Canonical
    weights: Matrix  # (k,)
    coordinates: tuple[Matrix, Matrix]  # leave-one-out, images (n, k) and texts (m, k), unweighted


@phase("leave-one-out validation of components")
def select_components(
    analysis: Canonical,
    images: Features,
    texts: Features,
    relation: Relation,
    rank: int | None = None,
) -> Components:
    """Return the components that carry the relation; with `rank`, that many, equally weighted.

    Components of labels tell classes apart: all are needed, with equal weights. Components of pairs
    are each a little less certain than the one before, so each is weighted by its leave-one-out
    correlation.
    """
    z_x, z_y = leave_one_out_coordinates(analysis, images, texts, relation)
    correlations = leave_one_out_correlations(z_x, z_y, relation)
    k = min(len(analysis.s), _useful_rank(correlations) if rank is None else rank)
    by_correlation = rank is None and is_pairwise(relation)
    weights = clip_correlations(correlations[:k]) if by_correlation else np.ones(k)
    return Components(analysis.cut(k), weights, (z_x[:, :k], z_y[:, :k]))


def is_pairwise(relation: Relation) -> bool:
    """Whether S relates single items (pairs, clicks) rather than classes (labels).

    Then items of at least one modality have few partners: a caption may belong to two images, and
    an image may have five captions.
    """
    return relation.positives < _MAX_PARTNERS * max(relation.shape)


def clip_correlations(correlations: Matrix) -> Matrix:
    """Return positive weights of components; correlations below zero are noise."""
    return np.maximum(correlations, _MIN_WEIGHT)


def leave_one_out_coordinates(
    analysis: Canonical, images: Features, texts: Features, relation: RelationProduct
) -> tuple[Matrix, Matrix]:
    """Return the canonical coordinates of each item as if the analysis had been done without it.

    A coordinate is a ridge regression of t / s on the features, where t is the mean coordinate of
    the item's related items, so the classical closed form holds with the leverage h:

        z_out = (z - h t / s) / (1 - h)      h_i = r_i |K_x'(x_i - m_x)|² / n
    """
    image_counts = relation.times(np.ones((relation.shape[1], 1)))
    text_counts = relation.transposed_times(np.ones((relation.shape[0], 1)))
    pairs = float(image_counts.sum())
    z_x, squares_x = _project(images, analysis.mean_x, analysis.lower_x, analysis.image_axes)
    z_y, squares_y = _project(texts, analysis.mean_y, analysis.lower_y, analysis.text_axes)
    # For weaker components t is rounding, and t / s would amplify it to a relation.
    strength = np.maximum(analysis.s, _MIN_RELATIVE_STRENGTH * analysis.s[0])
    parts = []
    for z, squares, counts, partner_sum in (
        (z_x, squares_x, image_counts, relation.times(z_y)),
        (z_y, squares_y, text_counts, relation.transposed_times(z_x)),
    ):
        partner = partner_sum / np.maximum(counts, 1e-9)
        leverage = np.minimum(counts / pairs * squares, 0.9)
        parts.append((z - leverage * partner / strength) / (1 - leverage))
    return parts[0], parts[1]


def leave_one_out_correlations(z_x: Matrix, z_y: Matrix, relation: RelationProduct) -> Matrix:
    """Return the correlation of related items along each component, from their coordinates."""
    image_counts = relation.times(np.ones((relation.shape[1], 1)))
    text_counts = relation.transposed_times(np.ones((relation.shape[0], 1)))
    cross = (z_x * relation.times(z_y)).sum(axis=0)
    squares = (image_counts * z_x**2).sum(axis=0) * (text_counts * z_y**2).sum(axis=0)
    return np.asarray(cross / np.sqrt(np.maximum(squares, 1e-30)))


def _useful_rank(correlations: Matrix) -> int:
    """Count the leading components before the first whose correlation is negligible."""
    minimum = _MIN_RELATIVE_CORRELATION * max(float(correlations[0]), 1e-9)
    weak = np.flatnonzero(correlations < minimum)
    return max(1, int(weak[0]) if len(weak) else len(correlations))


def _project(
    features: Features, mean: Matrix, lower: Matrix, axes: Matrix
) -> tuple[Matrix, Matrix]:
    """Return coordinates (n, k) and squared norms (n, 1) of whitened rows, in chunks.

    The norms only determine leverages, so float32 suffices unless the triangle is almost singular.
    """
    diagonal = lower.diagonal()
    if diagonal.min() > _MIN_RELATIVE_DIAGONAL * diagonal.max():
        lower = lower.astype(np.float32, order="F")
    z, squares = np.empty((len(features), axes.shape[1])), np.empty((len(features), 1))
    for rows, part in chunks(features, mean):
        z[rows] = part @ axes
        white = solve_triangular(lower, part.T.astype(lower.dtype, copy=False))  # (d, rows)
        squares[rows, 0] = np.einsum("ij,ij->j", white, white)
    return z, squares
