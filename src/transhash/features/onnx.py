"""Networks as ONNX graphs, and ONNX Runtime as what computes image features on a CPU.

Its convolutions take about 0.6 of torch's time on EfficientNet-Lite0 (docs/ecosystem.md). Features
differ from torch's in the last digits, by less than 1e-5, so they are kept under a name of their
own: what the cache gives does not depend on which of the two was asked first.
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
_exporting = threading.Lock()  # torch exports one network at a time


@cache
def has_onnxruntime() -> bool:
    """Whether image features on a CPU come from ONNX Runtime; TRANSHASH_ONNX=0 says no."""
    return os.environ.get("TRANSHASH_ONNX") != "0" and all(map(find_spec, ("onnx", "onnxruntime")))


def precision_key(device: str) -> str:
    """What tells features of one network apart: where, and how exactly, they were computed."""
    if device != "cpu":
        return "float16"
    return "float32-onnxruntime" if has_onnxruntime() else "float32"


def onnx_graph(network: nn.Module, example: Tensor, takes: str, gives: tuple[str, ...]) -> bytes:
    """The network as an ONNX file, for any number of rows like the example's."""
    if find_spec("onnx") is None:
        raise DataError("an ONNX file needs the package onnx; pip install 'transhash[onnx]'")
    names = (takes, *gives)
    buffer = io.BytesIO()
    try:
        # The exporter warns of its successor, which needs more packages and gives the same graph.
        with _exporting, warnings.catch_warnings(), torch.inference_mode(), _plain_attention():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(), (example,), buffer,  # type: ignore[arg-type]
                dynamo=False, opset_version=_OPSET, input_names=[takes], output_names=list(gives),
                dynamic_axes={name: {0: "n"} for name in names},
            )  # fmt: skip
    except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"{type(network).__name__} has no ONNX form ({reason})") from None
    return buffer.getvalue()


@contextmanager
def _plain_attention() -> Iterator[None]:
    """torch's shortcut through attention has no ONNX form; the long way has."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class FromHwcBytes(nn.Module):
    """A network that takes pictures as they are decoded, (n, size, size, 3)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network(pixels.permute(0, 3, 1, 2))  # type: ignore[no-any-return]


class OnnxRuntimeNetwork(nn.Module):
    """The same network computed by ONNX Runtime, in the thread that asks; of none, torch knows."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._session: Any = None
        self._making = threading.Lock()

    def forward(self, pixels: Tensor) -> Tensor:
        if not len(pixels):
            return self.network(pixels)  # type: ignore[no-any-return]
        with self._making:
            if self._session is None:
                self._session = _session(onnx_graph(FromHwcBytes(self.network), *_example(pixels)))
        rows = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        return torch.from_numpy(self._session.run(None, {"pixels": rows})[0])


def accelerate(network: nn.Module) -> nn.Module:
    """A network for pictures on a CPU, computed by ONNX Runtime where that is installed."""
    return OnnxRuntimeNetwork(network) if has_onnxruntime() else network


def torch_network(network: nn.Module) -> nn.Module:
    """The network that torch computes."""
    return network.network if isinstance(network, OnnxRuntimeNetwork) else network


def _example(pixels: Tensor) -> tuple[Tensor, str, tuple[str]]:
    return pixels[:1].permute(0, 2, 3, 1).contiguous(), "pixels", ("features",)


def _session(graph: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Threads take pictures of their own (features.stream), so none may start others.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
