"""The two towers: AlexNet or a head on features for images, a perceptron for texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from transhash.errors import DataError

ALEXNET_URL = "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth"


class Perceptron(nn.Module):
    """Fully connected layers with ReLU, last one linear: the text tower is (1000, 500, b)."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], bits: int, dropout: float = 0.0):
        super().__init__()
        widths = (inputs, *hidden)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.fch = nn.Linear(widths[-1], bits)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:  # (n, inputs) -> (n, bits), before tanh
        for layer in self.hidden:
            x = functional.dropout(functional.relu(layer(x)), self.dropout, self.training)
        return self.fch(x)  # type: ignore[no-any-return]


class Head(nn.Module):
    """Hidden layers beside a linear path: graded codes from the start, corrections learned."""

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], bits: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.straight = nn.Linear(inputs, bits, bias=False)
        self.fch = nn.Linear(widths[-1], bits)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:  # (n, inputs) -> (n, bits), before tanh
        # Directions carry the relation; lengths say how typical an item is of its domain.
        x = functional.normalize(x, dim=1) * math.sqrt(x.shape[1])
        hidden = x
        for layer in self.hidden:
            hidden = functional.dropout(functional.relu(layer(hidden)), self.dropout, self.training)
        return self.fch(hidden) + self.straight(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def start_from(self, frame: Tensor, correction: float) -> None:
        """The linear path begins as `frame` (inputs, bits), the hidden one that much smaller."""
        self.straight.weight.copy_(frame.T)
        self.fch.weight.mul_(correction)


class AlexNet(nn.Module):
    """conv1-fc7 as torchvision names them (so that its weights load), then fch for fc8."""

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
        """Take conv1-fc7 from a file (.safetensors or .pth); returns the layers not in it."""
        weights = _read_weights(source)
        own = self.state_dict()
        found = {name: value.float() for name, value in weights.items() if name in own}
        if not any(name.startswith("features.") for name in found):
            raise DataError(
                f"{source} holds none of AlexNet's layers (features.0.weight ...); "
                "give torchvision's AlexNet weights"
            )
        for name, value in found.items():
            if value.shape != own[name].shape:
                raise DataError(
                    f"{source}: {name} has shape {tuple(value.shape)}, "
                    f"AlexNet's is {tuple(own[name].shape)}"
                )
        self.load_state_dict(found, strict=False)
        return [
            name
            for name in own
            if name not in found and name.startswith(("features.", "classifier."))
        ]


def initialise(module: nn.Module, deviation: float | None, generator: torch.Generator) -> None:
    """Seeded weights: Gaussian of `deviation` (Caffe's 0.01 in the paper), else He's."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            fan_in = layer.weight[0].numel()
            spread = deviation if deviation is not None else math.sqrt(2.0 / fan_in)
            with torch.no_grad():
                layer.weight.normal_(0.0, spread, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()


def parameter_groups(
    module: nn.Module, rate: float, fch_multiplier: float, decay: float
) -> Iterator[dict[str, object]]:
    """fch learns `fch_multiplier` times faster (10 in the paper); biases are not decayed."""
    for name, parameter in module.named_parameters():
        multiplier = fch_multiplier if name.startswith("fch.") else 1.0
        yield {
            "params": [parameter],
            "lr": rate * multiplier,
            "base": rate * multiplier,
            "weight_decay": 0.0 if name.endswith("bias") else decay,
        }


def _read_weights(source: str | Path) -> dict[str, Tensor]:
    if str(source).startswith("https://"):
        try:
            loaded = torch.hub.load_state_dict_from_url(str(source), weights_only=True)
        except OSError as error:
            raise DataError(
                f"AlexNet's weights could not be fetched from {source} ({error}); "
                "when offline, give a file: --weights FILE"
            ) from None
        return dict(loaded)
    path = Path(source)
    if not path.is_file():
        raise DataError(f"weights file {path} does not exist; give --weights FILE")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch and safetensors raise a dozen kinds for a bad file
        raise DataError(f"{path} cannot be read as weights ({error})") from None
