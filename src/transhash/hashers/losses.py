"""The terms of the paper's objective C = L + λQ + µ(D_q + D_d), as pure functions.

| paper | here | meaning |
|---|---|---|
| b | bits | code length |
| z^x_i, z^y_j | z_x (n, b), z_y (m, b) | activations tanh(fch) of images and texts, in [-1, 1] |
| z^q, z^d | z_target (n̂, b) | activations of unlabeled target items of the same modality |
| h = sgn(z) | Codes | binary codes |
| s_ij | s (n, m) | 1 if image i and text j are related, else 0; fractions are soft labels |
| <z_i, z_j> | u = z_x @ z_y.T | inner product, in [-b, b] |
| L, Eq. (5) | relation_loss | pairwise cross-entropy |
| Q, Eq. (6) | quantization_loss | distance of activations from -1 and +1 |
| D_q, D_d, Eq. (7) | alignment_loss | MMD² between auxiliary and target activations |
| γ | 1 / median distance², times each of `widths` | kernel width |

All are means over pairs or items instead of sums, so that λ and µ do not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

# Ours: wide kernels pull domains together, sharp ones match classes.
WIDTHS = (1.0, 4.0, 16.0, 64.0)


def relation_loss(
    z_x: Tensor,
    z_y: Tensor,
    s: Tensor,
    weights: tuple[float, float] = (1.0, 1.0),
    known: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Return L of Eq. (5): the mean of log(1 + exp u) - s u over pairs, u = scale * <z_x, z_y>.

    Equal to s softplus(-u) + (1 - s) softplus(u), so that related and unrelated pairs can have
    different `weights`, with softplus(-u) = softplus(u) - u; exp would overflow, as u reaches ±b.
    """
    u = scale * (z_x @ z_y.T)
    related = weights[0] * s
    return _mean((related + weights[1] * (1 - s)) * softplus(u) - related * u, known)


def inner_product_loss(
    z_x: Tensor,
    z_y: Tensor,
    s: Tensor,
    weights: tuple[float, float] = (1.0, 1.0),
    known: Tensor | None = None,
) -> Tensor:
    """Return the loss of THN-ip, undefined in the paper: mean of (<z_x, z_y> / b - (2s - 1))²."""
    u = (z_x @ z_y.T) / z_x.shape[1]
    return _mean(weights[0] * s * (u - 1) ** 2 + weights[1] * (1 - s) * (u + 1) ** 2, known)


def pair_weights(positive_rate: float, balanced: bool = True) -> tuple[float, float]:
    """Return weights of related and unrelated pairs; balanced, both sum to one half.

    Unweighted, 94% unrelated pairs make all codes equal; see docs/differences.md.
    """
    if not balanced:
        return 1.0, 1.0
    rate = min(max(positive_rate, 1e-6), 1 - 1e-6)
    return 0.5 / rate, 0.5 / (1 - rate)


def quantization_loss(z: Tensor, floor: float = 1e-3) -> Tensor:
    """Return Q of Eq. (6) for one modality: mean over items of the sum over bits of -log|z|.

    Below `floor` the gradient is 0; without the floor it would be 1/z and flip bits at random.
    """
    return -z.abs().clamp_min(floor).log().sum(dim=1).mean()


def alignment_loss(
    z: Tensor,
    z_target: Tensor,
    widths: Sequence[float] = WIDTHS,
    gamma: float | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Return D of Eq. (7): biased MMD², Gaussian kernels of width median * {1, 1/4, 1/16, 1/64}.

    `gamma` fixes the first kernel's γ; `weight` (n,) reweights the auxiliary items (sum 1).
    """
    own = z.new_full((len(z),), 1.0 / len(z)) if weight is None else weight
    sign = torch.cat([own, z.new_full((len(z_target),), -1.0 / len(z_target))])
    joint = torch.cat([z, z_target])
    return _WeightedMmd.apply(joint, sign, tuple(widths), gamma)  # type: ignore[no-any-return, no-untyped-call]


class _WeightedMmd(torch.autograd.Function):
    """Computes sign' K sign together with its gradient, to pass over K and the distances once.

    With k_w = exp(-w d / m) of squared distances d and G = -sign sign' * mean(w k_w) / m, the
    gradient of row i is 4 sum_j G_ij (x_i - x_j); the median m is treated as constant.
    """

    @staticmethod
    def forward(
        ctx: Any, joint: Tensor, sign: Tensor, widths: tuple[float, ...], gamma: float | None
    ) -> Tensor:
        with torch.autocast(joint.device.type, enabled=False):
            square = joint.pow(2).sum(dim=1)
            distance = (joint @ joint.T).mul_(-2).add_(square[:, None]).add_(square[None, :])
            distance.clamp_min_(0)
            if gamma is None:
                # A collapsed batch has median 0; the floor keeps γ finite and rounding harmless.
                middle = _median(distance).clamp_min(0.01 * joint.shape[1])
            else:
                middle = distance.new_tensor(1.0 / gamma)
            kernel, slope = torch.zeros_like(distance), torch.zeros_like(distance)
            for width in widths:
                one = torch.mul(distance, -width / middle).exp_()
                kernel += one
                slope.add_(one, alpha=width)
            if ctx.needs_input_grad[0]:
                pull = slope.mul_(sign[:, None]).mul_(sign[None, :])
                gradient = pull.sum(dim=1, keepdim=True) * joint - pull @ joint
                ctx.save_for_backward(gradient.mul_(-4.0 / len(widths)).div_(middle))
            return sign @ kernel @ sign / len(widths)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return above[0] * gradient, None, None, None


def _median(values: Tensor) -> Tensor:
    """Return the lower median; NumPy takes half of torch's time on a CPU."""
    if values.device.type != "cpu":
        return values.median()
    flat = values.numpy().reshape(-1)
    middle = (len(flat) - 1) // 2
    return values.new_tensor(np.partition(flat, middle)[middle])


def dcmh_loss(
    outputs: Tensor,
    others: Tensor,
    s: Tensor,
    rest: Tensor,
    gamma: float,
    eta: float,
    weights: tuple[float, float] = (1.0, 1.0),
    known: Tensor | None = None,
    codes: Tensor | None = None,
) -> Tensor:
    """Return DCMH's J per pair, for one batch of one modality and all items of the other.

    `outputs` (B, b) are those of the batch, `others` (n, b) the other modality's buffer, `rest`
    (b,) the sum of this modality's buffer outside the batch, `codes` (B, b) the rows of B, by
    default the signs of `outputs`.
    """
    likelihood = relation_loss(outputs, others, s, weights, known, scale=0.5)
    if codes is None:
        codes = signs(outputs.detach())
    quantization = (codes - outputs).pow(2).sum()
    balance = (outputs.sum(dim=0) + rest).pow(2).sum()
    return likelihood + (gamma * quantization + eta * balance) / (len(outputs) * len(others))


def signs(values: Tensor) -> Tensor:
    """Return sgn of the values, -1 for 0 as in codes."""
    return torch.where(values > 0, 1.0, -1.0)


def _mean(values: Tensor, known: Tensor | None) -> Tensor:
    if known is None:
        return values.mean()
    return (values * known).sum() / known.sum().clamp_min(1.0)
