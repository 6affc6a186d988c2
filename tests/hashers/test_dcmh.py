"""DCMH with one code for both items of a pair, against loops of the published algorithm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from transhash.data.relation import GradedRelation, LabelRelation, Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers import make_hasher
from transhash.hashers.dcmh import DCMH
from transhash.hashers.training_loop import draw

from .worlds import World, dense

Matrix = npt.NDArray[np.float64]
N, BITS, BATCH, EPOCHS = 20, 8, 6, 3
RATE, FINAL_RATE = 0.05, 0.01
TEXTS = np.random.default_rng(4).permutation(N)  # the text of each image


def permuted_pairs() -> SparseRelation:
    return SparseRelation.from_pairs(
        [str(row) for row in range(N)], [str(row) for row in np.argsort(TEXTS)]
    )


def training_set(relation: Relation) -> TrainingSet:
    items = World(seed=1, dx=5, dy=7).draw(N)
    texts = np.empty_like(items.texts)
    texts[TEXTS] = items.texts
    return TrainingSet(items.images, texts, relation)


class Network:
    """One hidden layer with ReLU, and gradient descent by hand."""

    def __init__(self, tower: torch.nn.Module) -> None:
        arrays = [one.detach().double().numpy().copy() for one in tower.parameters()]
        self.weights, self.offset, self.out_weights, self.out_offset = arrays

    def outputs(self, rows: Matrix) -> Matrix:
        hidden = np.maximum(rows @ self.weights.T + self.offset, 0)
        return hidden @ self.out_weights.T + self.out_offset

    def step(self, rows: Matrix, gradient: Matrix, rate: float) -> None:
        hidden = np.maximum(rows @ self.weights.T + self.offset, 0)
        below = (gradient @ self.out_weights) * (hidden > 0)
        self.out_weights -= rate * gradient.T @ hidden
        self.out_offset -= rate * gradient.sum(axis=0)
        self.weights -= rate * below.T @ rows
        self.offset -= rate * below.sum(axis=0)


def scaled(rows: npt.NDArray[np.float32]) -> Matrix:
    centered = rows - rows.mean(axis=0, dtype=np.float64)
    return np.asarray(centered / centered.std())


def published_outputs(hasher: DCMH, training: TrainingSet) -> tuple[Matrix, Matrix]:
    """Return F(x) and G(y) after training by the published algorithm, γ = η = 1.

    B holds the codes of the images, s[i, j] relates image i to text j, and the text of image i is
    TEXTS[i].
    """
    towers = hasher.build_towers(training.images.shape[1:], training.texts.shape[1:])
    networks = Network(towers["image"]), Network(towers["text"])
    rows = scaled(training.images), scaled(training.texts)
    generator = torch.Generator().manual_seed(hasher.seed)
    buffers = [torch.randn(N, BITS, generator=generator).double().numpy() for _ in range(2)]
    s = dense(training.relation)
    step = 0
    for epoch in range(EPOCHS):
        b = np.sign(buffers[0] + buffers[1][TEXTS])
        rate = RATE + (FINAL_RATE - RATE) * epoch / EPOCHS
        for own, other in ((0, 1), (1, 0)):
            for _ in range(N // BATCH):
                step += 1
                batch = np.unique(draw(N, BATCH, hasher.seed, step, 0))
                z = networks[own].outputs(rows[own][batch])
                buffers[own][batch] = z
                theta = z @ buffers[other].T / 2
                related = s[batch] if own == 0 else s[:, batch].T
                codes = b[batch] if own == 0 else b[np.argsort(TEXTS)[batch]]
                gradient = (1 / (1 + np.exp(-theta)) - related) @ buffers[other] / 2
                gradient += 2 * (z - codes) + 2 * buffers[own].sum(axis=0)
                networks[own].step(rows[own][batch], gradient / (len(batch) * N), rate)
    return networks[0].outputs(rows[0]), networks[1].outputs(rows[1])


def published(**settings: object) -> DCMH:
    hasher = make_hasher(
        "DCMH-published", bits=BITS, seed=2, image_hidden=(6,), text_hidden=(5,),
        epochs=EPOCHS, batch_size=BATCH, learning_rate=RATE, final_learning_rate=FINAL_RATE,
        **settings,
    )  # fmt: skip
    assert isinstance(hasher, DCMH)
    return hasher


def labels_with_pairs() -> GradedRelation:
    classes = np.eye(4, dtype=bool)[np.arange(N) % 4]
    text_classes = np.empty_like(classes)
    text_classes[TEXTS] = classes
    return GradedRelation(LabelRelation(classes, text_classes), permuted_pairs())


@pytest.mark.parametrize("relate", [permuted_pairs, labels_with_pairs])
def test_training_equals_loops_of_the_published_algorithm(
    relate: Callable[[], Relation],
) -> None:
    training = training_set(relate())
    hasher = published().fit(training)
    for z, expected in zip(
        (hasher.project_images(training.images), hasher.project_texts(training.texts)),
        published_outputs(published(), training),
        strict=True,
    ):
        np.testing.assert_allclose(z, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "relation",
    [
        LabelRelation.from_classes(np.arange(N) % 4, np.arange(N) % 4),
        SparseRelation.from_pairs([str(row // 2) for row in range(N)], [str(r) for r in range(N)]),
        SparseRelation.from_pairs([str(row) for row in range(N)], ["0"] * N),
    ],
    ids=["labels", "two images of a text", "one image of all texts"],
)
def test_items_that_are_not_in_pairs_are_refused(relation: Relation) -> None:
    with pytest.raises(DataError, match="shared_code"):
        published().fit(training_set(relation))
    assert make_hasher("DCMH", bits=8, epochs=1).fit(training_set(relation)) is not None


def test_more_texts_than_images_are_refused() -> None:
    training = training_set(permuted_pairs())
    some = np.arange(N - 1)
    fewer = TrainingSet(
        training.images[some], training.texts, training.relation.subset(some, np.arange(N))
    )
    with pytest.raises(DataError, match=f"{N - 1} images and {N} texts"):
        published().fit(fewer)
