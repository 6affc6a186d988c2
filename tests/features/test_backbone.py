"""Fine-tuned backbones: fused, saved, and told apart by their weights."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hashers.tiny_backbone import TinyBackbone
from transhash.errors import DataError
from transhash.features import LITE0, efficientnet
from transhash.features.backbone import BACKBONE_FILE, Backbone, FineTunedFeatures
from transhash.features.efficientnet import lite_weights, load_lite, original_lite, trainable_lite
from transhash.features.images import AlexNetPixels, EfficientNetLite0
from transhash.features.stream import extract_all
from transhash.storage import read_tensors, write_tensors


def fine_tuned(seed: int, base: Backbone) -> FineTunedFeatures:
    """Return features with random changes of the weights, as training makes them."""
    rng = np.random.default_rng(seed)
    weights = base.trainable().weights()
    return FineTunedFeatures(
        base,
        {
            name: (array * rng.normal(1, 0.05, array.shape)).astype(np.float32)
            for name, array in weights.items()
        },
    )


def some_pixels() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, 224, 224)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def test_trainable_and_fused_lite0_equal_the_original_network() -> None:
    pixels = some_pixels()
    with torch.no_grad():
        staged = trainable_lite(LITE0)(pixels)
        scaled = (pixels.float() - 127.0) / 128.0
        original = original_lite(LITE0).extract_features(scaled).mean(dim=(2, 3))
        torch.testing.assert_close(staged, original, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(staged, load_lite(LITE0, "cpu")(pixels), rtol=1e-3, atol=1e-4)


def test_training_and_inference_agree_on_the_same_batch_statistics() -> None:
    layer = trainable_lite(LITE0).stages[1].layers[0]  # type: ignore[union-attr,index]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 32, 112, 112, generator=generator)
    layer.norm.reset_running_stats()
    layer.norm.momentum = 1.0
    with torch.no_grad():
        layer.norm.train()
        estimating = layer(x)
        layer.norm.eval()
        torch.testing.assert_close(estimating, layer(x), rtol=1e-3, atol=1e-3)


def test_a_saved_fine_tuned_lite0_computes_what_was_trained(tmp_path: Path) -> None:
    features = fine_tuned(1, EfficientNetLite0())
    features.save(tmp_path)
    loaded = FineTunedFeatures.load(tmp_path, EfficientNetLite0())
    pixels = some_pixels()
    stages = trainable_lite(LITE0)
    stages.load_state_dict(
        {name: torch.from_numpy(array) for name, array in features.weights.items()}, strict=False
    )
    with torch.no_grad():
        trained = stages(pixels).numpy()
    rows = loaded.extract(pixels.permute(0, 2, 3, 1).numpy())
    np.testing.assert_allclose(rows, trained, rtol=1e-3, atol=1e-3)
    frozen = EfficientNetLite0().extract(pixels.permute(0, 2, 3, 1).numpy())
    assert np.abs(frozen - trained).max() > 0.05
    assert all(
        array.dtype == np.float32 for array in read_tensors(tmp_path / BACKBONE_FILE).values()
    )
    assert (loaded.name, loaded.digest) == ("efficientnet-lite0+tuned", features.digest)


def test_the_cache_tells_backbones_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = []
    for i in range(3):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(paths[-1])
    base = TinyBackbone()
    kinds = [base, fine_tuned(1, base), fine_tuned(2, base)]
    assert len({kind.cache_key() for kind in kinds}) == 3
    for kind in kinds:
        first, second = extract_all(kind, paths)[0], extract_all(kind, paths)[0]  # then cached
        pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
        np.testing.assert_allclose(first, kind.extract(pixels), rtol=1e-5, atol=1e-6)
        assert np.array_equal(first, second)
    rows = [extract_all(kind, paths)[0] for kind in kinds]
    assert not np.allclose(rows[0], rows[1])
    assert not np.allclose(rows[1], rows[2])


def test_the_same_weights_have_the_same_cache_key() -> None:
    base = TinyBackbone()
    assert fine_tuned(3, base).cache_key() == fine_tuned(3, TinyBackbone()).cache_key()


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    fine_tuned(1, TinyBackbone()).save(tmp_path)
    with pytest.raises(DataError, match="efficientnet-lite0"):
        FineTunedFeatures.load(tmp_path, EfficientNetLite0())
    weights = fine_tuned(1, TinyBackbone()).weights
    name = next(iter(weights))
    weights[name] = np.full_like(weights[name], np.nan)
    write_tensors(tmp_path / BACKBONE_FILE, weights)
    with pytest.raises(DataError, match="finite"):
        FineTunedFeatures.load(tmp_path, TinyBackbone())


def test_only_features_of_a_network_are_backbones() -> None:
    assert isinstance(EfficientNetLite0(), Backbone)
    assert isinstance(TinyBackbone(), Backbone)
    assert not isinstance(AlexNetPixels(), Backbone)


@pytest.mark.parametrize("name", sorted(efficientnet._WHEELS))
def test_other_than_the_published_weights_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, file, install, digest = efficientnet._WHEELS[name]
    published = lite_weights(name) if find_spec(package) else None
    weights = bytearray(published.read_bytes() if published else b"weights")
    weights[len(weights) // 2] ^= 1  # one bit of an array
    (tmp_path / "weights.pth").write_bytes(weights)
    (tmp_path / "changed_wheel.py").write_text(
        f"class {file}:\n    get_model_file_path = lambda: {str(tmp_path / 'weights.pth')!r}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(efficientnet._WHEELS, name, ("changed_wheel", file, install, digest))
    lite_weights.cache_clear()
    try:
        with pytest.raises(DataError, match="not the published"):
            original_lite(name)
    finally:
        lite_weights.cache_clear()
        sys.modules.pop("changed_wheel", None)
