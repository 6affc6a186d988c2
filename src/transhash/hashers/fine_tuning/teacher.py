"""The teacher of a fine-tuning: a fitted hasher's activations of all items, and a head like it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.data.training_set import Features, TrainingSet
from transhash.hashers.base import Array, Hasher
from transhash.hashers.thn.initialization import calibrate_relation
from transhash.hashers.thn.input_layer import TowerInputs
from transhash.hashers.thn.transfer import matched_weights, soft_match

Rows32 = npt.NDArray[np.float32]
_CHUNK_ROWS = 500  # target items matched at a time
_TEMPERATURE = 0.05  # of the matching, as in THN
_RIDGE = 1e-3  # relative to the mean variance of a feature


@dataclass(frozen=True)
class TeacherTargets:
    """(n, bits) projections of the teacher, and what training derives from them."""

    images: Rows32
    target_images: Rows32 | None
    inputs: TowerInputs  # tanh of the projections, their calibration and MMD weights

    @property
    def bits(self) -> int:
        return int(self.images.shape[1])


def teacher_targets(
    teacher: Hasher, training: TrainingSet, seed: int, use_target: bool
) -> TeacherTargets:
    """Return the projections that a hasher fitted on `training` gives its items."""
    images, texts = teacher.project_auxiliary(training.images, training.texts)
    target_images: Rows32 | None = None
    target_texts: Rows32 | None = None
    if use_target and training.target_images is not None:
        target_images = teacher.project_images(training.target_images)
    if use_target and training.target_texts is not None:
        target_texts = teacher.project_texts(training.target_texts)
    bits = teacher.relation_bits  # L would undo the residual bits
    images, texts = images[:, :bits], texts[:, :bits]
    target_images = None if target_images is None else target_images[:, :bits]
    target_texts = None if target_texts is None else target_texts[:, :bits]
    if not teacher.trained_with_tanh:
        images, target_images = _to_unit_scale(images, target_images)
        texts, target_texts = _to_unit_scale(texts, target_texts)
    images, texts = (np.asarray(part, np.float32) for part in (images, texts))
    weight = None
    if target_images is not None:
        weight = _mmd_weights(np.tanh(images), np.tanh(target_images))
    inputs = TowerInputs(
        _tanh(images),
        _tanh(texts),
        None if target_images is None else _tanh(target_images),
        None if target_texts is None else _tanh(target_texts),
        image_weight=weight,
        calibration=calibrate_relation(np.tanh(images), np.tanh(texts), training.relation, seed),
    )
    return TeacherTargets(images, target_images, inputs)


def _tanh(rows: Rows32) -> Rows32:
    return torch.tanh(torch.from_numpy(np.ascontiguousarray(rows))).numpy()


def _to_unit_scale(auxiliary: Array, target: Rows32 | None) -> tuple[Array, Rows32 | None]:
    scale = max(float(np.sqrt(np.square(auxiliary, dtype=np.float64).mean())), 1e-9)
    return auxiliary / scale, None if target is None else np.asarray(target / scale, np.float32)


def _mmd_weights(images: Rows32, target: Rows32) -> Rows32:
    x, x_target = images.astype(np.float64), target.astype(np.float64)
    total = np.zeros(len(x))
    for start in range(0, len(x_target), _CHUNK_ROWS):
        total += soft_match(x_target[start : start + _CHUNK_ROWS], x, _TEMPERATURE).sum(axis=0)
    return np.asarray(matched_weights(total / len(x_target)), np.float32)


class ImageHead(nn.Module):
    """A linear map from backbone rows to activations before tanh, used only in fine-tuning.

    The target domain has its own shift, like its own center in THN.
    """

    def __init__(self, weight: Tensor, bias: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.shift = nn.Parameter(shift)

    def forward(self, rows: Tensor, target: bool) -> Tensor:  # (n, d) -> (n, bits), before tanh
        z = rows @ self.weight + self.bias
        return z + self.shift if target else z


def fit_head(targets: TeacherTargets, images: Features, target: Features | None) -> ImageHead:
    """Return the head that best predicts the teacher's projections, by ridge regression."""
    x, z = images.astype(np.float64), targets.images.astype(np.float64)
    mean_x, mean_z = x.mean(axis=0), z.mean(axis=0)
    x, z = x - mean_x, z - mean_z
    if target is not None and targets.target_images is not None:
        # With its own intercept each domain is regressed around its own means.
        x_target, z_target = target.astype(np.float64), targets.target_images.astype(np.float64)
        target_mean_x, target_mean_z = x_target.mean(axis=0), z_target.mean(axis=0)
        x = np.concatenate([x, x_target - target_mean_x])
        z = np.concatenate([z, z_target - target_mean_z])
    gram = x.T @ x
    gram[np.diag_indices_from(gram)] += max(_RIDGE * float(np.trace(gram)) / len(gram), 1e-9)
    weight = np.linalg.solve(gram, x.T @ z)
    bias = mean_z - mean_x @ weight
    shift = np.zeros(z.shape[1])
    if target is not None and targets.target_images is not None:
        shift = target_mean_z - target_mean_x @ weight - bias
    return ImageHead(
        *(torch.from_numpy(array.astype(np.float32)) for array in (weight, bias, shift))
    )
