"""A small backbone, and images that it can learn to classify."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.features.backbone import Stages, extract_pixels
from transhash.features.decode import Pixels

SIZE, CLASSES = 16, 4


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class TinyStages(Stages):
    def __init__(self) -> None:
        super().__init__(_stage(3, 8, 2), _stage(8, 12, 2), _stage(12, 24, 1))

    def scale(self, pixels: Tensor) -> Tensor:
        return (pixels - 127.0) / 64.0


class TinyBackbone:
    """Three stages with random weights drawn by `seed`."""

    name = "tiny"
    size = SIZE
    device = "cpu"
    batch_size = 64

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def cache_key(self) -> str:
        return f"tiny:{self.seed}"

    def trainable(self) -> TinyStages:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return TinyStages().eval()

    def network(self) -> nn.Module:
        return self.trainable()

    def extract(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        return extract_pixels(self.network(), pixels, self.batch_size, self.device)


def draw_images(labels: npt.NDArray[np.int64], rng: np.random.Generator, light: int = 0) -> Pixels:
    """Draw noisy stripes of four directions; `light` makes another domain."""
    y, x = np.mgrid[:SIZE, :SIZE]
    waves = np.stack([x, y, x + y, x - y])[labels] + rng.integers(0, 6, (len(labels), 1, 1))
    stripes = np.where(waves % 6 < 3, 70, 160)[..., None].repeat(3, axis=3)
    noise = rng.normal(0, 30, stripes.shape)
    return np.clip(stripes + noise + light, 0, 255).astype(np.uint8)


class Scene:
    """Auxiliary and target images, features of texts, and their relation."""

    def __init__(self, kind: str = "labels", seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        own, other = rng.integers(0, CLASSES, (2, 80))
        self.labels, self.target_labels = own, other
        self.images, self.target_images = draw_images(own, rng), draw_images(other, rng, light=40)
        basis = rng.normal(size=(CLASSES, 20))
        texts, target_texts = (
            (basis[labels] + 0.5 * rng.normal(size=(len(labels), 20))).astype(np.float32)
            for labels in (own, other)
        )
        truth = np.eye(CLASSES, dtype=bool)[own]
        keys = [str(i) for i in range(len(own))]
        relation: Relation = LabelRelation(truth, truth)
        if kind == "pairs":
            relation = SparseRelation.from_pairs(keys, keys)
        elif kind == "clicks":
            pairs = [(i, (i + d) % 80) for i in range(80) for d in range(6)]
            relation = SparseRelation.from_triples(
                pairs, [float(own[i] == own[j]) for i, j in pairs], (80, 80)
            )
        backbone = TinyBackbone()
        self.training = TrainingSet(
            backbone.extract(self.images), texts, relation,
            backbone.extract(self.target_images), target_texts,
        )  # fmt: skip

    def files(self, folder: Any) -> tuple[list[Any], list[Any]]:
        """Write the images as PNG files."""
        from PIL import Image

        paths: tuple[list[Any], list[Any]] = ([], [])
        for k, part in enumerate((self.images, self.target_images)):
            for i, image in enumerate(part):
                path = folder / f"{k}-{i:03}.png"
                Image.fromarray(image).save(path)
                paths[k].append(path)
        return paths
