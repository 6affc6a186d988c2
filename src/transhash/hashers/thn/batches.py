"""The batch of one training step: drawn items, tower outputs and their relations."""

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

_Part = tuple[Tensor, Rows, Tensor | None]  # all inputs, the rows drawn, all MMD weights


@dataclass(frozen=True)
class Items:
    """Items of one modality and one domain."""

    inputs: Tensor  # (n, k) inputs of the tower
    z: Tensor  # (n, b) = tanh(fch)
    weight: Tensor | None = None  # (n,) in MMD


@dataclass(frozen=True)
class Batch:
    """All that the terms of C depend on."""

    images: Items
    texts: Items
    target_images: Items | None
    target_texts: Items | None
    s: Tensor  # (n, m) relation of images and texts
    known: Tensor | None  # 0/1 mask of s; None: all are known
    positive_rate: float  # fraction of related pairs
    # P(s = 1) of pairs from the inputs of the towers, if it could be calibrated
    probability: Callable[[Tensor, Tensor], Tensor] | None


class PairSampler:
    """Draws the pairs of each step, and calibrates the probability that others are related."""

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
        self.positive_rate = relation.positives / relation.known
        n, m = relation.shape
        # Unlike labels, pairs and clicks are too rare to occur in a batch by chance.
        self.sparse = relation.positives / (n * m) * columns < 1.0

    def draw(self, step: int) -> tuple[Rows, Rows]:
        """Draw by seed and step alone, so that resuming is exact."""
        n, m = self.relation.shape
        rows = draw(n, self.rows, self.seed, step, 0)
        columns = draw(m, self.columns, self.seed, step, 1)
        if self.sparse:  # half of the texts are partners of the images
            count = min(self.rows, self.columns // 2)
            rng = np.random.default_rng([self.seed, step, 4])
            columns[:count] = self.relation.sample_partners(rows[:count], rng)
        return rows, columns

    def batch_rate(self, s: npt.NDArray[Any], known: npt.NDArray[Any] | None) -> float:
        """Return the fraction of related pairs, of the batch if it has more than the relation."""
        if not self.sparse:
            return self.positive_rate
        return float(s.mean() if known is None else s.sum() / max(known.sum(), 1.0))

    def probability(self, batch_rate: float) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return a function from inputs of pairs in the batch to P(s = 1), if calibrated."""
        if self.calibration is None:
            return None
        slope, offset = self.calibration
        # Bayes: a higher rate of related pairs in the batch shifts the log odds of all its pairs.
        shifted = offset + (_logit(batch_rate) - _logit(self.positive_rate))

        def probability(x: Tensor, y: Tensor) -> Tensor:
            return torch.sigmoid(slope * (normalize(x, dim=1) @ normalize(y, dim=1).T) + shifted)

        return probability


class Batches:
    """The tower inputs on the training device, and the batch of each step."""

    def __init__(
        self,
        inputs: TowerInputs,
        relation: Relation,
        device: Device,
        *,
        size: int,
        target_size: int,
        seed: int,
        text_size: int | None = None,  # if not `size`
        target_text_size: int | None = None,
    ) -> None:
        self.images, self.texts = device.tensor(inputs.images), device.tensor(inputs.texts)
        self.target_images = _optional(device, inputs.target_images)
        self.target_texts = _optional(device, inputs.target_texts)
        self.image_weight = _optional(device, inputs.image_weight)
        self.text_weight = _optional(device, inputs.text_weight)
        self.pairs = PairSampler(
            relation, inputs.calibration, rows=size, columns=text_size or size, seed=seed
        )
        self.relation, self.device, self.seed = relation, device, seed
        self.target_size, self.target_text_size = target_size, target_text_size or target_size

    def batch_at(self, step: int, modules: nn.ModuleDict, world: World) -> Batch:
        """Return the batch of a step, with the activations of all processes."""
        rows, columns = self.pairs.draw(step)
        image_parts = [(self.images, rows, self.image_weight)]
        text_parts = [(self.texts, columns, self.text_weight)]
        if self.target_images is not None:
            target_rows = draw(len(self.target_images), self.target_size, self.seed, step, 2)
            image_parts.append((self.target_images, target_rows, None))
        if self.target_texts is not None:
            target_rows = draw(len(self.target_texts), self.target_text_size, self.seed, step, 3)
            text_parts.append((self.target_texts, target_rows, None))
        z_images = self.encode("image", image_parts, step, modules, world)
        z_texts = self.encode("text", text_parts, step, modules, world)
        images, *target_images = self._items(image_parts, z_images)
        texts, *target_texts = self._items(text_parts, z_texts)
        s, known = self.relation.block(rows, columns)
        rate = self.pairs.batch_rate(s, known)
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

    def encode(
        self, name: str, parts: list[_Part], step: int, modules: nn.ModuleDict, world: World
    ) -> list[Tensor]:
        """Return tanh(fch) of the rows of each part, from one pass, gathered over processes."""
        shares = [inputs[self.device.rows(world.share(rows))] for inputs, rows, _ in parts]
        z = torch.tanh(modules[name](torch.cat(shares) if len(shares) > 1 else shares[0]).float())
        return [world.gather(part) for part in torch.split(z, [len(share) for share in shares])]

    def _items(self, parts: list[_Part], activations: list[Tensor]) -> list[Items]:
        items = []
        for (inputs, rows, weight), z in zip(parts, activations, strict=True):
            where = self.device.rows(rows)
            items.append(Items(inputs[where], z, None if weight is None else weight[where]))
        return items


def _optional(device: Device, array: npt.NDArray[Any] | None) -> Tensor | None:
    return None if array is None else device.tensor(array)


def _logit(rate: float) -> float:
    rate = min(max(rate, 1e-6), 1 - 1e-6)
    return math.log(rate / (1 - rate))
