"""The batch of one fine-tuning step: image views through the network, targets of the teacher."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from transhash.data.collection import ImageSource
from transhash.data.relation import Relation, Rows
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.features.backbone import Stages
from transhash.features.cache import cache_folder
from transhash.features.decode import ImageReader, Pixels
from transhash.features.decode_processes import decode_batches, default_workers
from transhash.hashers.base import Array, Hasher
from transhash.hashers.deep import Device
from transhash.hashers.thn.batches import Batches
from transhash.hashers.thn.initialization import calibrate_relation
from transhash.hashers.thn.input_layer import TowerInputs
from transhash.hashers.thn.transfer import matched_weights, soft_match
from transhash.hashers.world import World
from transhash.progress import Track
from transhash.threads import cpu_count

if TYPE_CHECKING:
    from transhash.hashers.fine_tuning.loop import FineTuning

_MAX_MEMORY_BYTES = 4 << 30  # larger arrays are in a file
_CHUNK_IMAGES = 16  # in one pass of the lower stages on a CPU
_CHUNK_IMAGES_CUDA = 256
_STATISTICS_BATCH = 64
_MIN_STATISTICS_BATCH = 16
_CHUNK_ROWS = 500  # target items matched at a time
_TEMPERATURE = 0.05  # of the matching, as in THN
_RIDGE = 1e-3  # relative to the mean variance of a feature

Rows32 = npt.NDArray[np.float32]


def allocate(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an empty array, in memory or, if large, in an unnamed file in the cache folder."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size <= _MAX_MEMORY_BYTES:
        return np.empty(shape, dtype)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache_folder()) as file:  # deleted when this process ends
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not SIGBUS
        else:
            file.truncate(size)
        return np.memmap(file, dtype, "r+", shape=shape)


def decode_all(
    sources: Sequence[ImageSource] | Pixels, size: int, device: str, track: Track
) -> Pixels:
    """Return (n, size, size, 3) bytes of readable files; pixels are returned as they are."""
    if isinstance(sources, np.ndarray):
        return sources
    pixels = allocate((len(sources), size, size, 3), np.uint8)
    workers = default_workers() if device.startswith("cuda") else 0
    threads = cpu_count()

    def decode() -> Iterator[None]:
        for batch in decode_batches(
            sources, ImageReader(size), _CHUNK_IMAGES_CUDA, workers=workers, threads=threads
        ):
            for i, file in enumerate(batch.files):
                if file.state != "decoded":
                    source = sources[batch.start + i]
                    name = "An image" if isinstance(source, bytes) else source
                    raise DataError(
                        f"{name} can no longer be read: {file.reason}. Restore it, or fit again."
                    )
                yield
            pixels[batch.start : batch.start + len(batch.files)] = batch.pixels

    deque(track(decode(), "decoding", total=len(sources)), maxlen=0)
    return pixels


class Views(Protocol):
    """Random views of images, as inputs of the lowest trained stage."""

    def draw(self, rows: Rows, share: slice, seeds: list[int]) -> Tensor:
        """Return this process's share of views of those rows, which depend on the seeds alone."""


class RandomViews:
    """A new crop at every draw, passed through the lower stages."""

    def __init__(
        self, pixels: Pixels, stages: Stages, first: int, augment: bool, device: Device
    ) -> None:
        self.stages, self.first, self.augment, self.device = stages, first, augment, device
        self.pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # channels last
        if device.name.startswith("cuda"):
            free, _ = torch.cuda.mem_get_info(device.name)
            if pixels.nbytes < free // 2:
                self.pixels = self.pixels.to(device.name)

    def draw(self, rows: Rows, share: slice, seeds: list[int]) -> Tensor:
        crops = draw_crops(len(rows), seeds)[share]
        where = torch.from_numpy(rows[share]).to(self.pixels.device)
        x = self.pixels[where].to(self.device.name).float()
        if self.augment:
            x = apply_crops(x, self.device.tensor(crops))
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), half_precision(self.device):
            return self.stages.forward_until(x, self.first).float()


class CachedViews:
    """A few crops of each image, passed through the lower stages once."""

    def __init__(self, views: RandomViews, count: int, seeds: list[int], track: Track) -> None:
        n = len(views.pixels)
        self.count, self.device = count, views.device
        self.cache: npt.NDArray[Any] | None = None  # (count, n, h, w, c)
        size = _CHUNK_IMAGES_CUDA if views.device.name.startswith("cuda") else _CHUNK_IMAGES

        def fill() -> Iterator[None]:
            for view in range(count):
                for start in range(0, n, size):
                    rows = np.arange(start, min(start + size, n))
                    x = views.draw(rows, slice(None), [*seeds, view, start]).permute(0, 2, 3, 1)
                    if self.cache is None:
                        self.cache = allocate((count, n, *x.shape[1:]), np.float16)
                    self.cache[view, rows] = x.cpu().numpy()
                    yield from repeat(None, len(rows))

        deque(track(fill(), "lower blocks", total=count * n), maxlen=0)

    def draw(self, rows: Rows, share: slice, seeds: list[int]) -> Tensor:
        assert self.cache is not None
        view = np.random.default_rng(seeds).integers(0, self.count, len(rows))
        x = self.cache[view[share], rows[share]]
        return self.device.rows(x).float().permute(0, 3, 1, 2)


