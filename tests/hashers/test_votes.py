"""A second fit with votes: better on the kind that was voted on, and no worse elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from transhash.data.feedback import FeedbackRelation
from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.hashers import THN

KINDS, NEW, ASKED = 10, 2, 8  # the bridge knows nothing of the last two kinds
BRIDGE, EACH = 40, 24  # items of a kind in the bridge and in the target
_Rows = npt.NDArray[np.int64]


@dataclass
class World:
    """Two views of some kinds; the target lies elsewhere and has kinds that the bridge has not."""

    seed: int
    kind: str

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        centres = rng.normal(size=(KINDS, 24)), rng.normal(size=(KINDS, 20))
        shifts = 0.7 * rng.normal(size=24), 0.7 * rng.normal(size=20)
        known = np.repeat(np.arange(KINDS - NEW), BRIDGE)
        self.kinds = np.repeat(np.arange(KINDS), EACH)

        def drawn(view: int, of: _Rows, far: float) -> npt.NDArray[np.float32]:
            noise = 1.2 * rng.normal(size=(len(of), centres[view].shape[1]))
            return (centres[view][of] + noise + far * shifts[view]).astype(np.float32)

        ids = [str(i) for i in range(len(known))]
        self.relation: Relation = SparseRelation.from_pairs(ids, ids)
        if self.kind == "labels":
            self.relation = LabelRelation.of_classes(known, known)
        self.x, self.y = drawn(0, known, 0), drawn(1, known, 0)
        self.target_x, self.target_y = drawn(0, self.kinds, 1), drawn(1, self.kinds, 1)

    def distances(self, votes: dict[tuple[int, int], int]) -> npt.NDArray[np.int64]:
        """Of target texts and images, by a fit with votes on such pairs (image, text)."""
        images, texts = (sorted({pair[side] for pair in votes}) for side in (0, 1))
        relation = self.relation
        if votes:
            placed = {(images.index(i), texts.index(j)): vote for (i, j), vote in votes.items()}
            relation = FeedbackRelation.extend(relation, placed, len(images), len(texts))
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

    def precision(
        self, distances: npt.NDArray[np.int64], encode_queries: npt.NDArray[np.bool_]
    ) -> float:
        """P@10 of asking items."""
        first = np.argsort(distances, axis=1, kind="stable")[:, :10]
        right = self.kinds[first] == self.kinds[:, None]
        return float(right[encode_queries].mean())


@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_votes_raise_precision_of_the_voted_kind_and_cost_nothing_elsewhere(kind: str) -> None:
    gains = []
    for seed in range(3):
        world = World(seed, kind)
        new = world.kinds >= KINDS - NEW
        before = world.distances({})
        # A person types some texts of the new kinds and judges the first ten pictures of each.
        typed = np.flatnonzero(new).reshape(NEW, EACH)[:, :ASKED].ravel()
        first = np.argsort(before, axis=1, kind="stable")[:, :10]
        votes = {
            (int(i), int(text)): int(world.kinds[i] == world.kinds[text])
            for text in typed
            for i in first[text]
        }
        after = world.distances(votes)
        # Neither typed texts nor voted pictures ask: no pair that was voted on is scored.
        texts = ~np.isin(np.arange(len(new)), typed)
        images = ~np.isin(np.arange(len(new)), [i for i, _ in votes])
        gains.append(
            [
                world.precision(now, encode_queries & group)
                - world.precision(then, encode_queries & group)
                for then, now, encode_queries in (
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
