"""The base of deep methods: two towers, projection in batches, saving and loading."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from transhash.data.training_set import Features
from transhash.errors import DataError
from transhash.hashers.base import Array, Hasher, Setting
from transhash.hashers.projection import run_layers
from transhash.hashers.settings import ProportionBelowOne, Widths

ALEXNET_URL = "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth"
Shape = tuple[int, ...]  # of one item
_BATCH_ROWS = 1024  # items projected at a time


class Tower(nn.Module):
    """A perceptron, (1000, 500, b) for texts in the paper, optionally with a linear path.

    The linear path gives useful codes at initialization; the hidden layers learn corrections.
    """

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        bits: int,
        dropout: float = 0.0,
        linear: bool = False,
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.linear = nn.Linear(inputs, bits, bias=False) if linear else None
        self.fch = nn.Linear(widths[-1], bits)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:  # (n, inputs) -> (n, bits), before tanh
        layers = [(layer.weight, layer.bias) for layer in self.hidden]
        ops = _TorchOps(self.dropout if self.training else 0.0)
        linear = None if self.linear is None else self.linear.weight
        z: Tensor = run_layers(ops, x, layers, (self.fch.weight, self.fch.bias), linear)
        return z

    @torch.no_grad()
    def initialize_from(self, rotation: Tensor, correction: float) -> None:
        """Set the linear path to `rotation` (inputs, bits) and scale the hidden one down."""
        assert self.linear is not None
        self.linear.weight.copy_(rotation.T)
        self.fch.weight.mul_(correction)


@dataclass(frozen=True)
class _TorchOps:
    dropout: float

    def normalize(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, weight, bias)

    def relu(self, x: Tensor) -> Tensor:
        x = functional.relu(x)
        return functional.dropout(x, self.dropout) if self.dropout else x


class AlexNet(nn.Module):
    """conv1-fc7 with torchvision's names, so that its weights load, then fch in place of fc8."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True),
            nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.fch = nn.Linear(4096, bits)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:  # (n, 3, 224, 224) uint8 -> (n, bits)
        x = (pixels.float() / 255.0 - self.mean) / self.deviation
        x = x.to(memory_format=torch.channels_last)
        return self.fch(self.classifier(self.features(x).flatten(1)))  # type: ignore[no-any-return]

    def load_weights(self, source: str | Path) -> list[str]:
        """Load conv1-fc7 from a file (.safetensors or .pth) or URL; return the layers not in it."""
        own = self.state_dict()
        weights = {k: value.float() for k, value in _read_weights(source).items() if k in own}
        if not any(name.startswith("features.") for name in weights):
            raise DataError(
                f"{source} has no AlexNet layers (features.0.weight ...). Pass torchvision's "
                "AlexNet weights."
            )
        for name, value in weights.items():
            if value.shape != own[name].shape:
                raise DataError(
                    f"{name} in {source} has shape {tuple(value.shape)}, not "
                    f"{tuple(own[name].shape)}. Pass torchvision's AlexNet weights."
                )
        self.load_state_dict(weights, strict=False)
        layers = [name for name in own if name.startswith(("features.", "classifier."))]
        return [name for name in layers if name not in weights]


