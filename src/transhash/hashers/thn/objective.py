"""The terms of C = L + λQ + νI + µ(D_q + D_d), each computed from a batch and the step.

| term | class | name in metrics.jsonl |
|---|---|---|
| L, Eq. (5) | RelationTerm | relation |
| Q, Eq. (6) | Quantization | quantization |
| I, ours | PseudoLabelTerm | inherited |
| D_q, D_d, Eq. (7) | Alignment | alignment_images, alignment_texts |

I is L over the pairs with a target item, where s_ij is the calibrated probability that they are
related: a pseudo-label from auxiliary items that are close to the target items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transhash.hashers.losses import alignment_loss, pair_weights, quantization_loss
from transhash.hashers.thn.batches import Batch, Items

PairLoss = Callable[[Tensor, Tensor, Tensor, tuple[float, float], Tensor | None], Tensor]
Term = Callable[[Batch, int], Mapping[str, Tensor]]  # a batch and the step


@dataclass(frozen=True)
class RelationTerm:
    """L, with s_ij mixed with its calibrated probability by `soft_label_fraction`."""

    loss: PairLoss
    balanced: bool
    soft_label_fraction: float = 0.0

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        s = batch.s
        if self.soft_label_fraction and batch.probability is not None:
            guess = batch.probability(batch.images.inputs, batch.texts.inputs)
            s = (1 - self.soft_label_fraction) * s + self.soft_label_fraction * guess
        weights = pair_weights(batch.positive_rate, self.balanced)
        return {"relation": self.loss(batch.images.z, batch.texts.z, s, weights, batch.known)}


@dataclass(frozen=True)
class Quantization:
    """λQ from step `start` on; with `target`, also over target items."""

    weight: float  # λ
    start: float
    target: bool

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if step < self.start:
            return {}
        images, texts = [batch.images.z], [batch.texts.z]
        if self.target and batch.target_images is not None:
            images.append(batch.target_images.z)
        if self.target and batch.target_texts is not None:
            texts.append(batch.target_texts.z)
        total = quantization_loss(torch.cat(images)) + quantization_loss(torch.cat(texts))
        return {"quantization": self.weight * total}


@dataclass(frozen=True)
class PseudoLabelTerm:
    """νI: the mean of L over the three types of pairs with a target item."""

    loss: PairLoss
    balanced: bool
    weight: float  # ν

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if batch.probability is None:
            return {}
        weights = pair_weights(batch.positive_rate, self.balanced)
        losses = [
            self.loss(x.z, y.z, batch.probability(x.inputs, y.inputs), weights, None)
            for x, y in (
                (batch.target_images, batch.texts),
                (batch.images, batch.target_texts),
                (batch.target_images, batch.target_texts),
            )
            if x is not None and y is not None
        ]
        return {"inherited": self.weight * torch.stack(losses).mean()} if losses else {}


@dataclass(frozen=True)
class Alignment:
    """µ(D_q + D_d); µ grows over the first `ramp` steps, while activations are still random."""

    weight: float  # µ
    ramp: float
    widths: tuple[float, ...]

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        mu = self.weight * (min(1.0, step / self.ramp) if self.ramp else 1.0)
        if not mu:
            return {}
        terms = {}
        if batch.target_images is not None:
            terms["alignment_images"] = mu * self._mmd(batch.images, batch.target_images)
        if batch.target_texts is not None:
            terms["alignment_texts"] = mu * self._mmd(batch.texts, batch.target_texts)
        return terms

    def _mmd(self, auxiliary: Items, target: Items) -> Tensor:
        """Return MMD² between target items and as many auxiliary ones, by their weights."""
        z = auxiliary.z[: len(target.z)]
        weight = None
        if auxiliary.weight is not None:
            weight = auxiliary.weight[: len(z)]
            weight = weight / weight.sum()
        return alignment_loss(z, target.z, self.widths, weight=weight)


def make_objective(
    pair_loss: PairLoss,
    *,
    balanced: bool,
    soft_label_fraction: float,
    quantization: Quantization,
    pseudo_label_weight: float,
    alignment: Alignment,
) -> Objective:
    """Return C with the terms of nonzero weight."""
    terms: list[Term] = [RelationTerm(pair_loss, balanced, soft_label_fraction)]
    if quantization.weight:
        terms.append(quantization)
    if pseudo_label_weight:
        terms.append(PseudoLabelTerm(pair_loss, balanced, pseudo_label_weight))
    if alignment.weight:
        terms.append(alignment)
    return Objective(*terms)


def default_logit_scale(bits: int) -> float:
    """Return the factor of <z_x, z_y> in L: codes reach ±b, log odds of relations about ±3."""
    return min(0.15, 3.0 / bits)


class Objective:
    """Returns the terms of C by name; a training step minimizes their sum."""

    def __init__(self, *terms: Term) -> None:
        self.terms = terms

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for term in self.terms:
            values.update(term(batch, step))
        return values

    @property
    def is_regularized(self) -> bool:
        return any(isinstance(term, Quantization | Alignment) for term in self.terms)

    def without_regularizers(self) -> Objective:
        """Return L and I alone, to continue with after a collapse."""
        return Objective(
            *(term for term in self.terms if not isinstance(term, Quantization | Alignment))
        )
