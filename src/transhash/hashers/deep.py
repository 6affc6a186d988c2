"""What the deep methods share: two towers, their device, projecting in batches, their state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.data.training import Features
from transhash.errors import DataError
from transhash.hashers.base import Array, Hasher
from transhash.hashers.towers import ALEXNET_URL, AlexNet, Perceptron, initialise

_BATCH = 1024  # items projected at a time


@dataclass
class DeepHasher(Hasher):
    """Images and texts each pass one tower; the signs of its outputs are the code."""

    image_hidden: tuple[int, ...] = (512,)  # ours: a head on frozen features
    text_hidden: tuple[int, ...] = (1000, 500)  # the paper, Section 4.1
    dropout: float = 0.0
    weights: str | None = field(default=None, metadata={"what": "AlexNet weights: file or URL"})
    device: str = "cpu"
    precision: str = "float32"  # or bfloat16 on a GPU

    def __post_init__(self) -> None:
        super().__post_init__()
        self.image_hidden = tuple(self.image_hidden)  # JSON gives lists
        self.text_hidden = tuple(self.text_hidden)
        if self.precision not in ("float32", "bfloat16"):
            raise DataError(f"precision must be float32 or bfloat16, got {self.precision!r}")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise DataError(f"device takes cpu or cuda, got {self.device!r}")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise DataError("device cuda was asked for, but torch sees no GPU; use device cpu")

    def build_towers(
        self, images: tuple[int, ...], texts: tuple[int, ...], load: bool = True
    ) -> nn.ModuleDict:
        """Fresh towers for items of these shapes: pixels get AlexNet, vectors a perceptron."""
        generator = torch.Generator().manual_seed(self.seed)
        image: nn.Module
        if len(images) == 3:
            image = AlexNet(self.bits)
            initialise(image, 0.01, generator)
            self.fresh_layers_ = image.load_weights(self.weights or ALEXNET_URL) if load else []
        else:
            image = self.feature_tower(images[0], self.image_hidden)
            initialise(image, None, generator)
        text = self.feature_tower(texts[0], self.text_hidden)
        initialise(text, None, generator)
        towers = nn.ModuleDict({"image": image, "text": text}).to(self.device)
        if len(images) == 3:
            towers["image"].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.shapes_ = (images, texts)
        return towers

    def feature_tower(self, inputs: int, hidden: tuple[int, ...]) -> nn.Module:
        return Perceptron(inputs, hidden, self.bits, self.dropout)

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """On the device: pixels stay bytes there, features become float32."""
        if array.dtype != np.uint8:
            array = np.asarray(array, dtype=np.float32)
        return self.rows(array)

    def rows(self, array: npt.NDArray[Any]) -> Tensor:
        """The array as it is, on the device; row numbers stay integers."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.startswith("cuda"):
            # Pinned, because a copy from ordinary memory waits for the GPU to finish its work.
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bfloat16":
            return torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16)
        return nullcontext()

    def run_tower(self, name: str, inputs: Features) -> npt.NDArray[np.float32]:
        """(n, bits) outputs before tanh, whose signs are the code."""
        if not hasattr(self, "towers_"):
            raise self.unfitted()
        expected = self.shapes_[0 if name == "image" else 1]
        if inputs.shape[1:] != expected:
            raise DataError(
                f"{self.name} was trained on {name}s of shape {expected}, got {inputs.shape[1:]}; "
                "use the features it was trained with"
            )
        tower = self.towers_[name].eval()
        parts = []
        with torch.inference_mode(), self.autocast():
            for start in range(0, len(inputs), _BATCH):
                parts.append(tower(self.tensor(inputs[start : start + _BATCH])).float().cpu())
        if not parts:
            return np.zeros((0, self.bits), np.float32)
        return np.asarray(torch.cat(parts).numpy())

    def tower_state(self) -> dict[str, Array]:
        if not hasattr(self, "towers_"):
            raise self.unfitted()
        state = {
            f"towers.{name}": value.detach().cpu().numpy()
            for name, value in self.towers_.state_dict().items()
        }
        for part, shape in zip(("image", "text"), self.shapes_, strict=True):
            state[f"shape.{part}"] = np.array(shape, dtype=np.int64)
        return state

    def restore_towers(self, state: Mapping[str, Array]) -> Self:
        image = tuple(int(n) for n in state["shape.image"])
        text = tuple(int(n) for n in state["shape.text"])
        self.towers_: nn.ModuleDict = self.build_towers(image, text, load=False)
        self.towers_.load_state_dict(
            {
                name.removeprefix("towers."): torch.from_numpy(np.array(value))
                for name, value in state.items()
                if name.startswith("towers.")
            }
        )
        return self
