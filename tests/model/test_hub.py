"""Encoders that travel: to a folder and back, and through huggingface_hub to a server and back."""

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
from transhash.errors import DataError, EngineError
from transhash.features.backbone import FineTunedFeatures
from transhash.features.images import EfficientNetLite0
from transhash.features.texts import CombinedTextFeatures, SentenceTransformerEmbedder
from transhash.features.words import WordFeatures
from transhash.model.encoder import Encoder
from transhash.storage import write_json

from .hub_server import COMMIT, serving

TEXTS = ["a red boat", "the blue house", ""]


@pytest.fixture
def encoder(run: Path) -> Encoder:
    """Of a run with a report, in which stands what nobody else should read."""
    write_json(
        run / "report.json",
        {
            "method": "CVH", "bits": 16, "image_features": "efficientnet-lite0",
            "auxiliary": {"images": 48, "texts": 47, "related_share": 0.15},
            "target": {"images": 46, "texts": 45},
            "codes": {"items": 96, "distinct": 86, "bit_balance": [0.2, 0.8]},
            "alarms": ["at step 3 image codes are all equal"],
            "settings": {"weights": "/home/me/alexnet.pth"},
            "verdict": {"held_out": {"texts": 40},
                        "said": ["Of 40 captions kept aside, 31% find their picture.", "secret"]},
            "problems": [{"path": "/home/me/private.jpg", "id": "x", "reason": "damaged"}],
        },
    )  # fmt: skip
    found = transhash.load(run)
    assert isinstance(found, Encoder)
    return found


def assert_same(one: Encoder, other: Encoder, picture: Path) -> None:
    assert one.encode_texts(TEXTS) == other.encode_texts(TEXTS)
    assert one.encode_texts(TEXTS).distinct() > 1
    z = one.project_image(picture)
    assert np.array_equal(z, other.project_image(picture))


def test_a_folder_gives_back_the_same_bits_and_no_pickle(encoder: Encoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "saved")
    assert_same(
        encoder, Encoder.from_pretrained(tmp_path / "saved"), photo(tmp_path / "a.png", "red")
    )
    endings = {path.suffix for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert endings == {".json", ".safetensors", ".md"}


def test_a_backbone_that_was_trained_further_goes_along(encoder: Encoder, tmp_path: Path) -> None:
    weights = EfficientNetLite0().trainable().weights()
    moved = {name: (1.01 * array).astype(np.float32) for name, array in weights.items()}
    encoder.image_features = FineTunedFeatures(EfficientNetLite0(), moved)
    encoder.save_pretrained(tmp_path / "saved")
    found = Encoder.from_pretrained(tmp_path / "saved")
    assert_same(encoder, found, photo(tmp_path / "a.png", "red"))


def test_the_card_tells_what_the_report_tells_and_nothing_private(
    encoder: Encoder, tmp_path: Path
) -> None:
    encoder.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text("utf-8")
    assert card.startswith("---\nlibrary_name: transhash\n")
    for told in ("| auxiliary images | 48 |", "| target texts | 45 |", "86 of 96", "31%", "step 3"):
        assert told in card
    report = (tmp_path / "saved" / "report.json").read_text("utf-8")
    for private in ("private.jpg", "secret", "alexnet.pth"):
        assert private not in card + report
    # Passed on once more, it tells the same.
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


def test_other_things_are_not_overwritten(encoder: Encoder, run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="other things"):
        encoder.save_pretrained(run)
    encoder.save_pretrained(tmp_path / "saved")
    encoder.save_pretrained(tmp_path / "saved")


def test_a_text_model_that_stands_elsewhere_is_not_left_behind(
    encoder: Encoder, tmp_path: Path
) -> None:
    meaning = object.__new__(
        SentenceTransformerEmbedder
    )  # one is 90 MB; it is not asked for anything
    meaning.name, meaning.carried = "mini", False
    encoder.text_features = CombinedTextFeatures(WordFeatures(), meaning)
    with pytest.raises(DataError, match="the model mini, which stands elsewhere"):
        encoder.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_an_encoder_goes_to_the_hub_and_comes_back(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="pip install 'transhash[hub]'")
    picture = photo(tmp_path / "a.png", "red")
    with serving() as hub:
        # The library reads its address when it is imported.
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

        def told(script: str, *arguments: object) -> str:
            for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("HF_ENDPOINT", hub.address)
            monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
            monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
            done = subprocess.run(
                [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.strip().splitlines()[-1]

        assert told(push, encoder.folder) == f"{hub.address}/me/boats/commit/{COMMIT}"
        assert hub.tokens == {"Bearer hf_test"}
        files = hub.repositories["me/boats"]
        assert {"config.json", "hasher.safetensors", "README.md"} <= set(files)
        files["own.pickle"] = b"not to be fetched"
        expected = [
            encoder.encode_texts(TEXTS).packed.tolist(),
            encoder.project_image(picture).tolist(),
        ]
        fetch = (pull, tmp_path / "cache", picture)
        assert json.loads(told(*fetch, "", json.dumps(TEXTS))) == expected
    assert not list((tmp_path / "cache").rglob("*.pickle"))
    assert json.loads(told(*fetch, "offline", json.dumps(TEXTS))) == expected  # nobody serves


def test_a_name_that_cannot_be_fetched_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="pip install 'transhash[hub]'")
    with pytest.raises(EngineError, match="nobody/nothing is not a folder"):
        Encoder.from_pretrained("nobody/nothing", cache_dir=tmp_path, local_files_only=True)


def test_without_the_library_it_is_one_sentence(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for asked in (Encoder.from_pretrained, encoder.push_to_hub):
        with pytest.raises(DataError, match=r"pip install 'transhash\[hub\]'"):
            asked("me/boats")
