"""C = L + λQ + νI + µ(D_q + D_d): each term by itself, from a batch and the step.

| term | class | name in metrics.jsonl |
|---|---|---|
| L, Eq. (5) | RelationTerm | relation |
| Q, Eq. (6) | Quantization | quantization |
| I, ours | Inherited | inherited |
| D_q, D_d, Eq. (7) | Alignment | alignment_images, alignment_texts |

I is L over the pairs that have a target item, whose s_ij is the calibrated probability that they
are related: relations that target items inherit from the auxiliary ones they are close to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transhash.hashers.losses import alignment_loss, pair_weights, quantization_loss
from transhash.hashers.thn.batches import Batch, Items

PairLoss = Callable[[Tensor, Tensor, Tensor, tuple[float, float], Tensor | None], Tensor]
Term = Callable[[Batch, int], Mapping[str, Tensor]]  # of a batch at a step


@dataclass(frozen=True)
class RelationTerm:
    """L; `soft_label_fraction` of s_ij is its calibrated probability."""

    loss: PairLoss
    balanced: bool
    soft_label_fraction: float = 0.0

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        s = batch.s
        if self.soft_label_fraction and batch.probability is not None:
            guess = batch.probability(batch.images.inputs, batch.texts.inputs)
            s = (1 - self.soft_label_fraction) * s + self.soft_label_fraction * guess
        weights = pair_weights(batch.rate, self.balanced)
        return {"relation": self.loss(batch.images.z, batch.texts.z, s, weights, batch.known)}


@dataclass(frozen=True)
class Quantization:
    """λQ from step `start` on; with `target`, over target items, too."""

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
    """νI: the mean of L over the kinds of pairs that have a target item."""

    loss: PairLoss
    balanced: bool
    weight: float  # ν

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if batch.probability is None:
            return {}
        weights = pair_weights(batch.rate, self.balanced)
        kinds = [
            self.loss(x.z, y.z, batch.probability(x.inputs, y.inputs), weights, None)
            for x, y in (
                (batch.target_images, batch.texts),
                (batch.images, batch.target_texts),
                (batch.target_images, batch.target_texts),
            )
            if x is not None and y is not None
        ]
        return {"inherited": self.weight * torch.stack(kinds).mean()} if kinds else {}


@dataclass(frozen=True)
class Alignment:
    """µ(D_q + D_d); µ grows over the first `ramp` steps, when activations still mean nothing."""

    weight: float  # µ
    ramp: float
    widths: tuple[float, ...]

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        mu = self.weight * (min(1.0, step / self.ramp) if self.ramp else 1.0)
        if not mu:
            return {}
        terms = {}
        if batch.target_images is not None:
            terms["alignment_images"] = mu * self._gap(batch.images, batch.target_images)
        if batch.target_texts is not None:
            terms["alignment_texts"] = mu * self._gap(batch.texts, batch.target_texts)
        return terms

    def _gap(self, own: Items, target: Items) -> Tensor:
        """MMD² between target items and as many auxiliary ones, weighted by matched mass."""
        z = own.z[: len(target.z)]
        share = None
        if own.weight is not None:
            share = own.weight[: len(z)]
            share = share / share.sum()
        return alignment_loss(z, target.z, self.widths, weight=share)


class Objective:
    """C: its terms by name at each step; their sum is what a step goes down."""

    def __init__(self, *terms: Term) -> None:
        self.terms = terms

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for term in self.terms:
            found.update(term(batch, step))
        return found

    @property
    def regularised(self) -> bool:
        return any(isinstance(term, Quantization | Alignment) for term in self.terms)

    def without_regularizers(self) -> Objective:
        """L and I alone: what is left after a collapse."""
        kept = [term for term in self.terms if not isinstance(term, Quantization | Alignment)]
        return Objective(*kept)
