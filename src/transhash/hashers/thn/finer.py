"""What tells a pair from its class: bits of their own, from directions that labels leave over.

Where auxiliary rows have labels and captions, the towers learn the labels, and within a class
nothing would order the items. So the features are freed of the labels' coordinates Z = X A,

    X⊥ = X - Z (Z'Z)⁻¹ Z'X        Y⊥ likewise

the pairs are analysed in X⊥, Y⊥, and a sixteenth of the bits are signs of what is found there,
turned by ITQ. The towers do not see these bits: L, by which items of a class are alike, would undo
them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import normalize

from transhash.data.relation import SparseRelation
from transhash.hashers.canonical import Matrix, canonical_analysis
from transhash.hashers.directions import MAX_RANK, useful_directions
from transhash.hashers.thn.start import itq

SHARE = 16  # one bit in so many
FEWEST = 64  # bits of a code that can spare some
_SIZE = 0.5  # of such a bit where a query's real numbers rank; the towers' are near 1


def finer_bits(
    images: Matrix,
    texts: Matrix,
    image_axes: Matrix,
    text_axes: Matrix,
    pairs: SparseRelation,
    ridge: float,
    bits: int,
    seed: int,
) -> tuple[Matrix, Matrix]:
    """(dx, bits) and (dy, bits) of centred features: what pairs agree in and classes do not."""
    free_x, free_y = _freeing(images, image_axes), _freeing(texts, text_axes)
    x, y = images @ free_x, texts @ free_y
    found = canonical_analysis(x, y, pairs, ridge, MAX_RANK, centred=True)
    kept = useful_directions(found, x, y, pairs)
    z = np.concatenate(kept.left_out).astype(np.float32) * kept.weights.astype(np.float32)
    generator = torch.Generator().manual_seed(seed)
    turn = itq(normalize(torch.from_numpy(z), dim=1), bits, generator).double().numpy()
    turned = kept.weights[:, None] * turn
    turned *= _SIZE / max(float((z @ turn).std()), 1e-9)
    return free_x @ kept.found.image_axes @ turned, free_y @ kept.found.text_axes @ turned


def _freeing(features: Matrix, axes: Matrix) -> Matrix:
    """I - A G, by which X becomes X - Z G; G is the regression of X on Z = X A."""
    back = np.linalg.lstsq(features @ axes, features, rcond=None)[0]
    return np.eye(len(axes)) - axes @ back
