"""Trains THN on random features, alone or under torchrun, and saves the gradients of every step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transhash.data.relation import LabelRelation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.hashers.deep import Device
from transhash.hashers.thn import PAPER, THN
from transhash.hashers.world import World, init_world


def random_data(sparse: bool) -> TrainingSet:
    generator = np.random.default_rng(5)
    labels = np.eye(6, dtype=bool)[generator.integers(0, 6, 120)]
    basis_x, basis_y = generator.normal(size=(6, 20)), generator.normal(size=(6, 30))

    def view(of: Any, basis: Any, shift: float) -> Any:
        noise = generator.normal(size=(len(of), basis.shape[1])) * 0.5
        return (of @ basis + noise + shift).astype(np.float32)

    names = [str(i) for i in range(120)]
    relation: Any = LabelRelation(labels, labels)
    if sparse:
        relation = SparseRelation.from_pairs(names, names)
    target = np.eye(6, dtype=bool)[generator.integers(0, 6, 90)]
    return TrainingSet(
        view(labels, basis_x, 0.0), view(labels, basis_y, 0.0), relation,
        view(target, basis_x, 0.3), view(target, basis_y, -0.3),
    )  # fmt: skip


_single = Device.tensor
Device.tensor = lambda device, array: _single(device, array).double()  # type: ignore[method-assign]


class Precise(THN):
    """THN in double precision.

    Q has the gradient 1/z, which turns a rounding error of 1e-7 into 1e-4 within three steps, so
    single precision cannot show that two runs agree.
    """

    def build_towers(self, *shapes: Any, **options: Any) -> Any:
        return super().build_towers(*shapes, **options).double()


def train(
    world: World, kind: str, steps: int, stop: int = -1, folder: str = "", seed: int = 0
) -> Any:
    """Return the gradients of every step and the codes; None if stopped (saves a checkpoint)."""
    settings: dict[str, Any] = {
        "bits": 16, "seed": seed, "dropout": 0.0, "steps": steps,
        "batch_size": 48, "target_batch_size": 24,
        "quantization_start": 0.0, "alignment_ramp": 0.0,
    }  # fmt: skip
    thn = Precise(**{**PAPER, **settings}) if kind == "paper" else Precise(**settings)
    gradients: list[Any] = []
    clip, single = torch.nn.utils.clip_grad_norm_, torch.Tensor.float

    def record_and_clip(parameters: Any, max_norm: float) -> Any:
        parameters = list(parameters)
        gradients.append(torch.cat([p.grad.reshape(-1) for p in parameters]).clone().numpy())
        return clip(parameters, max_norm)

    def track(items: Any, description: str, total: Any = None, start: int = 0) -> Any:
        if world.rank == 0 and description.startswith("training"):
            print(f"from step {start}", flush=True)
        for step in items:
            if step == stop:
                raise KeyboardInterrupt
            yield step

    training = random_data(kind == "pairs")
    torch.nn.utils.clip_grad_norm_ = record_and_clip
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign,assignment]
    try:
        thn.fit(training, folder=Path(folder) if folder else None, track=track, world=world)
    except KeyboardInterrupt:
        return None
    finally:
        torch.nn.utils.clip_grad_norm_ = clip
        torch.Tensor.float = single  # type: ignore[method-assign]
    return {
        "gradients": np.stack(gradients),
        "codes": thn.encode_images(training.images).packed,
        "z": thn.project_texts(training.texts),
    }


def main(kinds: str, steps: int, stop: int, folder: str, result: str) -> None:
    torch.set_num_threads(1)
    with init_world() as world:
        for kind in kinds.split(","):
            name, _, seed = kind.partition(":")
            record = train(world, name, steps, stop, folder, int(seed or 0))
            if record is not None and world.rank == 0:
                np.savez(f"{result}-{kind}.npz", **record)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
