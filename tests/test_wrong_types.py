"""Values of a wrong type are refused by a sentence in every call of the public Python API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transhash
from small_run import copy_small_run
from transhash.errors import DataError, TranshashError

WRONG: dict[str, Any] = {
    "None": None,
    "int": 3,
    "float": 1.5,
    "str": "no such thing",
    "bytes": b"x",
    "list": [1, 2],
    "dict": {"a": 1},
    "set": {1},
    "array": np.zeros((2, 3)),
    "object": object(),
}
LABELS = np.eye(2, dtype=bool)[np.arange(40) % 2]
ROWS = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
SHARED = transhash.LabelRelation(LABELS, LABELS)
CODES = transhash.Codes.from_projections(ROWS)
INDEX = transhash.open_index("grouped:", 16)
PAIRS, TEXTS = [("a.png", "b")], ["a text"]


def fit(name: str) -> Callable[[Any, Any], object]:
    return lambda run, value: transhash.fit(PAIRS, **{"texts": TEXTS, name: value})


def make(method: str) -> Callable[[Any, Any], object]:
    kind = getattr(transhash, method)
    return lambda run, value: (kind(bits=value), kind(bits=8).fit(value))


def engine(call: Callable[[transhash.SearchEngine, Any], object]) -> Callable[[Any, Any], object]:
    return lambda run, value: call(run[0], value)


def encoder(call: Callable[[transhash.Encoder, Any], object]) -> Callable[[Any, Any], object]:
    return lambda run, value: call(run[1], value)


# Name of the public object and of the argument, the call, and the values that are right there.
CALLS: list[tuple[str, Callable[[Any, Any], object], str]] = [
    ("fit pairs", lambda run, value: transhash.fit(value, texts=TEXTS), "None"),
    ("fit images", lambda run, value: transhash.fit(PAIRS, images=value), ""),
    ("fit texts", lambda run, value: transhash.fit(PAIRS, texts=value), ""),
    *((f"fit {name}", fit(name), "") for name in ("method", "features", "device")),
    *((f"fit {name}", fit(name), "None") for name in ("settings", "votes", "progress")),
    *((f"fit {name}", fit(name), "None str") for name in ("text_features", "out")),
    ("fit bits", fit("bits"), "None"),
    ("fit seed", fit("seed"), "int"),
    ("fit fine_tune", fit("fine_tune"), "None"),
    ("load", lambda run, value: transhash.load(value), ""),
    ("load_benchmark", lambda run, value: transhash.load_benchmark(value), ""),
    ("open_index bits", lambda run, value: transhash.open_index("grouped:", value), ""),
    ("open_index search", lambda run, value: INDEX.search(value, 3), ""),
    ("open_index k", lambda run, value: INDEX.search(CODES, value), "int"),
    ("open_index add", lambda run, value: INDEX.add([1], value), ""),
    *((name, make(name), "") for name in ("THN", "CVH", "IMH", "QCH", "HTH", "DCMH")),
    ("TrainingSet", lambda run, value: transhash.TrainingSet(value, ROWS, SHARED), ""),
    ("TrainingSet S", lambda run, value: transhash.TrainingSet(ROWS, ROWS, value), ""),
    ("TrainingSet target", lambda run, v: transhash.TrainingSet(ROWS, ROWS, SHARED, v), "None"),
    ("AuxiliarySet", lambda run, value: transhash.AuxiliarySet(value, ROWS, SHARED), ""),
    ("Codes", lambda run, value: transhash.Codes(value, 16), ""),
    ("Codes bits", lambda run, value: transhash.Codes(CODES.packed, value), ""),
    ("LabelRelation", lambda run, value: transhash.LabelRelation(value, value), "array"),
    ("SparseRelation", lambda run, v: transhash.SparseRelation(v), "array list"),
    ("SparseRelation pairs", lambda run, v: transhash.SparseRelation.from_pairs(v, v), "list"),
    ("SparseRelation triples",
     lambda run, v: transhash.SparseRelation.from_triples(v, v, (2, 2)), ""),
    ("GradedRelation", lambda run, value: transhash.GradedRelation(value, value), ""),
    ("evaluate", lambda run, value: transhash.evaluate(value, CODES, LABELS, LABELS), ""),
    ("evaluate labels", lambda run, value: transhash.evaluate(CODES, CODES, value, value), ""),
    ("extract_features", lambda run, value: transhash.extract_features(value), "array"),
    ("extract_features texts",
     lambda run, value: transhash.extract_features(value, "texts"), "array"),
    ("extract_features modality", lambda run, v: transhash.extract_features(TEXTS, v), ""),
    ("extract_features features",
     lambda run, v: transhash.extract_features(TEXTS, features=v), "None"),
    ("extract_features run", lambda run, v: transhash.extract_features(TEXTS, run=v), "None"),
    ("Encoder load", lambda run, value: transhash.Encoder.load(value), ""),
    ("Encoder save", encoder(lambda one, value: one.save(value)), "str"),
    ("Encoder encode_texts", encoder(lambda one, value: one.encode_texts(value)), ""),
    ("Encoder project_texts", encoder(lambda one, value: one.project_texts(value)), ""),
    ("Encoder encode_images", encoder(lambda one, value: one.encode_images(value)), "array"),
    ("Encoder encode_image", encoder(lambda one, value: one.encode_image(value)), ""),
    ("Encoder hasher images", encoder(lambda one, v: one.hasher.encode_images(v)), ""),
    ("Encoder hasher texts", encoder(lambda one, v: one.hasher.encode_texts(v)), ""),
    ("SearchEngine open", lambda run, value: transhash.SearchEngine.open(value), ""),
    ("SearchEngine add_images", engine(lambda one, value: one.add_images(value)), ""),
    ("SearchEngine add_texts", engine(lambda one, value: one.add_texts(value)), ""),
    ("SearchEngine remove", engine(lambda one, value: one.remove(value, ["a"])), ""),
    ("SearchEngine remove ids",
     engine(lambda one, v: one.remove("images", v)), "bytes list dict set array"),
    ("SearchEngine text", engine(lambda one, value: one.similar_to_text(value)), "str"),
    ("SearchEngine k", engine(lambda one, value: one.similar_to_text("a", k=value)), "int"),
    ("SearchEngine modality", engine(lambda one, v: one.similar_to_text("a", modality=v)), ""),
    ("SearchEngine ranking", engine(lambda one, v: one.similar_to_text("a", ranking=v)), ""),
    ("SearchEngine texts", engine(lambda one, value: one.similar_to_texts(value)), ""),
    ("SearchEngine image", engine(lambda one, value: one.similar_to_image(value)), ""),
    ("SearchEngine images", engine(lambda one, value: one.similar_to_images(value)), ""),
    ("SearchEngine id", engine(lambda one, v: one.similar_to_id("images", v)), ""),
    ("SearchFilter folder", lambda run, v: transhash.SearchFilter(folder=v), "None str"),
    ("SearchFilter after", lambda run, v: transhash.SearchFilter(after=v), "None"),
    ("SearchEngine codes", engine(lambda one, v: one.similar_to_codes(v, 3, "images")), ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = copy_small_run(tmp_path_factory.mktemp("run"))
    with transhash.SearchEngine.open(folder, writable=True) as engine:
        yield engine, transhash.load(folder)


@pytest.mark.parametrize(("name", "call", "right"), CALLS, ids=[name for name, _, _ in CALLS])
def test_a_wrong_type_is_a_sentence_that_says_what_to_pass(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: Any, right: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, value in WRONG.items():
        if kind in right.split():
            continue
        try:
            result = call(run, value)
        except TranshashError as error:
            message = str(error)
        else:
            pytest.fail(f"{name} accepts {kind} and returns {result!r}")
        assert len(message.split()) > 4, kind


def test_every_public_name_is_tried() -> None:
    assert {name.split()[0] for name, _, _ in CALLS} == set(transhash.__all__)


def test_texts_may_be_an_array_of_strings_and_images_a_list(run: Any) -> None:
    _, encoder = run
    texts = ["a red boat", "the cat sleeps"]
    assert encoder.encode_texts(np.array(texts)) == encoder.encode_texts(texts)
    with pytest.raises(DataError, match="hasher"):
        encoder.encode_texts(np.zeros((2, 8)))
    pixels = np.zeros((24, 24, 3), np.uint8)
    codes, images, problems = encoder.encode_images([pixels])
    assert (len(codes), len(images), problems) == (1, 1, [])
    assert codes == encoder.encode_image(pixels)
