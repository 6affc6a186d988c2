"""The batch of one step: images by the network, texts by the teacher."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from transhash.data.training import TrainingSet
from transhash.features.backbone import Stages
from transhash.hashers.deep import Device
from transhash.hashers.fine_tuning.head import ImageHead
from transhash.hashers.fine_tuning.lessons import Lessons
from transhash.hashers.fine_tuning.settings import FineTuning
from transhash.hashers.fine_tuning.views import ViewDraw, half_precision
from transhash.hashers.thn.batches import Batch, Items, Pairs
from transhash.hashers.training import draw
from transhash.hashers.world import World


class TaughtBatches:
    """What the teacher says on the device, and the batch of each step."""

    def __init__(
        self,
        asked: FineTuning,
        training: TrainingSet,
        lessons: Lessons,
        pictures: Sequence[ViewDraw],
        device: Device,
    ) -> None:
        self.asked, self.device, self.pictures = asked, device, pictures
        self.pairs = Pairs(
            training.relation, lessons.calibration,
            rows=asked.batch, columns=asked.text_batch, seed=asked.seed,
        )  # fmt: skip
        self.images = torch.tanh(device.tensor(lessons.images))
        self.texts = torch.tanh(device.tensor(lessons.texts))
        self.target_images, self.target_texts = (
            None if z is None else torch.tanh(device.tensor(z))
            for z in (lessons.target_images, lessons.target_texts)
        )
        weight = lessons.image_weight
        self.weight = None if weight is None else device.tensor(weight)

    def at(self, step: int, modules: nn.ModuleDict, first: int, world: World) -> Batch:
        """Drawn by seed and step alone; images by the network, texts by the teacher."""
        asked, seed = self.asked, self.asked.seed
        rows, columns = self.pairs.draw(step)
        drawn = [rows]
        if self.target_images is not None:
            drawn.append(draw(len(self.target_images), asked.target_batch, seed, step, 2))
        share = slice(world.rank, None, world.size)  # as World.share
        inputs = [
            part.at(where, share, [seed, step, 16 + stream])
            for stream, (part, where) in enumerate(zip(self.pictures, drawn, strict=True))
        ]
        stages, head = modules["stages"], modules["head"]
        assert isinstance(stages, Stages)
        assert isinstance(head, ImageHead)
        with half_precision(self.device):
            found = stages.above(torch.cat(inputs), first)
        parts = torch.split(found.float(), [len(part) for part in inputs])
        z = [world.gather(torch.tanh(head(part, i > 0))) for i, part in enumerate(parts)]
        where = [self.device.rows(one) for one in drawn]
        s, known = self.pairs.relation.block(rows, columns)
        rate = self.pairs.rate_of(s, known)
        weight = None if self.weight is None else self.weight[where[0]]
        texts = self.texts[self.device.rows(columns)]
        target_texts = target_images = None
        if self.target_images is not None:
            target_images = Items(self.target_images[where[1]], z[1])
        if self.target_texts is not None:
            some = draw(len(self.target_texts), asked.text_batch, seed, step, 3)
            y = self.target_texts[self.device.rows(some)]
            target_texts = Items(y, y)
        return Batch(
            Items(self.images[where[0]], z[0], weight),
            Items(texts, texts),
            target_images,
            target_texts,
            self.device.tensor(s),
            None if known is None else self.device.tensor(known),
            rate,
            self.pairs.probability(rate),
        )
