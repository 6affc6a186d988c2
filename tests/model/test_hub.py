"""Encoders are saved to a folder or uploaded through huggingface_hub, and loaded again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transhash
from search.conftest import photo
from small_run import copy_small_run
from transhash.errors import DataError, EngineError
from transhash.features.backbone import FineTunedFeatures
from transhash.features.embedders import SentenceEmbedder
from transhash.features.images import EfficientNetLite0
from transhash.features.texts import CombinedTextFeatures
from transhash.features.words import WordFeatures
from transhash.model.encoder import Encoder
from transhash.storage import write_json

from .hub_server import COMMIT, serving

TEXTS = ["a red boat", "the blue house", ""]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy_small_run(tmp_path, indexed=False)


@pytest.fixture
def encoder(run: Path) -> Encoder:
    """The encoder of a run whose report has private contents."""
    write_json(
        run / "report.json",
        {
            "method": "CVH", "bits": 16, "image_features": "efficientnet-lite0",
            "auxiliary": {"images": 48, "texts": 47, "related_share": 0.15},
            "target": {"images": 46, "texts": 45},
            "codes": {"items": 96, "distinct": 86, "bit_balance": [0.2, 0.8]},
            "warnings": ["at step 3 image codes are all equal"],
            "settings": {"weights": "/home/me/alexnet.pth"},
            "validation": {"retrieval": {"texts": 40},
                        "summary": ["Validation on 40 held-out captions: THN 31%.", "secret"]},
            "problems": [{"path": "/home/me/private.jpg", "id": "x", "reason": "damaged"}],
        },
    )  # fmt: skip
    encoder = transhash.load(run)
    assert isinstance(encoder, Encoder)
    return encoder


def assert_same(one: Encoder, other: Encoder, image: Path) -> None:
    assert one.encode_texts(TEXTS) == other.encode_texts(TEXTS)
    assert one.encode_texts(TEXTS).distinct() > 1
    assert np.array_equal(one.project_image(image), other.project_image(image))


def test_a_saved_encoder_gives_the_same_codes_and_has_no_pickle(
    encoder: Encoder, tmp_path: Path
) -> None:
    encoder.save_pretrained(tmp_path / "saved")
    assert_same(
        encoder, Encoder.from_pretrained(tmp_path / "saved"), photo(tmp_path / "a.png", "red")
    )
    suffixes = {path.suffix for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert suffixes == {".json", ".safetensors", ".md"}


def test_a_fine_tuned_backbone_is_saved(encoder: Encoder, tmp_path: Path) -> None:
    weights = EfficientNetLite0().trainable().weights()
    changed = {name: (1.01 * array).astype(np.float32) for name, array in weights.items()}
    encoder.image_features = FineTunedFeatures(EfficientNetLite0(), changed)
    encoder.save_pretrained(tmp_path / "saved")
    loaded = Encoder.from_pretrained(tmp_path / "saved")
    assert_same(encoder, loaded, photo(tmp_path / "a.png", "red"))


def test_the_card_has_facts_of_the_report_and_nothing_private(
    encoder: Encoder, tmp_path: Path
) -> None:
    encoder.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text("utf-8")
    assert card.startswith("---\nlibrary_name: transhash\n")
    for fact in ("| auxiliary images | 48 |", "| target texts | 45 |", "86 of 96", "31%", "step 3"):
        assert fact in card
    report = (tmp_path / "saved" / "report.json").read_text("utf-8")
    for private in ("private.jpg", "secret", "alexnet.pth"):
        assert private not in card + report
    # Saved once more, it is the same.
    Encoder.from_pretrained(tmp_path / "saved").save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text("utf-8") == card


@pytest.mark.slow
def test_the_code_on_the_card_runs(encoder: Encoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "saved")
    photo(tmp_path / "photo.png", "red").rename(tmp_path / "photo.jpg")
    card = (tmp_path / "saved" / "README.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", card, re.S)[1]  # type: ignore[index]
    code = code.replace("THIS REPOSITORY OR FOLDER", str(tmp_path / "saved"))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_other_files_are_not_overwritten(encoder: Encoder, run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="other files"):
        encoder.save_pretrained(run)
    encoder.save_pretrained(tmp_path / "saved")
    encoder.save_pretrained(tmp_path / "saved")


def test_an_encoder_with_an_external_text_model_is_not_saved(
    encoder: Encoder, tmp_path: Path
) -> None:
    meaning = object.__new__(SentenceEmbedder)  # one is 90 MB; it is not asked for anything
    meaning.name, meaning.bundled = "mini", False
    encoder.text_features = CombinedTextFeatures(WordFeatures(), meaning)
    with pytest.raises(DataError, match="mini"):
        encoder.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_an_encoder_is_uploaded_to_the_hub_and_loaded_from_it(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="pip install 'transhash[hub]'")
    image = photo(tmp_path / "a.png", "red")
    with serving() as hub:
        # The library reads the address of the Hub when it is imported.
        push = (
            "import sys, transhash; print(transhash.load(sys.argv[1]).push_to_hub("
            "'me/boats', token='hf_test', private=True))"
        )
        pull = (
            "import sys, json, transhash; from pathlib import Path\n"
            "e = transhash.Encoder.from_pretrained('me/boats', cache_dir=sys.argv[1],"
            " local_files_only=sys.argv[3] == 'offline')\n"
            "print(json.dumps([e.encode_texts(json.loads(sys.argv[4])).packed.tolist(),"
            " e.project_image(Path(sys.argv[2])).tolist()]))"
        )

        def run_script(script: str, *arguments: object) -> str:
            for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("HF_ENDPOINT", hub.address)
            monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
            monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
            result = subprocess.run(
                [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True
            )
            assert result.returncode == 0, result.stderr
            assert "%|" not in result.stderr  # a progress bar
            return result.stdout.strip().splitlines()[-1]

        assert run_script(push, encoder.folder) == f"{hub.address}/me/boats/commit/{COMMIT}"
        assert hub.tokens == {"Bearer hf_test"}
        files = hub.repositories["me/boats"]
        assert {"config.json", "hasher.safetensors", "README.md"} <= set(files)
        files["own.pickle"] = b"must not be fetched"
        expected = [
            encoder.encode_texts(TEXTS).packed.tolist(),
            encoder.project_image(image).tolist(),
        ]
        fetch = (pull, tmp_path / "cache", image)
        assert json.loads(run_script(*fetch, "", json.dumps(TEXTS))) == expected
    assert not list((tmp_path / "cache").rglob("*.pickle"))
    assert (
        json.loads(run_script(*fetch, "offline", json.dumps(TEXTS))) == expected
    )  # the server has stopped


def test_an_unknown_name_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="pip install 'transhash[hub]'")
    with pytest.raises(EngineError, match="nobody/nothing"):
        Encoder.from_pretrained("nobody/nothing", cache_dir=tmp_path, local_files_only=True)


def test_a_missing_library_is_reported(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for function in (Encoder.from_pretrained, encoder.push_to_hub):
        with pytest.raises(DataError, match=r"pip install 'transhash\[hub\]'"):
            function("me/boats")
