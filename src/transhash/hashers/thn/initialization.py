"""Initializes THN from canonical coordinates: calibration, rotation and residual bits.

Residual bits distinguish items of a class. If auxiliary rows have labels and captions, the towers
learn the labels, and nothing would order the items of a class. So the coordinates Z = X A of the
labels are removed from the features,

    X⊥ = X - Z (Z'Z)⁻¹ Z'X        Y⊥ likewise

the pairs are analyzed in X⊥ and Y⊥, and a sixteenth of the bits are signs of the resulting
coordinates, rotated by ITQ. The towers do not compute these bits: L, for which items of a class are
alike, would undo them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import normalize

from transhash.data.draw import draw_items
from transhash.data.relation import Relation, SparseRelation
from transhash.hashers.canonical import canonical_analysis
from transhash.hashers.components import MAX_RANK, select_components
from transhash.hashers.projection import Matrix
from transhash.hashers.thn.input_layer import TowerInputs
from transhash.progress import phase, tracked

RESIDUAL_FRACTION = 1 / 16  # of the bits
MIN_BITS = 64  # of a code with residual bits
_RESIDUAL_DEVIATION = 0.5  # of their projections; those of the towers are near 1
_MAX_SAMPLE = 1000  # items of a modality that are compared
_ENOUGH_PAIRS = 100  # related ones, for a calibration


@phase("calibration of the relation")
def calibrate_relation(
    images: npt.NDArray[np.float32],
    texts: npt.NDArray[np.float32],
    relation: Relation,
    seed: int,
) -> tuple[float, float] | None:
    """Return (a, c) of P(s = 1 | pair) = sigmoid(a cos + c), fitted as by Platt.

    Takes leave-one-out coordinates. Returns None if there are too few known pairs.
    """
    rows, columns, partners_first = draw_items(
        relation, _MAX_SAMPLE, _ENOUGH_PAIRS, np.random.default_rng([seed, 0xCB])
    )
    s, known = relation.block(rows, columns)
    cosine = (_unit_rows(images[rows]) @ _unit_rows(texts[columns]).T).astype(np.float64)
    mask = np.ones(s.shape, dtype=bool) if known is None else known > 0
    positive = s[mask] > 0
    if positive.sum() < 10 or (~positive).sum() < 10:
        return None
    # The likelihood depends only on the histogram of cosines: 400 bins instead of a million pairs.
    edges = np.linspace(-1, 1, 401)
    middle = (edges[1:] + edges[:-1]) / 2
    hits = np.histogram(cosine[mask][positive], edges)[0]
    misses = np.histogram(cosine[mask][~positive], edges)[0]
    total = hits.sum() + misses.sum()

    def cost(theta: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        u = theta[0] * middle + theta[1]
        value = (hits * np.logaddexp(0, -u) + misses * np.logaddexp(0, u)).sum() / total
        slope = ((hits + misses) / (1 + np.exp(-u)) - hits) / total
        return float(value), np.array([(slope * middle).sum(), slope.sum()])

    a, c = minimize(cost, np.array([5.0, -1.0]), jac=True, method="L-BFGS-B").x
    if partners_first:  # the share of related pairs among all, not among those drawn
        c += math.log(relation.positives / (relation.known - relation.positives))
        c -= math.log(hits.sum() / misses.sum())
    return (max(float(a), 0.5), float(c)) if np.isfinite([a, c]).all() else None


def best_rotation(inputs: TowerInputs, bits: int, trials: int, seed: int) -> Tensor:
    """Return the best of several (k, bits) tight frames, each fitted by ITQ from a random start.

    Best: the agreement of signs over auxiliary pairs correlates most with their cosine.
    """
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng([seed, 0xCC])
    parts = [inputs.images, inputs.texts]
    if inputs.target_images is not None and inputs.target_texts is not None:
        parts += [inputs.target_images, inputs.target_texts]
    z = normalize(torch.from_numpy(np.concatenate(parts)), dim=1)
    x, y = (
        normalize(torch.from_numpy(part[np.sort(rng.permutation(len(part))[:_MAX_SAMPLE])]), dim=1)
        for part in (inputs.images, inputs.texts)
    )
    cosine = x @ y.T
    best, best_error = None, math.inf
    for _ in tracked(range(trials), "best rotation"):
        frame = itq(z, bits, generator)
        agreement = torch.where(x @ frame > 0, 1.0, -1.0) @ torch.where(y @ frame > 0, 1.0, -1.0).T
        agreement = agreement / bits
        centered, aim = agreement - agreement.mean(), cosine - cosine.mean()
        error = -float((centered * aim).sum() / (centered.norm() * aim.norm()).clamp_min(1e-9))
        if error < best_error:
            best, best_error = frame, error
    assert best is not None
    return best


def itq(z: Tensor, bits: int, generator: torch.Generator, rounds: int = 30) -> Tensor:
    """Return a rotation of the coordinates toward their signs; a frame if bits > coordinates."""
    rank = z.shape[1]
    k = max(rank, bits)
    scale = math.sqrt(k / rank)
    frame = torch.linalg.qr(torch.randn(k, k, generator=generator))[0][:rank, :bits] * scale
    for _ in range(rounds):
        signs = torch.where(z @ frame > 0, 1.0, -1.0)
        u, _, vt = torch.linalg.svd(z.T @ signs, full_matrices=False)
        frame = (u @ vt) * scale
    return torch.as_tensor(frame)


@phase("residual bits")
def residual_bit_axes(
    images: Matrix,
    texts: Matrix,
    image_axes: Matrix,
    text_axes: Matrix,
    pairs: SparseRelation,
    ridge: float,
    bits: int,
    seed: int,
) -> tuple[Matrix, Matrix]:
    """Return (dx, bits) and (dy, bits) axes of centered features in which pairs agree."""
    residual_x, residual_y = _residual_map(images, image_axes), _residual_map(texts, text_axes)
    x, y = images @ residual_x, texts @ residual_y
    analysis = canonical_analysis(x, y, pairs, ridge, MAX_RANK, centered=True)
    components = select_components(analysis, x, y, pairs)
    weights, analysis = components.weights, components.analysis
    z = np.concatenate(components.coordinates).astype(np.float32) * weights.astype(np.float32)
    generator = torch.Generator().manual_seed(seed)
    rotation = itq(normalize(torch.from_numpy(z), dim=1), bits, generator).double().numpy()
    weighted = weights[:, None] * rotation
    weighted *= _RESIDUAL_DEVIATION / max(float((z @ rotation).std()), 1e-9)
    return residual_x @ analysis.image_axes @ weighted, residual_y @ analysis.text_axes @ weighted


def _residual_map(features: Matrix, axes: Matrix) -> Matrix:
    """Return I - A G, which maps X to X - Z G; G is the regression of X on Z = X A."""
    back = np.linalg.lstsq(features @ axes, features, rcond=None)[0]
    return np.eye(len(axes)) - axes @ back


def _unit_rows(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))
