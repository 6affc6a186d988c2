"""The two functions of a hasher as ONNX files: pixels or features in, projections and codes out."""

from __future__ import annotations

import torch
from torch import nn

from transhash.features.image import ImageFeatures
from transhash.features.onnx_graph import OfBytes, onnx_graph, torch_network
from transhash.hashers.base import Hasher
from transhash.hashers.modules import Affine, WithCode

OUTPUTS = ("projections", "code")


def image_graph(hasher: Hasher, features: ImageFeatures | None) -> bytes:
    """`pixels` (n, size, size, 3) of uint8 -> code; of precomputed features, those -> code."""
    image, _ = hasher.modules()
    if features is None:
        return _of_features(image)
    network = features.network()
    if network is not None:
        image = nn.Sequential(torch_network(network), image)
    example = torch.zeros((1, features.size, features.size, 3), dtype=torch.uint8)
    return onnx_graph(WithCode(OfBytes(image)), example, "pixels", OUTPUTS)


def text_graph(hasher: Hasher) -> bytes:
    """`features` (n, d) of float32 -> code."""
    return _of_features(hasher.modules()[1])


def _of_features(module: nn.Module) -> bytes:
    width = next(part.width for part in module.modules() if isinstance(part, Affine))
    return onnx_graph(WithCode(module), torch.zeros((1, width)), "features", OUTPUTS)
