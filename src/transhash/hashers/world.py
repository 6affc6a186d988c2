"""Many processes under torchrun: each encodes its share of a batch, all see every activation.

The objective couples items across the batch (all pairs in L, all items in MMD), so activations
are gathered and every process computes the same full loss; its gradient with respect to its own
share, summed over processes, is exactly the single-process gradient.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from transhash.errors import DataError

_T = TypeVar("_T")


@dataclass(frozen=True)
class World:
    """This process among `size` processes."""

    rank: int = 0
    size: int = 1

    def share(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The part of a batch that this process encodes."""
        return rows[self.rank :: self.size]

    def gather(self, share: Tensor) -> Tensor:
        """The activations of the whole batch as it was drawn, with gradient into this share.

        In any other order a term over a part of the batch, such as MMD over its first items,
        would see other items than one process does.
        """
        if self.size == 1:
            return share
        return _Gather.apply(share, self)  # type: ignore[no-any-return,no-untyped-call]

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def first(self, compute: Callable[[], _T]) -> _T:
        """What the first process computes, in all of them.

        For linear algebra before the training: on other machines, or with other numbers of
        threads, it may come out with other signs, and the processes would learn different things.
        """
        if self.size == 1:
            return compute()
        result = [compute() if self.rank == 0 else None]
        dist.broadcast_object_list(result)
        return result[0]  # type: ignore[return-value]

    def local_main_process_first(self, prepare: Callable[[], _T]) -> _T:
        """One process of each machine goes first and fills the caches that the others read."""
        leads = int(os.environ.get("LOCAL_RANK", "0")) == 0
        result = prepare() if leads or self.size == 1 else None
        self.barrier()
        return prepare() if result is None else result

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def check_start(self, step: int, folder: Path) -> None:
        """Refuse to resume where processes found different checkpoints."""
        if self.first(lambda: step) != step:
            raise DataError(
                f"process {self.rank} finds a checkpoint of step {step} in {folder}, the first "
                "process another; give a folder that all machines see"
            )

    def check_batch(self, batch: int) -> None:
        if batch % self.size:
            raise DataError(
                f"a batch of {batch} cannot be shared equally by {self.size} processes; "
                f"use a multiple of {self.size}"
            )


SINGLE_PROCESS = World()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, share: Tensor, world: World) -> Tensor:
        context.world = world
        share = share.contiguous()
        parts = [torch.empty_like(share) for _ in range(world.size)]
        dist.all_gather(parts, share)
        # Row i of rank r is row i * size + r of the batch, see World.share.
        return torch.stack(parts, dim=1).flatten(0, 1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Every process holds the full loss, so no sum here: this share is already complete.
        return gradients[0][context.world.rank :: context.world.size], None


@contextmanager
def init_world(device: str = "cpu") -> Iterator[World]:
    """The World that torchrun's environment describes; alone without torchrun."""
    if "RANK" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    if device.startswith("cuda"):  # before NCCL starts, or all ranks of a machine take GPU 0
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # Long: the others wait while one process of each machine computes image features.
    backend = "nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, timeout=timedelta(days=1))
    try:
        yield World(dist.get_rank(), dist.get_world_size())
        dist.barrier()  # Gloo aborts a process whose peer is gone before it
    finally:
        dist.destroy_process_group()
