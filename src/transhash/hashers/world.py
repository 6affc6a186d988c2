"""Training on several processes with torchrun: each encodes its share of a batch.

The objective couples items across the batch (all pairs in L, all items in MMD), so activations
are gathered and every process computes the same full loss. Its gradients with respect to the
shares, summed over processes, are exactly the gradient of a single process.
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
    """The rank of this process among `size` processes."""

    rank: int = 0
    size: int = 1

    def share(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the part of a batch that this process encodes."""
        return rows[self.rank :: self.size]

    def gather(self, share: Tensor) -> Tensor:
        """Return the activations of the full batch in the order drawn, with gradient to this share.

        Terms over a part of the batch, such as MMD over its first items, depend on the order.
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

    def compute_once(self, compute: Callable[[], _T]) -> _T:
        """Compute in the first process and return the result in all.

        For linear algebra before training, whose signs may differ between machines or with the
        number of threads.
        """
        if self.size == 1:
            return compute()
        result = [compute() if self.rank == 0 else None]
        dist.broadcast_object_list(result)
        return result[0]  # type: ignore[return-value]

    def local_main_process_first(self, prepare: Callable[[], _T]) -> _T:
        """Let one process per machine go first, to fill the caches that the others read."""
        is_local_main = int(os.environ.get("LOCAL_RANK", "0")) == 0
        result = prepare() if is_local_main or self.size == 1 else None
        self.barrier()
        return prepare() if result is None else result

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def check_start(self, step: int, folder: Path) -> None:
        """Refuse to resume if processes have different checkpoints."""
        if self.compute_once(lambda: step) != step:
            raise DataError(
                f"Process {self.rank} has a checkpoint of step {step} in {folder}, the first has "
                "another. Use a folder that all machines share."
            )

    def check_batch_size(self, batch_size: int) -> None:
        if batch_size % self.size:
            raise DataError(
                f"A batch of {batch_size} cannot be split evenly over {self.size} processes. "
                f"Use a multiple of {self.size}."
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
        # Every process has the full loss, so the gradient of this share needs no sum.
        return gradients[0][context.world.rank :: context.world.size], None


@contextmanager
def init_world(device: str = "cpu") -> Iterator[World]:
    """Yield the World of torchrun's environment, or a single process without torchrun."""
    if "RANK" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    if device.startswith("cuda"):  # before NCCL starts, or all ranks use GPU 0
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # Others wait a long time while one process per machine computes image features.
    backend = "nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, timeout=timedelta(days=1))
    try:
        yield World(dist.get_rank(), dist.get_world_size())
        dist.barrier()  # Gloo aborts a process whose peer exits first
    finally:
        dist.destroy_process_group()
