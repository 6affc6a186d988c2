"""What a fitted hasher teaches: activations of all items, and how likely a pair is related."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.data.training_set import Features, TrainingSet
from transhash.hashers.base import Array, Hasher
from transhash.hashers.thn import THN
from transhash.hashers.thn.initialization import calibrate_relation
from transhash.hashers.thn.transfer import soft_match

Rows32 = npt.NDArray[np.float32]
_SOME = 500  # target items matched at a time
_TEMPERATURE = 0.05  # of the matching, as in THN


@dataclass(frozen=True)
class TeacherTargets:
    """(n, bits) projections of the teacher; tanh of them are its activations."""

    images: Rows32
    texts: Rows32
    target_images: Rows32 | None
    target_texts: Rows32 | None
    calibration: tuple[float, float] | None  # P(s = 1) = sigmoid(a cos + c) of activations
    image_weight: Rows32 | None  # (n,) target mass matched with each auxiliary image

    @property
    def bits(self) -> int:
        return int(self.images.shape[1])


def teacher_targets(
    teacher: Hasher, training: TrainingSet, seed: int, use_target: bool
) -> TeacherTargets:
    """What a hasher fitted to `training` says of the items in it. No label is asked for."""
    images, texts = teacher.project_auxiliary(training.images, training.texts)
    targets: list[Rows32 | None] = [None, None]
    if use_target and training.target_images is not None:
        targets[0] = teacher.project_images(training.target_images)
    if use_target and training.target_texts is not None:
        targets[1] = teacher.project_texts(training.target_texts)
    if not isinstance(teacher, THN):  # its projections are made for tanh, others have any size
        images, targets[0] = _to_unit_size(images, targets[0])
        texts, targets[1] = _to_unit_size(texts, targets[1])
    else:  # bits that tell items of a class apart are not what L asks for
        images, texts = images[:, : teacher.tower_bits], texts[:, : teacher.tower_bits]
        targets = [None if part is None else part[:, : teacher.tower_bits] for part in targets]
    images, texts = (np.asarray(part, np.float32) for part in (images, texts))
    return TeacherTargets(
        images,
        texts,
        targets[0],
        targets[1],
        calibrate_relation(np.tanh(images), np.tanh(texts), training.relation, seed),
        None if targets[0] is None else _matched_mass(np.tanh(images), np.tanh(targets[0])),
    )


def _to_unit_size(own: Array, target: Rows32 | None) -> tuple[Array, Rows32 | None]:
    size = max(float(np.sqrt(np.square(own, dtype=np.float64).mean())), 1e-9)
    return own / size, None if target is None else np.asarray(target / size, np.float32)


def _matched_mass(images: Rows32, target: Rows32) -> Rows32:
    """Weights of auxiliary images in MMD: half even, half by the target mass matched with them."""
    own, other = images.astype(np.float64), target.astype(np.float64)
    mass = np.zeros(len(own))
    for start in range(0, len(other), _SOME):
        mass += soft_match(other[start : start + _SOME], own, _TEMPERATURE).sum(axis=0)
    return np.asarray(0.5 + 0.5 * mass * len(own) / len(other), np.float32)


# Rows of a backbone -> activations while it is trained; afterwards a hasher learns from rows.

_RIDGE = 1e-3  # relative to the mean size of a feature


class ImageHead(nn.Module):
    """Linear, with a shift of its own for the target domain, as THN has a centre of its own."""

    def __init__(self, weight: Tensor, bias: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.shift = nn.Parameter(shift)

    def forward(self, rows: Tensor, target: bool) -> Tensor:  # (n, d) -> (n, bits), before tanh
        z = rows @ self.weight + self.bias
        return z + self.shift if target else z


def fit_head(lessons: TeacherTargets, images: Features, target: Features | None) -> ImageHead:
    """The head that says most nearly what the teacher says, by ridge regression."""
    x, z = images.astype(np.float64), lessons.images.astype(np.float64)
    centre, aim = x.mean(axis=0), z.mean(axis=0)
    x, z = x - centre, z - aim
    shift = np.zeros(z.shape[1])
    if target is not None and lessons.target_images is not None:
        # With its own intercept each domain is regressed around its own means.
        more, wanted = target.astype(np.float64), lessons.target_images.astype(np.float64)
        target_centre, target_aim = more.mean(axis=0), wanted.mean(axis=0)
        x = np.concatenate([x, more - target_centre])
        z = np.concatenate([z, wanted - target_aim])
    gram = x.T @ x
    gram[np.diag_indices_from(gram)] += max(_RIDGE * float(np.trace(gram)) / len(gram), 1e-9)
    weight = np.linalg.solve(gram, x.T @ z)
    bias = aim - centre @ weight
    if target is not None and lessons.target_images is not None:
        shift = target_aim - target_centre @ weight - bias
    return ImageHead(_tensor(weight), _tensor(bias), _tensor(shift))


def _tensor(array: npt.NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))
