"""ONNX Runtime and torch compute the same features except for the last digits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from transhash.codes import Codes
from transhash.datasets.synthetic import make_synthetic
from transhash.errors import DataError
from transhash.features import efficientnet
from transhash.features.backbone import FineTunedFeatures, extract_pixels
from transhash.features.decode import Pixels, decode
from transhash.features.images import EfficientNetLite0
from transhash.features.onnx import OnnxRuntimeNetwork, has_onnxruntime, onnx_graph, torch_network
from transhash.features.stream import extract_all


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    data = make_synthetic(tmp_path_factory.mktemp("synthetic"), per_class=2)
    return sorted(data.rglob("*.png"))[:24] or sorted(data.rglob("*.jpg"))[:24]


@pytest.fixture(scope="module")
def pixels(paths: list[Path]) -> Pixels:
    return np.stack([decode(path, 224) for path in paths])  # type: ignore[misc]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("onnxruntime", reason="pip install 'transhash[onnx]'")
    pytest.importorskip("onnx", reason="pip install 'transhash[onnx]'")
    monkeypatch.delenv("TRANSHASH_ONNX", raising=False)
    clear_caches()
    yield
    clear_caches()


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRANSHASH_ONNX", "0")
    clear_caches()
    yield
    clear_caches()


def clear_caches() -> None:
    has_onnxruntime.cache_clear()
    efficientnet.load_lite.cache_clear()


def fine_tuned_lite0() -> FineTunedFeatures:
    rng = np.random.default_rng(0)
    weights = EfficientNetLite0().trainable().weights()
    changed = {n: w * (1 + 0.02 * rng.standard_normal(w.shape)) for n, w in weights.items()}
    return FineTunedFeatures(EfficientNetLite0(), {n: w.astype("f4") for n, w in changed.items()})


@pytest.mark.parametrize("make", [EfficientNetLite0, fine_tuned_lite0])
def test_features_agree_to_the_fifth_digit_and_give_equal_codes(
    runtime: None,
    pixels: Pixels,
    make: type[EfficientNetLite0],
) -> None:
    features = make()
    network = features.network()
    assert isinstance(network, OnnxRuntimeNetwork)
    rows = features.extract(pixels)
    expected = extract_pixels(torch_network(network), pixels, 4, "cpu")
    assert rows.dtype == expected.dtype == np.float32
    assert 0 < np.abs(rows - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())
    planes = np.random.default_rng(1).standard_normal((1280, 256))
    center = expected.mean(axis=0)
    codes = [Codes.from_projections((x - center) @ planes) for x in (rows, expected)]
    assert codes[0] == codes[1]
    assert codes[0].distinct() > len(pixels) // 2


def test_threads_share_a_session_and_no_images_give_no_rows(runtime: None, pixels: Pixels) -> None:
    features = EfficientNetLite0()
    expected = features.extract(pixels[:8])
    clear_caches()
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda i: features.extract(pixels[i : i + 1])[0], range(8)))
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert features.extract(pixels[:0]).shape == (0, 1280)


def test_the_cache_separates_features_of_torch_and_onnx_runtime(
    runtime: None, paths: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRANSHASH_CACHE", str(tmp_path))
    by_runtime, _ = extract_all(EfficientNetLite0(), paths)
    key = EfficientNetLite0().cache_key()
    monkeypatch.setenv("TRANSHASH_ONNX", "0")
    clear_caches()
    assert EfficientNetLite0().cache_key() != key
    by_torch, _ = extract_all(EfficientNetLite0(), paths)
    assert not np.array_equal(by_runtime, by_torch)
    monkeypatch.delenv("TRANSHASH_ONNX")
    clear_caches()
    assert np.array_equal(extract_all(EfficientNetLite0(), paths)[0], by_runtime)


def test_onnx_runtime_can_be_turned_off(torch_only: None) -> None:
    assert not isinstance(EfficientNetLite0().network(), OnnxRuntimeNetwork)
    assert ":float32:" in EfficientNetLite0().cache_key()


def test_exporting_without_the_package_onnx_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(DataError, match=r"pip install 'transhash\[onnx\]'"):
        onnx_graph(torch.nn.Identity(), torch.zeros(1, 2), "x", ("y",))
