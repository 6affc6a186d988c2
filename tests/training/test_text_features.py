"""Text features in whole runs: what they are fitted on, and that old ones read as they did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transhash.features.texts import default_text_features, text_features
from transhash.hashers import make_hasher
from transhash.model.encoder import Encoder
from transhash.search.engine import SearchEngine
from transhash.training.fit import InputPaths, fit_files, read_fit_data

CAPTIONS = ["small dog", "a cat", "red train", "pizza", "blue boat"]
TARGET = ["tell me about gondolas", "what dog barks", "where do gondolas float"] * 8


@pytest.fixture
def sources(tmp_path: Path) -> InputPaths:
    """100 captions of 60 pictures: several a picture, the same for several, very short."""
    rng = np.random.default_rng(0)
    modalities = np.arange(60) % len(CAPTIONS)
    centres = rng.standard_normal((len(CAPTIONS), 12))
    np.save(tmp_path / "x.npy", centres[modalities] + 0.3 * rng.standard_normal((60, 12)))
    np.save(tmp_path / "target.npy", rng.standard_normal((24, 12)))
    texts = [CAPTIONS[i % len(CAPTIONS)] for i in range(100)]
    (tmp_path / "y.txt").write_text("\n".join(texts))
    (tmp_path / "target.txt").write_text("\n".join(TARGET))
    pairs = [f"{i % 60},{i},1\n{(i + 1) % 60},{i},0\n" for i in range(100)]
    (tmp_path / "pairs.csv").write_text("".join(pairs))
    return InputPaths(
        auxiliary_images=tmp_path / "x.npy", auxiliary_texts=tmp_path / "y.txt",
        relation=tmp_path / "pairs.csv", images=tmp_path / "target.npy",
        texts=tmp_path / "target.txt",
    )  # fmt: skip


@pytest.mark.parametrize("method", ["QCH", "THN-D", "THN"])
def test_only_methods_that_use_target_items_know_their_words(
    method: str, sources: InputPaths, tmp_path: Path
) -> None:
    quick = {} if method == "QCH" else {"steps": 2}
    hasher = make_hasher(method, bits=8, **quick)
    run = tmp_path / "run"
    fit_files(hasher, method, read_fit_data(sources), run, None, texts="words")
    lists = json.loads((run / "vocabulary.json").read_text())
    assert ("gondolas" in lists["words"] + lists["dropped"]) == (method == "THN")
    assert "pizza" in lists["words"]


@pytest.mark.parametrize("named", [None, "words", "bag-of-words"])
def test_a_hundred_short_captions_are_enough(
    named: str | None, sources: InputPaths, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    hasher = make_hasher("QCH", bits=8)
    encoder, report = fit_files(hasher, "QCH", read_fit_data(sources), run, None, texts=named)
    assert report["text_features"] == (named or text_features(default_text_features()).name)
    again = Encoder.load(run)
    asked = [*CAPTIONS, "two dogs", "", "puppy"]
    assert np.array_equal(again.encode_texts(asked).packed, encoder.encode_texts(asked).packed)
    assert again.encode_texts(CAPTIONS).distinct() == len(CAPTIONS)


def test_texts_of_an_indexed_run_have_the_codes_they_had(indexed_run: Path) -> None:
    codes = Encoder.load(indexed_run).encode_texts(
        ["a red boat on the sea", "blue", "nothing known: qwzx", "Red red BLUE house"]
    )
    assert [row.tobytes().hex() for row in codes.packed] == ["3ac1", "0c6f", "467e", "a8eb"]


def test_a_question_in_words_is_answered_without_torch(run: Path) -> None:
    Encoder.load(run).save(run)  # with digests, which tell that nothing changed
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(["a red thing", "something blue"])
    code = (
        "import sys; from transhash.search.engine import SearchEngine; "
        "engine = SearchEngine.open(sys.argv[1]); "
        "found = engine.similar_to_text('a red thing', 2, 'texts'); "
        "quick = engine.asker.project_texts(['a red thing', 'blue']); "
        "assert found and 'torch' not in sys.modules; "
        "whole = engine.encoder.project_texts(['a red thing', 'blue']); "
        "assert 'torch' in sys.modules and abs(quick - whole).max() < 1e-5"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
