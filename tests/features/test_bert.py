"""BERT by NumPy gives the embeddings of sentence-transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

from transhash.errors import DataError
from transhash.features.bert import BertModel, gelu, is_bert_model, map_tensors
from transhash.features.embedders import SentenceEmbedder, bundled_minilm, load_embedder
from transhash.progress import no_progress
from transhash.storage import read_tensors, write_tensors

from .test_text import tiny_sentence_transformer
from .test_words import CAPTIONS

pytest.importorskip("tokenizers", reason="needs transhash[minilm]")
RNG = np.random.default_rng(0)
WORDS = "a dog on the beach antidisestablishmentarianism Zürich café 北京 🙂 don't 3,000 [SEP] {x}"
TEXTS = [
    "",
    " \n\t",
    "word " * 700,  # truncated
    *CAPTIONS,
    *(" ".join(RNG.choice(WORDS.split(), RNG.integers(1, 40))) for _ in range(80)),
]


def library_embeddings(folder: Path, texts: list[str]) -> Any:
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs transhash[sentence-transformers]"
    )
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_minilm_has_the_embeddings_of_sentence_transformers() -> None:
    folder = bundled_minilm()
    if folder is None:
        pytest.skip("needs transhash[minilm]")
    rows = load_embedder("all-MiniLM-L6-v2").embed(TEXTS)
    np.testing.assert_allclose(rows, library_embeddings(folder, TEXTS), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_another_bert_has_the_embeddings_of_sentence_transformers(
    dtype: str, tmp_path: Path
) -> None:
    folder = tiny_sentence_transformer(tmp_path / "small")
    weights = read_tensors(folder / "model.safetensors")
    rounded = {name: array.astype(np.float16) for name, array in weights.items()}
    write_tensors(folder / "model.safetensors", {k: v.astype(dtype) for k, v in rounded.items()})
    change(folder / "config.json", dtype=dtype)
    assert is_bert_model(folder)
    rows = BertModel(folder).embed(TEXTS)
    full = {name: array.astype(np.float32) for name, array in rounded.items()}
    write_tensors(folder / "model.safetensors", full)
    change(folder / "config.json", dtype="float32")
    np.testing.assert_allclose(rows, library_embeddings(folder, TEXTS), atol=1e-5)


def test_a_text_has_the_same_embedding_alone_and_among_others(tmp_path: Path) -> None:
    model = BertModel(tiny_sentence_transformer(tmp_path / "small"))
    rows = model.embed(TEXTS)
    assert rows.shape == (len(TEXTS), 16)
    for text, row in zip(TEXTS, rows):
        np.testing.assert_allclose(model.embed([text])[0], row, atol=1e-6)
    assert model.embed([]).shape == (0, 16)
    np.testing.assert_array_equal(model.embed(["lone \ud800"]), model.embed(["lone ?"]))


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"model_type": "roberta"}),
        ("config.json", {"position_embedding_type": "relative_key"}),
        ("config.json", {"dtype": "bfloat16"}),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"tokenizer_class": "MPNetTokenizer"}),
    ],
)
def test_models_of_another_shape_are_left_to_the_library(
    file: str, values: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny_sentence_transformer(tmp_path / "small")
    assert is_bert_model(folder)
    change(folder / file, **values)
    assert not is_bert_model(folder)
    with pytest.raises(DataError, match="not a BERT"):
        BertModel(folder)


@pytest.mark.parametrize("damage", ["truncated", "renamed", "infinite", "other shape"])
def test_damaged_weights_are_refused(damage: str, tmp_path: Path) -> None:
    folder = tiny_sentence_transformer(tmp_path / "small")
    path = folder / "model.safetensors"
    weights = read_tensors(path)
    name = "encoder.layer.0.output.dense.weight"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "renamed":
        weights["other"] = weights.pop(name)
    elif damage == "infinite":
        weights[name] = weights[name] * np.inf
    else:
        weights[name] = weights[name][:-1]
    if damage != "truncated":
        write_tensors(path, weights)
    with pytest.raises(DataError, match="cannot be read"):
        SentenceEmbedder(folder)


def test_mapped_arrays_equal_those_that_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {
        "a": RNG.standard_normal((3, 5)).astype(np.float32),
        "b": RNG.standard_normal(7).astype(np.float16),
    }
    write_tensors(path, {**arrays, "ids": np.arange(3)})
    mapped = map_tensors(path)
    assert mapped.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(mapped[name], array)


def test_gelu_is_exact_to_float32() -> None:
    x = np.linspace(-12, 12, 3000, dtype=np.float32).reshape(1000, 3)
    exact = 0.5 * x.astype(np.float64) * (1 + erf(x.astype(np.float64) / np.sqrt(2)))
    np.testing.assert_allclose(gelu(x.copy()), exact, atol=5e-7)


def test_an_interrupted_caller_gets_its_exception_and_ends_the_batches(tmp_path: Path) -> None:
    model = BertModel(tiny_sentence_transformer(tmp_path / "small"))

    def track(items: Any, description: str, total: int | None = None, start: int = 0) -> Any:
        for number, item in enumerate(items):
            if number == 3:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        model.embed(TEXTS * 20, track)
    np.testing.assert_array_equal(model.embed(["dog"]), model.embed(["dog"], no_progress))


def test_embedding_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = tiny_sentence_transformer(tmp_path / "small")
    shutil.copytree(folder, tmp_path / "copy")
    code = f"""
import sys
from transhash.features.embedders import load_embedder
print(load_embedder({str(tmp_path / "copy")!r}).embed(["dog"]).shape)
print({{"torch", "transformers", "sentence_transformers", "sklearn"}} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split("\n")[:2] == ["(1, 16)", "set()"], result.stderr
    assert result.stderr == ""
