"""C = L + λQ + µ(D_q + D_d) on the batch of one step, from THN's settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from transhash.data.relation import Relation, Rows
from transhash.hashers.losses import (
    alignment_loss,
    inner_product_loss,
    pair_weights,
    quantization_loss,
    relation_loss,
)
from transhash.hashers.thn.transfer import Inputs
from transhash.hashers.training import draw
from transhash.hashers.world import World

if TYPE_CHECKING:
    from transhash.hashers.thn.thn import THN


class Objective:
    """Inputs on the training device, the batches drawn from them, and the terms of C."""

    def __init__(self, thn: THN, inputs: Inputs, relation: Relation) -> None:
        self.thn, self.relation = thn, relation
        self.images = thn.tensor(inputs.images)
        self.texts = thn.tensor(inputs.texts)
        self.has_target = False
        if inputs.target_images is not None and inputs.target_texts is not None:
            self.has_target = True
            self.target_images = thn.tensor(inputs.target_images)
            self.target_texts = thn.tensor(inputs.target_texts)
        self.calibration = inputs.calibration
        self.image_weight = _on(thn, inputs.image_weight)
        self.text_weight = _on(thn, inputs.text_weight)
        self.rate = relation.positives / relation.known
        n, m = relation.shape
        # Pairs and clicks are too rare to meet by chance in a batch; labels are not.
        self.sparse = relation.positives / (n * m) * thn.batch < 1.0
        self.regularised = True  # False after a rescue: Q and D are left out

    def terms(self, towers: nn.ModuleDict, step: int, world: World) -> dict[str, Tensor]:
        """The weighted terms by name; their sum is C."""
        thn = self.thn
        rows, columns = self._draw_pairs(step)
        batch_x, batch_y = [(self.images, rows)], [(self.texts, columns)]
        if self.has_target:
            t_rows = draw(len(self.target_images), thn.target_batch, thn.seed, step, 2)
            t_columns = draw(len(self.target_texts), thn.target_batch, thn.seed, step, 3)
            batch_x.append((self.target_images, t_rows))
            batch_y.append((self.target_texts, t_columns))
        z_x, *far_x = self._activations(towers["image"], batch_x, world)
        z_y, *far_y = self._activations(towers["text"], batch_y, world)
        s, known = self.relation.block(rows, columns)
        rate = self._batch_rate(s, known)
        weights = pair_weights(rate, thn.balanced)
        related = thn.tensor(s)
        if thn.soft_share and self.calibration:
            x, y = self.images[thn.rows(rows)], self.texts[thn.rows(columns)]
            guess = self._probability(x, y, rate)
            related = (1 - thn.soft_share) * related + thn.soft_share * guess
        terms = {"relation": self._relation(z_x, z_y, related, weights, _on(thn, known))}
        if self.regularised and thn.quantization_weight and step >= self._start_of_q:
            all_x, all_y = z_x, z_y
            if thn.quantize_target and self.has_target:
                all_x, all_y = torch.cat([z_x, *far_x]), torch.cat([z_y, *far_y])
            terms["quantization"] = thn.quantization_weight * (
                quantization_loss(all_x) + quantization_loss(all_y)
            )
        if not self.has_target:
            return terms
        (t_x,), (t_y,) = far_x, far_y
        if thn.inherited_weight and self.calibration:
            x, y = self.images[thn.rows(rows)], self.texts[thn.rows(columns)]
            u = self.target_images[thn.rows(t_rows)]
            v = self.target_texts[thn.rows(t_columns)]
            inherited = (
                self._relation(t_x, z_y, self._probability(u, y, rate), weights)
                + self._relation(z_x, t_y, self._probability(x, v, rate), weights)
                + self._relation(t_x, t_y, self._probability(u, v, rate), weights)
            )
            terms["inherited"] = thn.inherited_weight / 3 * inherited
        mu = self._alignment_weight(step)
        if mu:
            terms["alignment_images"] = mu * self._aligned(z_x, t_x, self.image_weight, rows)
            terms["alignment_texts"] = mu * self._aligned(z_y, t_y, self.text_weight, columns)
        return terms

    def _relation(
        self,
        z_x: Tensor,
        z_y: Tensor,
        s: Tensor,
        weights: tuple[float, float],
        known: Tensor | None = None,
    ) -> Tensor:
        if self.thn.loss == "inner-product":
            return inner_product_loss(z_x, z_y, s, weights, known)
        return relation_loss(z_x, z_y, s, weights, known, self.thn.scale())

    def _aligned(self, z: Tensor, target: Tensor, weight: Tensor | None, rows: Rows) -> Tensor:
        """MMD² between target items and as many auxiliary ones, weighted by matched mass."""
        z = z[: len(target)]
        share = None
        if weight is not None:
            share = weight[self.thn.rows(rows[: len(z)])]
            share = share / share.sum()
        return alignment_loss(z, target, self.thn.kernel_widths, weight=share)

    def _activations(
        self, tower: nn.Module, parts: list[tuple[Tensor, Rows]], world: World
    ) -> list[Tensor]:
        """tanh(fch) of each part's rows, in one pass of the tower, gathered over processes."""
        shares = [inputs[self.thn.rows(world.share(rows))] for inputs, rows in parts]
        z = torch.tanh(tower(torch.cat(shares) if len(shares) > 1 else shares[0]).float())
        sizes = [len(share) for share in shares]
        return [world.gather(part) for part in torch.split(z, sizes)]

    def _probability(self, x: Tensor, y: Tensor, rate: float) -> Tensor:
        """Calibrated P(s = 1) of pairs, from the cosine of their canonical coordinates."""
        assert self.calibration is not None
        slope, offset = self.calibration
        # Bayes: a batch drawn richer in related pairs shifts the log odds of all its pairs.
        offset += _logit(rate) - _logit(self.rate)
        return torch.sigmoid(slope * (normalize(x, dim=1) @ normalize(y, dim=1).T) + offset)

    def _draw_pairs(self, step: int) -> tuple[Rows, Rows]:
        thn = self.thn
        n, m = self.relation.shape
        rows = draw(n, thn.batch, thn.seed, step, 0)
        columns = draw(m, thn.batch, thn.seed, step, 1)
        if self.sparse:  # half the texts are partners
            half = thn.batch // 2
            rng = np.random.default_rng([thn.seed, step, 4])
            columns[:half] = self.relation.partners(rows[:half], rng)
        return rows, columns

    def _batch_rate(self, s: npt.NDArray[Any], known: npt.NDArray[Any] | None) -> float:
        """Share of related pairs: of the whole relation, or of a batch drawn richer than it."""
        if not self.sparse:
            return self.rate
        return float(s.mean() if known is None else s.sum() / max(known.sum(), 1.0))

    @property
    def _start_of_q(self) -> float:
        return self.thn.quantization_start * self.thn.steps

    def _alignment_weight(self, step: int) -> float:
        """µ at a step: it grows over the first steps, when activations still mean nothing."""
        if not self.regularised:
            return 0.0
        ramp = self.thn.alignment_ramp * self.thn.steps
        return self.thn.alignment_weight * (min(1.0, step / ramp) if ramp else 1.0)


def _on(thn: THN, array: npt.NDArray[Any] | None) -> Tensor | None:
    return None if array is None else thn.tensor(array)


def _logit(rate: float) -> float:
    rate = min(max(rate, 1e-6), 1 - 1e-6)
    return math.log(rate / (1 - rate))
