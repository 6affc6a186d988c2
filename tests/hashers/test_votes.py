"""A fit with votes is better on the classes that were voted on, and not worse on others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from transhash.data.feedback import FeedbackRelation
from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.hashers import THN

CLASSES, NEW, QUERIES = 10, 2, 8  # the last two classes are not in the auxiliary set
AUXILIARY, TARGET = 40, 24  # items of a class in the auxiliary and in the target set
_Rows = npt.NDArray[np.int64]


@dataclass
class World:
    """Two modalities of some classes; the target set is shifted and has additional classes."""

    seed: int
    supervision: str

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        centers = rng.normal(size=(CLASSES, 24)), rng.normal(size=(CLASSES, 20))
        shifts = 0.7 * rng.normal(size=24), 0.7 * rng.normal(size=20)
        known = np.repeat(np.arange(CLASSES - NEW), AUXILIARY)
        self.classes = np.repeat(np.arange(CLASSES), TARGET)

        def draw(modality: int, classes: _Rows, shift: float) -> npt.NDArray[np.float32]:
            noise = 1.2 * rng.normal(size=(len(classes), centers[modality].shape[1]))
            return (centers[modality][classes] + noise + shift * shifts[modality]).astype(
                np.float32
            )

        ids = [str(i) for i in range(len(known))]
        self.relation: Relation = SparseRelation.from_pairs(ids, ids)
        if self.supervision == "labels":
            self.relation = LabelRelation.from_classes(known, known)
        self.x, self.y = draw(0, known, 0), draw(1, known, 0)
        self.target_x, self.target_y = draw(0, self.classes, 1), draw(1, self.classes, 1)

    def distances(self, votes: dict[tuple[int, int], int]) -> npt.NDArray[np.int64]:
        """Return distances of target texts and images after a fit with votes by (image, text)."""
        images, texts = (sorted({pair[side] for pair in votes}) for side in (0, 1))
        relation = self.relation
        if votes:
            renumbered = {(images.index(i), texts.index(j)): vote for (i, j), vote in votes.items()}
            relation = FeedbackRelation.extend(relation, renumbered, len(images), len(texts))
        training = TrainingSet(
            np.concatenate([self.x, self.target_x[images]]) if votes else self.x,
            np.concatenate([self.y, self.target_y[texts]]) if votes else self.y,
            relation,
            self.target_x,
            self.target_y,
        )
        hasher = THN(bits=32, seed=self.seed, steps=100, batch_size=128, target_batch_size=64).fit(
            training
        )
        signs = [
            np.where(values > 0, 1, -1)
            for values in (
                hasher.project_texts(self.target_y),
                hasher.project_images(self.target_x),
            )
        ]
        return (32 - signs[0] @ signs[1].T) // 2

    def precision(self, distances: npt.NDArray[np.int64], queries: npt.NDArray[np.bool_]) -> float:
        """Return precision@10 of the queries."""
        first = np.argsort(distances, axis=1, kind="stable")[:, :10]
        correct = self.classes[first] == self.classes[:, None]
        return float(correct[queries].mean())


@pytest.mark.parametrize("supervision", ["labels", "pairs"])
def test_votes_raise_precision_of_the_voted_classes_only(supervision: str) -> None:
    gains = []
    for seed in range(3):
        world = World(seed, supervision)
        new = world.classes >= CLASSES - NEW
        before = world.distances({})
        # A user types some texts of the new classes and judges the first ten images of each.
        typed = np.flatnonzero(new).reshape(NEW, TARGET)[:, :QUERIES].ravel()
        first = np.argsort(before, axis=1, kind="stable")[:, :10]
        votes = {
            (int(i), int(text)): int(world.classes[i] == world.classes[text])
            for text in typed
            for i in first[text]
        }
        after = world.distances(votes)
        # Neither typed texts nor voted images are queries: no voted pair is scored.
        texts = ~np.isin(np.arange(len(new)), typed)
        images = ~np.isin(np.arange(len(new)), [i for i, _ in votes])
        gains.append(
            [
                world.precision(now, queries & group) - world.precision(then, queries & group)
                for then, now, queries in (
                    (before, after, texts),
                    (before.T, after.T, images),
                )
                for group in (new, ~new)
            ]
        )
    text_new, text_other, image_new, image_other = np.mean(gains, axis=0)
    assert text_new > 0.05
    assert image_new > 0.05
    assert text_other > -0.03
    assert image_other > -0.03
