"""The batch of one step: which items are drawn, what the towers give, what is known of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from transhash.data.relation import Relation, Rows
from transhash.hashers.deep import Device
from transhash.hashers.thn.input_layer import TowerInputs
from transhash.hashers.training_loop import draw
from transhash.hashers.world import World


@dataclass(frozen=True)
class Items:
    """Some items of one modality and one domain."""

    inputs: Tensor  # (n, k), what the tower got
    z: Tensor  # (n, b) = tanh(fch), what it gave
    weight: Tensor | None = None  # (n,) matched target mass, for MMD


@dataclass(frozen=True)
class Batch:
    """All that the terms of C look at."""

    images: Items
    texts: Items
    target_images: Items | None
    target_texts: Items | None
    s: Tensor  # (n, m) relation of images and texts
    known: Tensor | None  # 0/1 mask of s; None: all are known
    rate: float  # share of related pairs
    # P(s = 1) of pairs from the towers' inputs, where it could be calibrated
    probability: Callable[[Tensor, Tensor], Tensor] | None


class PairSampler:
    """The pairs of each step: which items, what is known of them, how likely others are related."""

    def __init__(
        self,
        relation: Relation,
        calibration: tuple[float, float] | None,
        *,
        rows: int,
        columns: int,
        seed: int,
    ) -> None:
        self.relation, self.calibration, self.seed = relation, calibration, seed
        self.rows, self.columns = rows, columns
        self.rate = relation.positives / relation.known
        n, m = relation.shape
        # Pairs and clicks are too rare to meet by chance in a batch; labels are not.
        self.sparse = relation.positives / (n * m) * columns < 1.0

    def draw(self, step: int) -> tuple[Rows, Rows]:
        """By seed and step alone, so that resuming is exact."""
        n, m = self.relation.shape
        rows = draw(n, self.rows, self.seed, step, 0)
        columns = draw(m, self.columns, self.seed, step, 1)
        if self.sparse:  # half the texts are partners
            some = min(self.rows, self.columns // 2)
            rng = np.random.default_rng([self.seed, step, 4])
            columns[:some] = self.relation.sample_partners(rows[:some], rng)
        return rows, columns

    def rate_of(self, s: npt.NDArray[Any], known: npt.NDArray[Any] | None) -> float:
        """Share of related pairs: of the whole relation, or of a batch drawn richer than it."""
        if not self.sparse:
            return self.rate
        return float(s.mean() if known is None else s.sum() / max(known.sum(), 1.0))

    def probability(self, rate: float) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Calibrated P(s = 1) of pairs in a batch of that rate, from the cosine of their inputs."""
        if self.calibration is None:
            return None
        slope, offset = self.calibration
        # Bayes: a batch drawn richer in related pairs shifts the log odds of all its pairs.
        shifted = offset + (_logit(rate) - _logit(self.rate))

        def probability(x: Tensor, y: Tensor) -> Tensor:
            return torch.sigmoid(slope * (normalize(x, dim=1) @ normalize(y, dim=1).T) + shifted)

        return probability


class Batches:
    """Inputs on the training device, and the batch of each step."""

    def __init__(
        self,
        inputs: TowerInputs,
        relation: Relation,
        device: Device,
        *,
        size: int,
        target_size: int,
        seed: int,
    ) -> None:
        self.images, self.texts = device.tensor(inputs.images), device.tensor(inputs.texts)
        self.target_images = _optional(device, inputs.target_images)
        self.target_texts = _optional(device, inputs.target_texts)
        self.image_weight = _optional(device, inputs.image_weight)
        self.text_weight = _optional(device, inputs.text_weight)
        self.pairs = PairSampler(relation, inputs.calibration, rows=size, columns=size, seed=seed)
        self.relation, self.device = relation, device
        self.target_size, self.seed = target_size, seed

    def at(self, step: int, towers: nn.ModuleDict, world: World) -> Batch:
        """Drawn by seed and step alone, so that resuming is exact; activations of all processes."""
        rows, columns = self.pairs.draw(step)
        image_parts = [(self.images, rows, self.image_weight)]
        text_parts = [(self.texts, columns, self.text_weight)]
        if self.target_images is not None:
            drawn = draw(len(self.target_images), self.target_size, self.seed, step, 2)
            image_parts.append((self.target_images, drawn, None))
        if self.target_texts is not None:
            drawn = draw(len(self.target_texts), self.target_size, self.seed, step, 3)
            text_parts.append((self.target_texts, drawn, None))
        images, *target_images = self._items(towers["image"], image_parts, world)
        texts, *target_texts = self._items(towers["text"], text_parts, world)
        s, known = self.relation.block(rows, columns)
        rate = self.pairs.rate_of(s, known)
        return Batch(
            images,
            texts,
            target_images[0] if target_images else None,
            target_texts[0] if target_texts else None,
            self.device.tensor(s),
            _optional(self.device, known),
            rate,
            self.pairs.probability(rate),
        )

    def _items(
        self, tower: nn.Module, parts: list[tuple[Tensor, Rows, Tensor | None]], world: World
    ) -> list[Items]:
        """tanh(fch) of each part's rows, in one pass of the tower, gathered over processes."""
        shares = [inputs[self.device.rows(world.share(rows))] for inputs, rows, _ in parts]
        z = torch.tanh(tower(torch.cat(shares) if len(shares) > 1 else shares[0]).float())
        gathered = [world.gather(part) for part in torch.split(z, [len(share) for share in shares])]
        items = []
        for (inputs, rows, weight), activations in zip(parts, gathered, strict=True):
            where = self.device.rows(rows)
            items.append(
                Items(inputs[where], activations, None if weight is None else weight[where])
            )
        return items


def _optional(device: Device, array: npt.NDArray[Any] | None) -> Tensor | None:
    return None if array is None else device.tensor(array)


def _logit(rate: float) -> float:
    rate = min(max(rate, 1e-6), 1 - 1e-6)
    return math.log(rate / (1 - rate))
