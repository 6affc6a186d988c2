"""export --onnx: what stands in the folder computes the run's codes without transhash."""

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
from transhash.errors import DataError
from transhash.model.encoder import Encoder

pytest.importorskip("onnxruntime", reason="pip install 'transhash[onnx]'")
pytest.importorskip("onnx", reason="pip install 'transhash[onnx]'")

from transhash.export.onnx import export_onnx


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """A large JPEG that lies on its side, and a PNG."""
    rng = np.random.default_rng(0)
    rough = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    rough.resize((1200, 900)).save(tmp_path / "photo.jpg", exif=turned)
    rough.resize((300, 400)).save(tmp_path / "photo.png")
    return [tmp_path / "photo.jpg", tmp_path / "photo.png"]


def test_the_readme_in_the_folder_gives_the_runs_codes(
    run: Path, photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    command = Command(capsys, monkeypatch)
    said = command("export", run, "--onnx", tmp_path / "onnx")
    assert "image.onnx" in said.out
    script = re.search(r"```python\n(.*?)```", (tmp_path / "onnx" / "README.md").read_text(), re.S)
    encoder = Encoder.load(run)
    for photo in photos:
        code = script[1].replace("photo.jpg", str(photo)) + "print(code.tolist())"  # type: ignore[index]
        # In a process of its own, where nothing of transhash is imported.
        told = subprocess.run(
            [sys.executable, "-c", code + "; import sys; assert 'transhash' not in sys.modules"],
            cwd=tmp_path / "onnx", capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert json.loads(told) == encoder.encode_image(photo).packed.tolist()


def test_text_features_become_the_runs_codes(run: Path, tmp_path: Path) -> None:
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
    note = json.loads((tmp_path / "onnx" / "preprocessing.json").read_text())
    assert note["text.onnx"]["input"].endswith(f"(n, {rows.shape[1]})")
    assert note["image.onnx"]["resize"] == [224, 224]
    for name in ("vocabulary.json", "text.safetensors"):
        assert (tmp_path / "onnx" / name).read_bytes() == (run / name).read_bytes()


def test_an_earlier_export_is_replaced_and_anything_else_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    export_onnx(run, folder)
    assert "image.onnx" in export_onnx(run, folder)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "own.txt").write_text("own")
    with pytest.raises(DataError, match="no export wrote"):
        export_onnx(run, folder)
    assert [path.name for path in folder.iterdir()] == ["own.txt"]


def test_model_and_codes_are_not_exported_at_once(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(capsys, monkeypatch)
    said = command("export", run, "--onnx", "x", "--to", "npy", "--out", "y", code=2)
    assert "one of them" in said.err