def initialize(module: nn.Module, deviation: float | None, generator: torch.Generator) -> None:
    """Draw Gaussian weights of `deviation` (Caffe's 0.01 in the paper), by default He's."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            fan_in = layer.weight[0].numel()
            spread = deviation if deviation is not None else math.sqrt(2.0 / fan_in)
            with torch.no_grad():
                layer.weight.normal_(0.0, spread, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()


def parameter_groups(
    module: nn.Module, rate: float, head_lr_multiplier: float, decay: float
) -> Iterator[dict[str, object]]:
    """Yield optimizer groups: fch learns `head_lr_multiplier` times faster, biases do not decay."""
    for name, parameter in module.named_parameters():
        multiplier = head_lr_multiplier if name.startswith("fch.") else 1.0
        yield {
            "params": [parameter],
            "lr": rate * multiplier,
            "base": rate * multiplier,
            "weight_decay": 0.0 if name.endswith("bias") else decay,
        }


def _read_weights(source: str | Path) -> dict[str, Tensor]:
    if str(source).startswith("https://"):
        try:
            return dict(torch.hub.load_state_dict_from_url(str(source), weights_only=True))
        except OSError as error:
            raise DataError(
                f"AlexNet's weights could not be downloaded from {source} ({error}). "
                "Pass a file with --weights FILE."
            ) from None
    path = Path(source)
    if not path.is_file():
        raise DataError(f"Weights file {path} does not exist. Pass --weights FILE.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch and safetensors raise many types for a bad file
        raise DataError(
            f"{path} is not a weights file ({error}). Pass a .pth or .safetensors file."
        ) from None


@dataclass(frozen=True)
class Device:
    """A torch device, and how arrays get there."""

    name: str  # cpu, cuda or cuda:1

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy pixels as bytes and features as float32."""
        if array.dtype != np.uint8:
            array = np.asarray(array, dtype=np.float32)
        return self.rows(array)

    def rows(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy an array without conversion, such as row numbers."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.name.startswith("cuda"):
            # Pinned, because a copy from ordinary memory waits for the GPU to finish its work.
            return tensor.pin_memory().to(self.name, non_blocking=True)
        return tensor


def learning_rates() -> Iterator[Setting]:
    """Yield the rates that the paper cross-validates, 1e-5 to 1e-1, nearest to 1e-3 first."""
    for exponent in (-5, -7, -4, -8, -3, -9, -2, -10):
        yield {"learning_rate": round(10 ** (exponent / 2), 8)}


def check_device(device: str) -> None:
    """Refuse names that are not a device, and GPUs that torch does not have."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise DataError(f"device must be cpu or cuda, got {device!r}.")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise DataError('No GPU is available to torch. Set device to "cpu".')


@dataclass
class DeepHasher(Hasher):
    """Images and texts each pass one tower; the signs of its outputs are the code."""

    image_hidden: Widths = (512,)  # ours: a head on frozen features
    text_hidden: Widths = (1000, 500)  # the paper, Section 4.1
    dropout: ProportionBelowOne = 0.0
    weights: str | None = field(default=None, metadata={"what": "AlexNet weights: file or URL"})
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16 needs a GPU

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device)

    def build_towers(self, images: Shape, texts: Shape, load: bool = True) -> nn.ModuleDict:
        """Return new towers for items of these shapes; `load` reads AlexNet's weights if used."""
        generator = torch.Generator().manual_seed(self.seed)
        image = self.image_tower(images, generator, load)
        text = self.text_tower(texts, generator)
        towers = nn.ModuleDict({"image": image, "text": text}).to(self.device)
        if len(images) == 3:
            towers["image"].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.shapes_ = (images, texts)
        return towers

    def image_tower(self, shape: Shape, generator: torch.Generator, load: bool) -> nn.Module:
        """Return AlexNet for pixels, a perceptron for vectors; override for any other module.

        A layer named fch learns `head_lr_multiplier` times faster than the others.
        """
        if len(shape) == 3:
            tower = AlexNet(self.bits)
            initialize(tower, 0.01, generator)
            self.fresh_layers_ = tower.load_weights(self.weights or ALEXNET_URL) if load else []
            return tower
        return self.feature_tower(shape[0], self.image_hidden, generator)

    def text_tower(self, shape: Shape, generator: torch.Generator) -> nn.Module:
        return self.feature_tower(shape[0], self.text_hidden, generator)

    def feature_tower(
        self, inputs: int, hidden: tuple[int, ...], generator: torch.Generator
    ) -> nn.Module:
        tower = Tower(inputs, hidden, self.bits, self.dropout)
        initialize(tower, None, generator)
        return tower

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bfloat16":
            return torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16)
        return nullcontext()

    def tower(self, name: str) -> nn.Module:
        """Return the trained tower "image" or "text", which takes float32."""
        if not hasattr(self, "towers_"):
            raise self.not_fitted_error()
        return self.towers_[name].eval()

    def run_tower(self, name: str, inputs: Features) -> npt.NDArray[np.float32]:
        """Return the (n, bits) outputs before tanh, whose signs are the code."""
        tower = self.tower(name)
        expected = self.shapes_[0 if name == "image" else 1]
        if inputs.shape[1:] != expected:
            raise DataError(
                f"{self.name} was trained on {name}s of shape {expected}, got {inputs.shape[1:]}. "
                "Use the same features as in training."
            )
        device, parts = Device(self.device), []
        with torch.inference_mode(), self.autocast():
            for start in range(0, len(inputs), _BATCH_ROWS):
                part = device.tensor(inputs[start : start + _BATCH_ROWS])
                parts.append(tower(part).float().cpu())
                _check_finite_rows(part, parts[-1], name, start)
        if not parts:
            return np.zeros((0, self.bits), np.float32)
        return np.asarray(torch.cat(parts).numpy())

    def tower_state(self) -> dict[str, Array]:
        if not hasattr(self, "towers_"):
            raise self.not_fitted_error()
        state = {
            f"towers.{name}": value.detach().cpu().numpy()
            for name, value in self.towers_.state_dict().items()
        }
        for name, shape in zip(("image", "text"), self.shapes_, strict=True):
            state[f"shape.{name}"] = np.array(shape, dtype=np.int64)
        return state

    def restore_towers(self, state: Mapping[str, Array]) -> Self:
        """Set the towers from the result of `tower_state`."""
        missing = [name for name in ("shape.image", "shape.text") if name not in state]
        if missing:
            raise DataError(f"The saved {self.name} lacks {', '.join(missing)}. Refit the model.")
        image, text = (tuple(int(n) for n in state[f"shape.{part}"]) for part in ("image", "text"))
        self.towers_: nn.ModuleDict = self.build_towers(image, text, load=False)
        weights = {
            name.removeprefix("towers."): torch.from_numpy(np.array(value))
            for name, value in state.items()
            if name.startswith("towers.")
        }
        try:
            self.towers_.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise DataError(
                f"The weights are not of {self.name} with {self.bits} bits ({reason}). "
                "Refit the model."
            ) from None
        return self


def _check_finite_rows(inputs: Tensor, outputs: Tensor, name: str, start: int) -> None:
    if not inputs.is_floating_point():  # pixels
        return
    finite = torch.isfinite(inputs).all(dim=1).cpu() & torch.isfinite(outputs).all(dim=1)
    if not finite.all():
        row = start + int(torch.argmin(finite.int()))
        raise DataError(f"Row {row} of the {name}s has a value that is not finite. Remove it.")
