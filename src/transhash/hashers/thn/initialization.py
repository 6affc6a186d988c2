"""Two things read off canonical coordinates: how likely a pair is related, and a first rotation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import normalize

from transhash.data.relation import Relation, SparseRelation
from transhash.hashers.canonical import Matrix, canonical_analysis
from transhash.hashers.components import MAX_RANK, select_components
from transhash.hashers.thn.input_layer import TowerInputs

_SAMPLE = 1000  # items of a kind that are compared


def calibrate_relation(
    images: npt.NDArray[np.float32],
    texts: npt.NDArray[np.float32],
    relation: Relation,
    seed: int,
) -> tuple[float, float] | None:
    """(a, c) of P(s = 1 | pair) = sigmoid(a cos + c), Platt's fit on left-out coordinates.

    None if too few known pairs tell related from unrelated.
    """
    rng = np.random.default_rng([seed, 0xCB])
    rows, columns = (np.sort(rng.permutation(n)[:_SAMPLE]) for n in relation.shape)
    s, known = relation.block(rows, columns)
    cosine = (_unit(images[rows]) @ _unit(texts[columns]).T).astype(np.float64)
    mask = np.ones(s.shape, dtype=bool) if known is None else known > 0
    positive = s[mask] > 0
    if positive.sum() < 10 or (~positive).sum() < 10:
        return None
    # The likelihood needs only how often each cosine occurs: 400 bins instead of a million pairs.
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

    found = minimize(cost, np.array([5.0, -1.0]), jac=True, method="L-BFGS-B").x
    return (max(float(found[0]), 0.5), float(found[1])) if np.isfinite(found).all() else None


def best_rotation(inputs: TowerInputs, bits: int, tries: int, seed: int) -> Tensor:
    """(k, bits) tight frame, fitted by ITQ from several random starts; the best one is kept.

    Best: over left-out auxiliary pairs, agreement of signs correlates most with the cosine.
    """
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng([seed, 0xCC])
    parts = [inputs.images, inputs.texts]
    if inputs.target_images is not None and inputs.target_texts is not None:
        parts += [inputs.target_images, inputs.target_texts]
    z = normalize(torch.from_numpy(np.concatenate(parts)), dim=1)
    x, y = (
        normalize(torch.from_numpy(part[np.sort(rng.permutation(len(part))[:_SAMPLE])]), dim=1)
        for part in (inputs.images, inputs.texts)
    )
    wanted = x @ y.T
    best, least = None, math.inf
    for _ in range(tries):
        frame = itq(z, bits, generator)
        agreement = torch.where(x @ frame > 0, 1.0, -1.0) @ torch.where(y @ frame > 0, 1.0, -1.0).T
        agreement = agreement / bits
        centred, aim = agreement - agreement.mean(), wanted - wanted.mean()
        error = -float((centred * aim).sum() / (centred.norm() * aim.norm()).clamp_min(1e-9))
        if error < least:
            best, least = frame, error
    assert best is not None
    return best


def itq(z: Tensor, bits: int, generator: torch.Generator, rounds: int = 30) -> Tensor:
    """Rotate coordinates towards their own signs; with more bits than coordinates, a frame."""
    rank = z.shape[1]
    k = max(rank, bits)
    size = math.sqrt(k / rank)
    frame = torch.linalg.qr(torch.randn(k, k, generator=generator))[0][:rank, :bits] * size
    for _ in range(rounds):
        signs = torch.where(z @ frame > 0, 1.0, -1.0)
        u, _, vt = torch.linalg.svd(z.T @ signs, full_matrices=False)
        frame = (u @ vt) * size
    return torch.as_tensor(frame)


def _unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))


# What tells a pair from its class: bits of their own, from directions that labels leave over.
#
# Where auxiliary rows have labels and captions, the towers learn the labels, and within a class
# nothing would order the items. So the features are freed of the labels' coordinates Z = X A,
#
#     X⊥ = X - Z (Z'Z)⁻¹ Z'X        Y⊥ likewise
#
# the pairs are analysed in X⊥, Y⊥, and a sixteenth of the bits are signs of what is found there,
# turned by ITQ. The towers do not see these bits: L, by which items of a class are alike, would undo
# them.

SHARE = 16  # one bit in so many
FEWEST = 64  # bits of a code that can spare some
_SIZE = 0.5  # of such a bit where a query's real numbers rank; the towers' are near 1


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
    """(dx, bits) and (dy, bits) of centred features: what pairs agree in and classes do not."""
    free_x, free_y = _freeing(images, image_axes), _freeing(texts, text_axes)
    x, y = images @ free_x, texts @ free_y
    found = canonical_analysis(x, y, pairs, ridge, MAX_RANK, centred=True)
    kept = select_components(found, x, y, pairs)
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
