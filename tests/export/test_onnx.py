"""export --onnx: the exported files compute the run's codes without transhash."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import transhash
from scale.command import Command
from transhash.data.relation import LabelRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers import make_hasher
from transhash.model.encoder import Encoder

pytest.importorskip("onnxruntime", reason="pip install 'transhash[onnx]'")
pytest.importorskip("onnx", reason="pip install 'transhash[onnx]'")

from transhash.export.onnx import export_onnx


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """A large rotated JPEG and a PNG."""
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    noise.resize((1200, 900)).save(tmp_path / "photo.jpg", exif=rotated)
    noise.resize((300, 400)).save(tmp_path / "photo.png")
    return [tmp_path / "photo.jpg", tmp_path / "photo.png"]


def test_the_code_in_the_readme_computes_the_codes_of_the_run(
    run: Path, photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    command = Command(capsys, monkeypatch)
    result = command("export", run, "--onnx", tmp_path / "onnx")
    assert "image.onnx" in result.out
    script = re.search(r"```python\n(.*?)```", (tmp_path / "onnx" / "README.md").read_text(), re.S)
    encoder = Encoder.load(run)
    for photo in photos:
        code = script[1].replace("photo.jpg", str(photo)) + "print(code.tolist())"  # type: ignore[index]
        # In a new process, without transhash.
        printed = subprocess.run(
            [sys.executable, "-c", code + "; import sys; assert 'transhash' not in sys.modules"],
            cwd=tmp_path / "onnx", capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert json.loads(printed) == encoder.encode_image(photo).packed.tolist()


def test_text_features_give_the_codes_of_the_run(run: Path, tmp_path: Path) -> None:
    import onnxruntime

    export_onnx(run, tmp_path / "onnx")
    encoder = transhash.load(run)
    assert isinstance(encoder, Encoder)
    assert encoder.text_features is not None
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "text.onnx")
    texts = ["a red boat", "the blue house", ""]
    rows = encoder.text_features.transform(texts)
    assert np.array_equal(
        session.run(["code"], {"features": rows})[0], encoder.encode_texts(texts).packed
    )
    metadata = json.loads((tmp_path / "onnx" / "preprocessing.json").read_text())
    assert metadata["text.onnx"]["input"].endswith(f"(n, {rows.shape[1]})")
    assert metadata["image.onnx"]["resize"] == [224, 224]
    for name in ("vocabulary.json", "text.safetensors"):
        assert (tmp_path / "onnx" / name).read_bytes() == (run / name).read_bytes()


def test_the_readme_of_a_run_with_precomputed_features_describes_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, texts = (rng.normal(size=(60, width)).astype(np.float32) for width in (12, 20))
    relation = LabelRelation(*[np.eye(4, dtype=bool)[rng.integers(0, 4, 60)] for _ in range(2)])
    hasher = make_hasher("CVH", bits=8)
    hasher.fit(TrainingSet(images, texts, relation))
    encoder = Encoder(hasher, None, None, "CVH")
    encoder.save(tmp_path / "run")
    export_onnx(tmp_path / "run", tmp_path / "onnx")
    readme = (tmp_path / "onnx" / "README.md").read_text()
    metadata = json.loads((tmp_path / "onnx" / "preprocessing.json").read_text())
    scripts = re.findall(r"```python\n(.*?)```", readme, re.S)
    assert len(scripts) == 2
    sides = ((images, hasher.encode_images), (texts, hasher.encode_texts))
    for (features, encode), script, name in zip(sides, scripts, ("image.onnx", "text.onnx")):
        assert metadata[name]["input"] == f"features: float32 (n, {features.shape[1]})"
        assert f"`{metadata[name]['input']}`" in readme
        np.save(tmp_path / "onnx" / "features.npy", features)
        printed = subprocess.run(
            [sys.executable, "-c", script + "print(code.tolist())"],
            cwd=tmp_path / "onnx", capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert json.loads(printed) == encode(features).packed.tolist()


def test_an_earlier_export_is_replaced_and_anything_else_is_refused(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "onnx"
    export_onnx(run, folder)
    assert "image.onnx" in export_onnx(run, folder)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "own.txt").write_text("own")
    with pytest.raises(DataError, match="not an earlier export"):
        export_onnx(run, folder)
    assert [path.name for path in folder.iterdir()] == ["own.txt"]


def test_model_and_codes_cannot_be_exported_together(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(capsys, monkeypatch)
    result = command("export", run, "--onnx", "x", "--format", "npy", "--out", "y", code=2)
    assert "one of them" in result.err
