"""What tells a pair from its class: directions of pairs in what the labels leave over.

Where auxiliary rows have labels and captions, directions of the labels tell classes apart, and
within a class nothing would order the items. So the features are freed of the labels' coordinates
Z = X A, X⊥ = X - Z (Z'Z)⁻¹ Z'X, and the pairs are analysed in X⊥, Y⊥. Those directions are added to
the layer, lightly: they may order what the classes leave equal, not mix the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transhash.data.relation import SparseRelation
from transhash.hashers.canonical import Matrix, canonical_analysis
from transhash.hashers.directions import MAX_RANK, useful_directions

LIGHTNESS = 0.4  # docs/method.md: classes on held-out auxiliary items lose half a point of MAP


@dataclass(frozen=True)
class Finer:
    """Further directions of both modalities, weighed."""

    image_axes: Matrix  # (dx, k)
    text_axes: Matrix  # (dy, k)
    left_out: tuple[Matrix, Matrix]  # coordinates of images (n, k) and texts (m, k)


def finer_directions(
    images: Matrix,
    texts: Matrix,
    image_axes: Matrix,
    text_axes: Matrix,
    pairs: SparseRelation,
    ridge: float,
) -> Finer:
    """Directions in which pairs agree and classes do not; features and axes are centred ones."""
    x, free_x = _freed(images, image_axes)
    y, free_y = _freed(texts, text_axes)
    found = canonical_analysis(x, y, pairs, ridge, MAX_RANK, centred=True)
    kept = useful_directions(found, x, y, pairs)
    weights = LIGHTNESS * kept.weights
    return Finer(
        free_x @ kept.found.image_axes * weights,
        free_y @ kept.found.text_axes * weights,
        (kept.left_out[0] * weights, kept.left_out[1] * weights),
    )


def _freed(features: Matrix, axes: Matrix) -> tuple[Matrix, Matrix]:
    """X - Z G and the map I - A G that gives it, G being the regression of X on Z = X A."""
    z = features @ axes
    back = np.linalg.lstsq(z, features, rcond=None)[0]
    return features - z @ back, np.eye(len(axes)) - axes @ back
