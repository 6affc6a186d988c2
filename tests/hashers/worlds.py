"""Synthetic data for hashers: classes, a shared latent, and nuisance and noise per modality."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.hashers import find_method

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """Items of both modalities; image i and text i share a label and a latent."""

    images: Array
    texts: Array
    labels: npt.NDArray[np.int64]

    def one_hot(self, classes: int) -> npt.NDArray[np.bool_]:
        return np.eye(classes, dtype=bool)[self.labels]


class World:
    def __init__(
        self,
        seed: int = 0,
        classes: int = 8,
        dx: int = 64,
        dy: int = 100,
        latent: int = 12,
        gap: float = 0.0,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.classes, self.dx, self.dy = classes, dx, dy
        self.means = self.rng.standard_normal((classes, latent))
        self.maps = [self.rng.standard_normal((latent, d)) for d in (dx, dy)]
        self.nuisance = [self.rng.standard_normal((20, d)) for d in (dx, dy)]
        self.gap = gap
        if gap:  # the target domain: latents of each modality are shifted and warped
            moves = self.rng.standard_normal((2, latent))
            self.moves = moves / np.linalg.norm(moves, axis=1, keepdims=True) * latent**0.5
            self.warps = 0.2 * self.rng.standard_normal((2, latent, latent))

    def draw(self, n: int, target: bool = False) -> Sample:
        labels = self.rng.permutation(np.arange(n) % self.classes)
        shared = self.means[labels] + 0.9 * self.rng.standard_normal((n, self.means.shape[1]))
        latents = [shared, shared]
        if target and self.gap:
            latents = [
                shared + self.gap * (move + shared @ warp)
                for move, warp in zip(self.moves, self.warps, strict=True)
            ]
        images, texts = (
            u @ a
            + self.rng.standard_normal((n, 20)) @ b
            + 0.5 * self.rng.standard_normal((n, a.shape[1]))
            for u, a, b in zip(latents, self.maps, self.nuisance, strict=True)
        )
        return Sample(images.astype(np.float32), texts.astype(np.float32), labels)

    def training(self, n: int = 300, sort: str = "labels", targets: int = 60) -> TrainingSet:
        """Return unpaired items related by label, pairs, or clicks."""
        first, second = self.draw(n), self.draw(n)
        texts = second.texts if sort == "labels" else first.texts
        relation: Relation
        if sort == "labels":
            relation = LabelRelation(first.one_hot(self.classes), second.one_hot(self.classes))
        elif sort == "pairs":
            keys = [str(i) for i in range(n)]
            relation = SparseRelation.from_pairs(keys, keys)
        else:
            # Clicks: each image with ten texts, related if of the same class.
            clicks = [(i, int(j)) for i in range(n) for j in self.rng.choice(n, 10, replace=False)]
            clicks += [(i, i) for i in range(n)]
            values = [float(first.labels[i] == first.labels[j]) for i, j in clicks]
            relation = SparseRelation.from_triples(clicks, values, (n, n))
        target = self.draw(targets, target=True)
        return TrainingSet(first.images, texts, relation, target.images, target.texts)

    def related(self, n: int = 200, target: bool = False) -> AuxiliarySet:
        """Return new items related by label, to measure on."""
        x, y = self.draw(n, target), self.draw(n, target)
        relation = LabelRelation(x.one_hot(self.classes), y.one_hot(self.classes))
        return AuxiliarySet(x.images, y.texts, relation)


def relation_sort(method: str) -> str:
    """Return a sort of relation that the method learns from."""
    return "pairs" if find_method(method).fixed_settings.get("shared_code") else "labels"


def dense(relation: Relation) -> npt.NDArray[np.float64]:
    rows, columns = relation.shape
    return relation.block(np.arange(rows), np.arange(columns))[0].astype(np.float64)
