"""Hashers as torch modules and as ONNX graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from transhash.codes import Codes
from transhash.data.relation import LabelRelation
from transhash.data.training_set import TrainingSet
from transhash.features.backbone import FineTunedFeatures, Stages
from transhash.hashers import CVH, METHODS, find_method, make_hasher
from transhash.hashers.base import Hasher
from transhash.hashers.modules import ProjectAndPack, image_graph, text_graph
from transhash.hashers.thn import THN

from .test_residual_bits import labels_and_pairs
from .tiny_backbone import SIZE, TinyBackbone, draw_images
from .worlds import World, relation_sort

RNG = np.random.default_rng(0)
IMAGES, TEXTS = RNG.normal(size=(500, 64), scale=3), RNG.normal(size=(500, 100), scale=3)


NAMES = [method.name for method in METHODS if method.has_codes]
QUICK = {"steps": 20, "epochs": 5}


@pytest.fixture(params=[*NAMES, "THN with residual bits"], scope="module")
def hasher(request: pytest.FixtureRequest) -> Hasher:
    if request.param in NAMES:
        method = find_method(request.param)
        quick = {
            name: value
            for name, value in QUICK.items()
            if name in method.settings() and name not in method.fixed_settings
        }
        training = World(gap=1.0).training(200, relation_sort(method.name))
        return make_hasher(method.name, bits=16, **quick).fit(training)
    thn = THN(bits=64, steps=20).fit(labels_and_pairs(World(classes=4), 400)[2])
    assert thn.input_layer_.residual_bits
    return thn


def test_a_module_gives_the_codes_of_the_hasher(hasher: Hasher) -> None:
    image, text = hasher.modules()
    for module, rows, expected in (
        (image, IMAGES.astype(np.float32), hasher.encode_images),
        (text, TEXTS.astype(np.float32), hasher.encode_texts),
    ):
        with torch.inference_mode():
            _, code = ProjectAndPack(module)(torch.from_numpy(rows))
        assert np.array_equal(code.numpy(), expected(rows).packed)


def run_graph(graph: bytes, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'transhash[onnx]'")
    session = runtime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    projections, code = session.run(["projections", "code"], {name: rows})
    return projections, code


def test_onnx_runtime_gives_the_codes_of_the_hasher(hasher: Hasher) -> None:
    pytest.importorskip("onnx", reason="pip install 'transhash[onnx]'")
    images, texts = IMAGES.astype(np.float32), TEXTS.astype(np.float32)
    for graph, rows, z in (
        (image_graph(hasher, None), images, hasher.project_images(images)),
        (text_graph(hasher), texts, hasher.project_texts(texts)),
    ):
        projections, code = run_graph(graph, "features", rows)
        assert np.array_equal(code, Codes.from_projections(z).packed)
        np.testing.assert_allclose(projections, z, rtol=1e-4, atol=1e-4 * np.abs(z).max())


def test_pixels_pass_the_fine_tuned_backbone() -> None:
    pytest.importorskip("onnx", reason="pip install 'transhash[onnx]'")
    stages: Stages = TinyBackbone(seed=1).trainable()
    features = FineTunedFeatures(TinyBackbone(seed=0), stages.weights())
    sample = World(classes=4).draw(200)
    pixels = draw_images(sample.labels, RNG)
    rows = features.extract(pixels)
    relation = LabelRelation(*[sample.one_hot(4)] * 2)
    hasher = CVH(bits=16).fit(TrainingSet(rows, sample.texts, relation))
    _, code = run_graph(image_graph(hasher, features), "pixels", pixels)
    assert np.array_equal(code, hasher.encode_images(rows).packed)
    assert hasher.encode_images(rows).distinct() > 4
    other = TinyBackbone(seed=0).extract(pixels)
    assert not np.array_equal(code, hasher.encode_images(other).packed)


def test_pixels_can_be_the_input_of_a_tower() -> None:
    pytest.importorskip("onnx", reason="pip install 'transhash[onnx]'")

    class Pixels(TinyBackbone):
        def network(self) -> None:  # type: ignore[override]
            return None

    class PixelTHN(THN):
        def modules(self) -> tuple[nn.Module, nn.Module]:
            return TinyBackbone(seed=2).network(), nn.Identity()

    pixels = RNG.integers(0, 256, (5, SIZE, SIZE, 3), dtype=np.uint8)
    projections, _ = run_graph(image_graph(PixelTHN(), Pixels()), "pixels", pixels)
    np.testing.assert_allclose(projections, TinyBackbone(seed=2).extract(pixels), atol=1e-5)
