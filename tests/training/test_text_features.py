"""Text features in runs: which texts they are fitted on, and codes of an indexed run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from features.letter_counts import LetterCounts
from transhash.features.embedders import default_text_features
from transhash.features.texts import CombinedTextFeatures, text_features
from transhash.features.words import WordFeatures
from transhash.hashers import make_hasher
from transhash.model.encoder import Encoder
from transhash.search.engine import SearchEngine
from transhash.training.fit import Fit
from transhash.training.fit_data import FitData, read_fit_data

CAPTIONS = ["small dog", "a cat", "red train", "pizza", "blue boat"]
TARGET = ["tell me about gondolas", "what dog barks", "where do gondolas float"] * 8


@pytest.fixture
def data(tmp_path: Path) -> FitData:
    """100 short captions of 60 images, with repeated captions and images."""
    rng = np.random.default_rng(0)
    classes = np.arange(60) % len(CAPTIONS)
    centers = rng.standard_normal((len(CAPTIONS), 12))
    np.save(tmp_path / "x.npy", centers[classes] + 0.3 * rng.standard_normal((60, 12)))
    np.save(tmp_path / "target.npy", rng.standard_normal((24, 12)))
    texts = [CAPTIONS[i % len(CAPTIONS)] for i in range(100)]
    (tmp_path / "y.txt").write_text("\n".join(texts))
    (tmp_path / "target.txt").write_text("\n".join(TARGET))
    pairs = [f"{i % 60},{i},1\n{(i + 1) % 60},{i},0\n" for i in range(100)]
    (tmp_path / "pairs.csv").write_text("".join(pairs))
    return read_fit_data(
        auxiliary_images=tmp_path / "x.npy", auxiliary_texts=tmp_path / "y.txt",
        relation=tmp_path / "pairs.csv", images=tmp_path / "target.npy",
        texts=tmp_path / "target.txt",
    )  # fmt: skip


@pytest.mark.parametrize("method", ["QCH", "THN-D", "THN"])
def test_only_methods_that_use_target_items_know_their_words(
    method: str, data: FitData, tmp_path: Path
) -> None:
    quick = {} if method == "QCH" else {"steps": 2}
    hasher = make_hasher(method, bits=8, **quick)
    run = tmp_path / "run"
    Fit(hasher, method, run, text_features="words").run_files(data)
    lists = json.loads((run / "vocabulary.json").read_text())
    assert ("gondolas" in lists["words"] + lists["stop_words"]) == (method == "THN")
    assert "pizza" in lists["words"]


@pytest.mark.parametrize("name", [None, "words", "bag-of-words"])
def test_a_hundred_short_captions_are_enough(
    name: str | None, data: FitData, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    hasher = make_hasher("QCH", bits=8)
    fitted = Fit(hasher, "QCH", run, text_features=name).run_files(data)
    assert fitted.report["text_features"] == (name or text_features(default_text_features()).name)
    again = Encoder.load(run)
    queries = [*CAPTIONS, "two dogs", "", "puppy"]
    codes = fitted.encoder.encode_texts(queries)
    assert np.array_equal(again.encode_texts(queries).packed, codes.packed)
    assert again.encode_texts(CAPTIONS).distinct() == len(CAPTIONS)


def test_a_text_query_does_not_import_torch(run: Path) -> None:
    Encoder.load(run).save(run)  # with digests
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(["a red thing", "something blue"])
    code = (
        "import sys; from transhash.search.engine import SearchEngine; "
        "engine = SearchEngine.open(sys.argv[1]); "
        "hits = engine.similar_to_text('a red thing', 2, 'texts'); "
        "light = engine.query_encoder.project_texts(['a red thing', 'blue']); "
        "assert hits and 'torch' not in sys.modules; "
        "full = engine.encoder.project_texts(['a red thing', 'blue']); "
        "assert 'torch' in sys.modules and abs(light - full).max() < 1e-5"
    )
    result = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_fit_shows_a_bar_while_texts_are_embedded(data: FitData, tmp_path: Path) -> None:
    counts: dict[str, int] = {}

    def track(items: Any, description: str, total: int | None = None, start: int = 0) -> Any:
        for item in items:
            yield item
            counts[description] = counts.get(description, 0) + 1

    features = CombinedTextFeatures(WordFeatures(), LetterCounts())
    hasher = make_hasher("QCH", bits=8)
    Fit(hasher, "QCH", tmp_path, text_features=features, track=track, validate=False).run_files(
        data
    )
    # QCH fits text features on the captions only; target texts follow.
    assert counts["text features"] == len(CAPTIONS) + len(TARGET)
