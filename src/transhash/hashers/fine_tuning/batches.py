"""The batch of one step: images by the network, texts by the teacher."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from transhash.data.collection import ImageSource
from transhash.data.relation import Rows
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.features.backbone import Stages
from transhash.features.cache import cache_folder
from transhash.features.decode import ImageReader, Pixels, decode_batches, default_workers
from transhash.hashers.deep import Device
from transhash.hashers.fine_tuning.teacher import ImageHead, TeacherTargets
from transhash.hashers.thn.batches import Batch, Items, PairSampler
from transhash.hashers.training_loop import draw
from transhash.hashers.world import World
from transhash.progress import Track

if TYPE_CHECKING:
    from transhash.hashers.fine_tuning.loop import FineTuning

# Pictures as a step sees them: decoded once, augmented on the device, or kept half-way.

_IN_MEMORY = 4 << 30  # bytes; more lie in a file
_PASS = 16  # images that pass the lower stages together on a CPU
_PASS_CUDA = 256


def allocate(shape: tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """An empty array, in memory or, if large, in a file without a name in the cache folder."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    if size <= _IN_MEMORY:
        return np.empty(shape, kind)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache_folder()) as file:  # gone with this process
        file.truncate(size)
        return np.memmap(file, kind, "r+", shape=shape)


def decode_all(
    sources: Sequence[ImageSource] | Pixels, size: int, device: str, track: Track
) -> Pixels:
    """(n, size, size, 3) bytes of files that have been read before, or of what is decoded."""
    if isinstance(sources, np.ndarray):
        return sources
    pixels = allocate((len(sources), size, size, 3), np.uint8)
    workers = default_workers() if device.startswith("cuda") else 0
    threads = os.cpu_count() or 1

    def decoded() -> Iterator[None]:
        for batch in decode_batches(
            sources, ImageReader(size), _PASS_CUDA, workers=workers, threads=threads
        ):
            for place, one in enumerate(batch.seen):
                if one.state != "decoded":
                    source = sources[batch.start + place]
                    name = "a picture" if isinstance(source, bytes) else source
                    raise DataError(f"{name} could be read before and now cannot: {one.reason}")
                yield
            pixels[batch.start : batch.start + len(batch.seen)] = batch.pixels

    deque(track(decoded(), "decoding", total=len(sources)), maxlen=0)
    return pixels


class ViewDraw(Protocol):
    """Images as the lowest trained stage gets them."""

    def at(self, rows: Rows, share: slice, seeds: list[int]) -> Tensor:
        """Of those rows this process's share, drawn by the seeds alone."""


class RandomViews:
    """Every time another crop, on the device, passed through the lower stages."""

    def __init__(
        self, pixels: Pixels, stages: Stages, first: int, augment: bool, device: Device
    ) -> None:
        self.stages, self.first, self.augment, self.device = stages, first, augment, device
        self.pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # channels last
        if device.name.startswith("cuda"):
            free, _ = torch.cuda.mem_get_info(device.name)
            if pixels.nbytes < free // 2:
                self.pixels = self.pixels.to(device.name)

    def at(self, rows: Rows, share: slice, seeds: list[int]) -> Tensor:
        drawn = draw_crops(len(rows), seeds)[share]
        where = torch.from_numpy(rows[share]).to(self.pixels.device)
        x = self.pixels[where].to(self.device.name).float()
        if self.augment:
            x = augmented(x, self.device.tensor(drawn))
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), half_precision(self.device):
            return self.stages.forward_until(x, self.first).float()


class CachedViews:
    """A few crops of each image, passed through the lower stages once."""

    def __init__(self, fresh: RandomViews, views: int, seeds: list[int], track: Track) -> None:
        n = len(fresh.pixels)
        self.views, self.device = views, fresh.device
        self.kept: npt.NDArray[Any] | None = None
        size = _PASS_CUDA if fresh.device.name.startswith("cuda") else _PASS

        def passed() -> Iterator[None]:
            for view in range(views):
                for start in range(0, n, size):
                    rows = np.arange(start, min(start + size, n))
                    x = fresh.at(rows, slice(None), [*seeds, view, start]).permute(0, 2, 3, 1)
                    if self.kept is None:  # (views, n, h, w, c)
                        self.kept = allocate((views, n, *x.shape[1:]), np.float16)
                    self.kept[view, rows] = x.cpu().numpy()
                    yield from repeat(None, len(rows))

        deque(track(passed(), "lower blocks", total=views * n), maxlen=0)

    def at(self, rows: Rows, share: slice, seeds: list[int]) -> Tensor:
        assert self.kept is not None  # there is an image
        view = np.random.default_rng(seeds).integers(0, self.views, len(rows))
        x = self.kept[view[share], rows[share]]
        return self.device.rows(x).float().permute(0, 3, 1, 2)