def draw_crops(count: int, seeds: list[int]) -> npt.NDArray[np.float32]:
    """Draw (count, 6): side of the crop, x and y offset, mirrored, brightness, contrast."""
    uniform = np.random.default_rng(seeds).random((count, 6))
    side = 0.5 + 0.5 * uniform[:, :1]  # relative to the image
    offset = (1 - side) * (2 * uniform[:, 1:3] - 1)
    mirrored = np.where(uniform[:, 3:4] < 0.5, -1.0, 1.0)
    color = 0.8 + 0.4 * uniform[:, 4:]
    return np.concatenate([side, offset, mirrored, color], axis=1).astype(np.float32)


def apply_crops(pixels: Tensor, crops: Tensor) -> Tensor:
    """Crop, mirror and color float pixels 0..255 (n, 3, size, size) as drawn."""
    side, across, down, mirrored, brightness, contrast = crops.T
    theta = crops.new_zeros(len(crops), 2, 3)
    theta[:, 0, 0], theta[:, 0, 2] = side * mirrored, across
    theta[:, 1, 1], theta[:, 1, 2] = side, down
    grid = functional.affine_grid(theta, list(pixels.shape), align_corners=False)
    x = functional.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    spread, level = contrast.view(-1, 1, 1, 1), brightness.view(-1, 1, 1, 1)
    colored: Tensor = ((x - mean) * spread + mean * level).clamp(0.0, 255.0)
    return colored


@torch.no_grad()
def estimate_batch_norm_statistics(stages: Stages, pixels: Pixels, device: Device) -> None:
    """Set the statistics of batch norms to those of these images, without augmentation."""
    norms = [layer for layer in stages.modules() if isinstance(layer, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # average over all batches
        norm.train()
    for start in range(0, len(pixels), _STATISTICS_BATCH):
        if start and len(pixels) - start < _MIN_STATISTICS_BATCH:
            break  # a few images would count as much as a full batch
        x = torch.from_numpy(pixels[start : start + _STATISTICS_BATCH]).to(device.name)
        stages(x.permute(0, 3, 1, 2))
    for norm in norms:
        norm.eval()


@torch.inference_mode()
def backbone_rows(stages: Stages, pixels: Pixels, device: Device) -> npt.NDArray[np.float32]:
    """Return the rows of images without augmentation."""
    parts = []
    for start in range(0, len(pixels), _CHUNK_IMAGES):
        x = torch.from_numpy(pixels[start : start + _CHUNK_IMAGES]).to(device.name)
        parts.append(stages(x.permute(0, 3, 1, 2)).cpu().numpy())
    return np.concatenate(parts)


def half_precision(device: Device) -> AbstractContextManager[Any]:
    """Return a context with bfloat16 on a GPU; on CPUs it is not faster, and fails on some."""
    if device.name.startswith("cuda"):
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


class FineTuningBatches(Batches):
    """Batches whose images pass the network and whose texts have the teacher's activations."""

    def __init__(
        self,
        settings: FineTuning,
        relation: Relation,
        targets: TeacherTargets,
        views: Sequence[Views],
        first_stage: int,
        device: Device,
    ) -> None:
        super().__init__(
            targets.inputs, relation, device,
            size=settings.batch_size, text_size=settings.text_batch, seed=settings.seed,
            target_size=settings.target_batch_size, target_text_size=settings.text_batch,
        )  # fmt: skip
        self.views, self.first_stage = views, first_stage

    def encode(
        self,
        name: str,
        parts: list[tuple[Tensor, Rows, Tensor | None]],
        step: int,
        modules: nn.ModuleDict,
        world: World,
    ) -> list[Tensor]:
        if name == "text":
            return [inputs[self.device.rows(rows)] for inputs, rows, _ in parts]
        share = slice(world.rank, None, world.size)  # as World.share
        inputs = [
            views.draw(rows, share, [self.seed, step, 16 + stream])
            for stream, (views, (_, rows, _)) in enumerate(zip(self.views, parts, strict=True))
        ]
        stages, head = modules["stages"], modules["head"]
        assert isinstance(stages, Stages)
        assert isinstance(head, ImageHead)
        with half_precision(self.device):
            rows = stages.forward_from(torch.cat(inputs), self.first_stage)
        split = torch.split(rows.float(), [len(part) for part in inputs])
        return [world.gather(torch.tanh(head(part, i > 0))) for i, part in enumerate(split)]


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
