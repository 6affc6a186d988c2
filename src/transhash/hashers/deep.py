"""What the deep methods share: two towers, their device, projecting in batches, their state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.data.training import Features
from transhash.errors import DataError
from transhash.hashers.base import Array, Hasher, Setting
from transhash.hashers.settings import ShareBelowOne, Widths
from transhash.hashers.towers import ALEXNET_URL, AlexNet, Perceptron, initialise

Shape = tuple[int, ...]  # of one item
_BATCH = 1024  # items projected at a time


@dataclass(frozen=True)
class Device:
    """Where tensors live, and how arrays get there."""

    name: str  # cpu, cuda or cuda:1

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """Pixels stay bytes, features become float32."""
        if array.dtype != np.uint8:
            array = np.asarray(array, dtype=np.float32)
        return self.rows(array)

    def rows(self, array: npt.NDArray[Any]) -> Tensor:
        """The array as it is; row numbers stay integers."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.name.startswith("cuda"):
            # Pinned, because a copy from ordinary memory waits for the GPU to finish its work.
            return tensor.pin_memory().to(self.name, non_blocking=True)
        return tensor


def learning_rates() -> Iterator[Setting]:
    """What the paper cross-validates, 1e-5 to 1e-1 by half decades, from the default's neighbours
    on; the same for every deep method."""
    for exponent in (-5, -7, -4, -8, -3, -9, -2, -10):
        yield {"learning_rate": round(10 ** (exponent / 2), 8)}


def check_device(device: str) -> None:
    """Refuse what is no device, or none that is here."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise DataError(f"device takes cpu or cuda, got {device!r}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise DataError("device cuda was asked for, but torch sees no GPU; use device cpu")


@dataclass
class DeepHasher(Hasher):
    """Images and texts each pass one tower; the signs of its outputs are the code."""

    image_hidden: Widths = (512,)  # ours: a head on frozen features
    text_hidden: Widths = (1000, 500)  # the paper, Section 4.1
    dropout: ShareBelowOne = 0.0
    weights: str | None = field(default=None, metadata={"what": "AlexNet weights: file or URL"})
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16 on a GPU

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device)

    def build_towers(self, images: Shape, texts: Shape, load: bool = True) -> nn.ModuleDict:
        """Fresh towers for items of these shapes; `load` takes pre-trained weights, where used."""
        generator = torch.Generator().manual_seed(self.seed)
        image = self.image_tower(images, generator, load)
        text = self.text_tower(texts, generator)
        towers = nn.ModuleDict({"image": image, "text": text}).to(self.device)
        if len(images) == 3:
            towers["image"].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.shapes_ = (images, texts)
        return towers

    def image_tower(self, shape: Shape, generator: torch.Generator, load: bool) -> nn.Module:
        """Any module from a batch of items to (n, bits); pixels get AlexNet, vectors a perceptron.

        A layer that is to learn faster than the others (`fch_multiplier`) is called fch.
        """
        if len(shape) == 3:
            tower = AlexNet(self.bits)
            initialise(tower, 0.01, generator)
            self.fresh_layers_ = tower.load_weights(self.weights or ALEXNET_URL) if load else []
            return tower
        return self.feature_tower(shape[0], self.image_hidden, generator)

    def text_tower(self, shape: Shape, generator: torch.Generator) -> nn.Module:
        return self.feature_tower(shape[0], self.text_hidden, generator)

    def feature_tower(
        self, inputs: int, hidden: tuple[int, ...], generator: torch.Generator
    ) -> nn.Module:
        tower = Perceptron(inputs, hidden, self.bits, self.dropout)
        initialise(tower, None, generator)
        return tower

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bfloat16":
            return torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16)
        return nullcontext()

    def tower(self, name: str) -> nn.Module:
        """The trained one of images or texts, its inputs in float32."""
        if not hasattr(self, "towers_"):
            raise self.unfitted()
        return self.towers_[name].eval()

    def run_tower(self, name: str, inputs: Features) -> npt.NDArray[np.float32]:
        """(n, bits) outputs before tanh, whose signs are the code."""
        tower = self.tower(name)
        expected = self.shapes_[0 if name == "image" else 1]
        if inputs.shape[1:] != expected:
            raise DataError(
                f"{self.name} was trained on {name}s of shape {expected}, got {inputs.shape[1:]}; "
                "use the features it was trained with"
            )
        device, parts = Device(self.device), []
        with torch.inference_mode(), self.autocast():
            for start in range(0, len(inputs), _BATCH):
                part = device.tensor(inputs[start : start + _BATCH])
                parts.append(tower(part).float().cpu())
                _check_rows(part, parts[-1], name, start)
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
        """The inverse of `tower_state`."""
        missing = [name for name in ("shape.image", "shape.text") if name not in state]
        if missing:
            raise DataError(f"this is not a saved {self.name}: it lacks {', '.join(missing)}")
        image, text = (tuple(int(n) for n in state[f"shape.{part}"]) for part in ("image", "text"))
        self.towers_: nn.ModuleDict = self.build_towers(image, text, load=False)
        saved = {
            # Before 0.2 the one hidden layer of a Head had no number.
            re.sub(r"^(image|text)\.hidden\.(weight|bias)$", r"\1.hidden.0.\2", name[7:]): value
            for name, value in state.items()
            if name.startswith("towers.")
        }
        try:
            self.towers_.load_state_dict(
                {name: torch.from_numpy(np.array(value)) for name, value in saved.items()}
            )
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise DataError(
                f"this is not a saved {self.name} of {self.bits} bits: {reason}"
            ) from None
        return self


def _check_rows(inputs: Tensor, outputs: Tensor, name: str, start: int) -> None:
    """Refuse the first item whose code would mean nothing."""
    if not inputs.is_floating_point():  # pixels
        return
    sound = torch.isfinite(inputs).all(dim=1).cpu() & torch.isfinite(outputs).all(dim=1)
    if not sound.all():
        row = start + int(torch.argmin(sound.int()))
        raise DataError(
            f"row {row} of the {name}s has a feature that is not a finite number, or too large"
        )