def draw_crops(count: int, seeds: list[int]) -> npt.NDArray[np.float32]:
    """(count, 6): side of the crop, its place across and down, mirrored, brightness, contrast."""
    drawn = np.random.default_rng(seeds).random((count, 6))
    side = 0.5 + 0.5 * drawn[:, :1]  # of the picture's
    place = (1 - side) * (2 * drawn[:, 1:3] - 1)
    mirrored = np.where(drawn[:, 3:4] < 0.5, -1.0, 1.0)
    colour = 0.8 + 0.4 * drawn[:, 4:]
    return np.concatenate([side, place, mirrored, colour], axis=1).astype(np.float32)


def augmented(pixels: Tensor, crops: Tensor) -> Tensor:
    """Float pixels 0..255 (n, 3, size, size), each cropped, mirrored and coloured as drawn."""
    side, across, down, mirrored, brightness, contrast = crops.T
    theta = crops.new_zeros(len(crops), 2, 3)
    theta[:, 0, 0], theta[:, 0, 2] = side * mirrored, across
    theta[:, 1, 1], theta[:, 1, 2] = side, down
    grid = functional.affine_grid(theta, list(pixels.shape), align_corners=False)
    x = functional.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    spread, level = contrast.view(-1, 1, 1, 1), brightness.view(-1, 1, 1, 1)
    coloured: Tensor = ((x - mean) * spread + mean * level).clamp(0.0, 255.0)
    return coloured


@torch.no_grad()
def estimate_norms(stages: Stages, pixels: Pixels, device: Device) -> None:
    """Batch norms with the statistics of these images, as they are."""
    batch_norm_statistics = [
        layer for layer in stages.modules() if isinstance(layer, torch.nn.BatchNorm2d)
    ]
    for norm in batch_norm_statistics:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    for start in range(0, len(pixels), 64):
        if start and len(pixels) - start < 16:
            break  # statistics of a few images would count as much as those of 64
        x = torch.from_numpy(pixels[start : start + 64]).to(device.name)
        stages(x.permute(0, 3, 1, 2))
    for norm in batch_norm_statistics:
        norm.eval()


@torch.inference_mode()
def rows_of(stages: Stages, pixels: Pixels, device: Device) -> npt.NDArray[np.float32]:
    """Rows of images as they are."""
    parts = []
    for start in range(0, len(pixels), _PASS):
        x = torch.from_numpy(pixels[start : start + _PASS]).to(device.name)
        parts.append(stages(x.permute(0, 3, 1, 2)).cpu().numpy())
    return np.concatenate(parts)


def half_precision(device: Device) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU alone: CPUs that have it gain nothing here, and some fail."""
    if device.name.startswith("cuda"):
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


class FineTuningBatches:
    """What the teacher says on the device, and the batch of each step."""

    def __init__(
        self,
        asked: FineTuning,
        training: TrainingSet,
        lessons: TeacherTargets,
        pictures: Sequence[ViewDraw],
        device: Device,
    ) -> None:
        self.asked, self.device, self.pictures = asked, device, pictures
        self.pairs = PairSampler(
            training.relation, lessons.calibration,
            rows=asked.batch_size, columns=asked.text_batch, seed=asked.seed,
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
            drawn.append(draw(len(self.target_images), asked.target_batch_size, seed, step, 2))
        share = slice(world.rank, None, world.size)  # as World.share
        inputs = [
            part.at(where, share, [seed, step, 16 + stream])
            for stream, (part, where) in enumerate(zip(self.pictures, drawn, strict=True))
        ]
        stages, head = modules["stages"], modules["head"]
        assert isinstance(stages, Stages)
        assert isinstance(head, ImageHead)
        with half_precision(self.device):
            found = stages.forward_from(torch.cat(inputs), first)
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
