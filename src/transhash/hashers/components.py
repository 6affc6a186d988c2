"""Which canonical directions count, and how much: one rule for every method that has a rank.

Later directions of an analysis are noise that fitted the training items. Coordinates that items
would have had, had they been left out, show it: along a direction that carries nothing, those of
related items do not correlate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transhash.data.relation import Relation
from transhash.data.training_set import Features
from transhash.hashers.canonical import Canonical, Matrix, RelationProduct, chunks, solve_triangular

MAX_RANK = 64  # directions that are looked at
_TOLERANCE = 0.03  # directions whose left-out correlation is below this share carry nothing
_FEW = 3  # partners of an item in the mean
_VANISHING = 1e-5  # strength, beside the first direction's, of one that carries nothing
_SOUND = 1e-2  # smallest entry of a triangle's diagonal, beside the largest
_LEAST = 1e-3  # no direction that is kept counts less


@dataclass(frozen=True)
class Components:
    """The leading directions that hold up when left out, and what each counts."""

    found: Canonical
    weights: Matrix  # (k,)
    left_out: tuple[Matrix, Matrix]  # coordinates of images (n, k) and texts (m, k), unweighed


def select_components(
    found: Canonical, images: Features, texts: Features, relation: Relation, rank: int | None = None
) -> Components:
    """Those of `found` that carry the relation; with `rank`, that many, all alike.

    Directions of labels tell the classes apart; all of them are needed, and they count alike. Of
    pairs each direction is a little less certain than the one before, so it counts by the
    correlation that left-out items have along it.
    """
    z_x, z_y = leave_one_out_coordinates(found, images, texts, relation)
    correlations = left_out_correlations(z_x, z_y, relation)
    k = min(len(found.s), _useful_rank(correlations) if rank is None else rank)
    weigh = rank is None and is_pairwise(relation)
    weights = clip_correlations(correlations[:k]) if weigh else np.ones(k)
    return Components(found.cut(k), weights, (z_x[:, :k], z_y[:, :k]))


def is_pairwise(relation: Relation) -> bool:
    """Whether S tells which one and not which kind: pairs and clicks, as against class labels.

    Seen from one side at least, an item has hardly more than one partner: a caption may have been
    written under two pictures, a picture have five captions.
    """
    return relation.positives < _FEW * max(relation.shape)


def clip_correlations(correlations: Matrix) -> Matrix:
    """Weights of directions: a correlation below zero is noise, but divides nothing by zero."""
    return np.maximum(correlations, _LEAST)


def leave_one_out_coordinates(
    found: Canonical, images: Features, texts: Features, relation: RelationProduct
) -> tuple[Matrix, Matrix]:
    """Canonical coordinates each item would have had, had it been left out of the analysis.

    A coordinate is a ridge regression of t / s on the features, t being the mean coordinate of
    the item's related items, so the classical closed form holds with the leverage h:

        z_out = (z - h t / s) / (1 - h)      h_i = r_i |K_x'(x_i - m_x)|² / n
    """
    of_image = relation.times(np.ones((relation.shape[1], 1)))
    of_text = relation.transposed_times(np.ones((relation.shape[0], 1)))
    pairs = float(of_image.sum())
    z_x, size_x = _measured(images, found.mean_x, found.lower_x, found.image_axes)
    z_y, size_y = _measured(texts, found.mean_y, found.lower_y, found.text_axes)
    # Below, t is rounding and t / s would be a relation made of it.
    strength = np.maximum(found.s, _VANISHING * found.s[0])
    parts = []
    for z, size, of_item, partner_sum in (
        (z_x, size_x, of_image, relation.times(z_y)),
        (z_y, size_y, of_text, relation.transposed_times(z_x)),
    ):
        partner = partner_sum / np.maximum(of_item, 1e-9)
        leverage = np.minimum(of_item / pairs * size, 0.9)
        parts.append((z - leverage * partner / strength) / (1 - leverage))
    return parts[0], parts[1]


def left_out_correlations(z_x: Matrix, z_y: Matrix, relation: RelationProduct) -> Matrix:
    """Correlation of related items along each direction, of left-out coordinates."""
    of_image = relation.times(np.ones((relation.shape[1], 1)))
    of_text = relation.transposed_times(np.ones((relation.shape[0], 1)))
    cross = (z_x * relation.times(z_y)).sum(axis=0)
    sizes = (of_image * z_x**2).sum(axis=0) * (of_text * z_y**2).sum(axis=0)
    return np.asarray(cross / np.sqrt(np.maximum(sizes, 1e-30)))


def _useful_rank(correlations: Matrix) -> int:
    """The leading run of directions that hold up when left out; later ones are noise."""
    weak = np.flatnonzero(correlations < _TOLERANCE * max(float(correlations[0]), 1e-9))
    return max(1, int(weak[0]) if len(weak) else len(correlations))


def _measured(
    features: Features, mean: Matrix, lower: Matrix, axes: Matrix
) -> tuple[Matrix, Matrix]:
    """Coordinates (n, k) and squared lengths (n, 1) of whitened rows, which are never all held.

    Lengths only say how much an item counts, so float32 does for them unless the triangle is
    close to singular.
    """
    diagonal = lower.diagonal()
    if diagonal.min() > _SOUND * diagonal.max():
        lower = lower.astype(np.float32, order="F")
    z, size = np.empty((len(features), axes.shape[1])), np.empty((len(features), 1))
    for rows, part in chunks(features, mean):
        z[rows] = part @ axes
        white = solve_triangular(lower, part.T.astype(lower.dtype, copy=False))  # (d, rows)
        size[rows, 0] = np.einsum("ij,ij->j", white, white)
    return z, size
