"""Export networks to ONNX, and compute image features with ONNX Runtime on a CPU.

Its convolutions take about 0.6 of torch's time on EfficientNet-Lite0 (docs/integrations.md). Its
features differ from torch's by less than 1e-5, so the two have different cache keys.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from transhash.errors import DataError

_OPSET = 17
_export_lock = threading.Lock()  # torch exports one network at a time


@cache
def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime computes image features on a CPU; TRANSHASH_ONNX=0 forbids it."""
    return os.environ.get("TRANSHASH_ONNX") != "0" and all(map(find_spec, ("onnx", "onnxruntime")))


def precision_key(device: str) -> str:
    """Return the part of a cache key that says how exactly features are computed."""
    if device != "cpu":
        return "float16"
    return "float32-onnxruntime" if has_onnxruntime() else "float32"


def onnx_graph(
    network: nn.Module, example: Tensor, input_name: str, output_names: tuple[str, ...]
) -> bytes:
    """Return the network as an ONNX file for any number of rows like the example's."""
    if find_spec("onnx") is None:
        raise DataError("The package onnx is not installed. Run: pip install 'transhash[onnx]'")
    names = (input_name, *output_names)
    buffer = io.BytesIO()
    try:
        # The exporter warns of its successor, which needs more packages and gives the same graph.
        with _export_lock, warnings.catch_warnings(), torch.inference_mode(), _plain_attention():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(), (example,), buffer,  # type: ignore[arg-type]
                dynamo=False, opset_version=_OPSET, input_names=[input_name],
                output_names=list(output_names), dynamic_axes={name: {0: "n"} for name in names},
            )  # fmt: skip
    except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{type(network).__name__} cannot be exported to ONNX ({reason}). Use another model."
        ) from None
    return buffer.getvalue()


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Disable torch's attention fast path, which cannot be exported."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class FromHwcBytes(nn.Module):
    """A network for images as they are decoded, (n, size, size, 3)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network(pixels.permute(0, 3, 1, 2))  # type: ignore[no-any-return]


class OnnxRuntimeNetwork(nn.Module):
    """A network computed by ONNX Runtime in the calling thread; torch computes empty batches."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._session: Any = None
        self._lock = threading.Lock()

    def forward(self, pixels: Tensor) -> Tensor:
        if not len(pixels):
            return self.network(pixels)  # type: ignore[no-any-return]
        rows = pixels.permute(0, 2, 3, 1).contiguous()
        with self._lock:
            if self._session is None:
                self._session = _session(
                    onnx_graph(FromHwcBytes(self.network), rows[:1], "pixels", ("features",))
                )
        return torch.from_numpy(self._session.run(None, {"pixels": rows.numpy()})[0])


def accelerate(network: nn.Module) -> nn.Module:
    """Wrap an image network for ONNX Runtime, if that is installed."""
    return OnnxRuntimeNetwork(network) if has_onnxruntime() else network


def torch_network(network: nn.Module) -> nn.Module:
    """Undo `accelerate`."""
    return network.network if isinstance(network, OnnxRuntimeNetwork) else network


def _session(graph: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # The threads of features.stream compute one batch each, so a session must not start others.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
