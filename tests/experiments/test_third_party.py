"""Fine-tuning in the third-party benchmark: what it trains on, and that it uses no labels."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hashers.tiny_backbone import Scene, TinyBackbone
from transhash.errors import DataError

FOLDER = Path(__file__).parents[2] / "benchmarks"
FINE_TUNING = ("steps=3", "batch_size=16", "target_batch_size=16", "learning_rate=0.01")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)  # it imports other benchmarks
    spec = importlib.util.spec_from_file_location("third_party", FOLDER / "third_party.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "third_party", module)  # dataclasses look up annotations here
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "image_features", lambda name, device: TinyBackbone())
    return module


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Write a collection like `third_party_clipart.py`: stripes, and words for their directions."""
    scene, folder = Scene(), tmp_path / "stripes"
    folder.mkdir()
    auxiliary, target = scene.files(folder)
    classes = ["across", "down", "rising", "falling"]
    rng = np.random.default_rng(0)

    def make_texts(labels: Any) -> list[str]:
        endings = rng.integers(0, 5, (len(labels), 3))  # a class has five words
        return [
            " ".join(f"{classes[label]}{'abcde'[i]}" for i in row)
            for label, row in zip(labels, endings)
        ]

    def write(name: str, *columns: Any) -> None:
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(zip(*columns))

    texts = [f"text-{i}" for i in range(len(target))]
    names = [path.name for path in target]
    labels = [classes[label] for label in scene.target_labels]
    captions = make_texts(scene.labels)
    write("auxiliary.csv", ["image", *(path.name for path in auxiliary)], ["text", *captions])
    write("images.csv", ["image", *names])
    write("texts.csv", ["id", *texts], ["text", *make_texts(scene.target_labels)])
    write("labels.csv", ["item", *names, *texts], ["label", *labels, *labels])
    queries = "collection,query,labels\nstripes,fallinga fallingb,falling\n"
    (tmp_path / "queries.csv").write_text(queries)
    return folder


def run(benchmark: ModuleType, collection: Path, *options: str) -> dict[str, Any]:
    out = collection.parent / "scores.json"
    fine_tuning = ["--fine-tuning", *FINE_TUNING] if "@" in "".join(options) else []
    arguments = [str(collection), "--bits", "8", "--json", str(out), *fine_tuning, *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["third_party.py", *arguments])
        benchmark.main()
    scores: dict[str, Any] = json.loads(out.read_text())
    return scores


@pytest.fixture
def calls(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record the arguments and the result of each fine-tuning."""
    calls: list[tuple[Any, ...]] = []
    fine_tune = benchmark.fine_tune

    def record(*arguments: Any, **options: Any) -> Any:
        calls.append((*arguments, features := fine_tune(*arguments, **options)))
        return features

    monkeypatch.setattr(benchmark, "fine_tune", record)
    return calls


def test_methods_share_a_teachers_backbone_and_queries_are_not_trained_on(
    benchmark: ModuleType, collection: Path, calls: list[tuple[Any, ...]]
) -> None:
    methods = ("CVH", "CVH@QCH", "kNN@QCH", "QCH@CVH")
    scores = run(benchmark, collection, "--seeds", "0", "1", "--methods", *methods)
    assert [name for name in scores if name.endswith("words")] == [f"{m}, words" for m in methods]
    assert scores["CVH, words"] != scores["CVH@QCH, words"]
    assert [(call[4].name, call[5].seed) for call in calls] == [
        ("QCH", 0), ("QCH", 1), ("CVH", 0), ("CVH", 1),
    ]  # fmt: skip
    files = benchmark.ThirdPartyCollection.read(collection, TinyBackbone())
    scene = Scene()
    for _, images, target_images, training, teacher, settings, _ in calls:
        split = benchmark.CollectionSplit.draw(files, settings.seed)
        np.testing.assert_array_equal(images, scene.images[split.pairs])
        np.testing.assert_array_equal(target_images, scene.target_images[split.database_images])
        frozen = files.auxiliary_images.features[split.pairs]
        np.testing.assert_array_equal(training.images, frozen)
        assert (settings.steps, settings.learning_rate, teacher.bits) == (3, 0.01, 8)


def test_all_images_get_fine_tuned_features_and_the_split_keeps_frozen_ones(
    benchmark: ModuleType, collection: Path, calls: list[tuple[Any, ...]]
) -> None:
    files, scene = benchmark.ThirdPartyCollection.read(collection, TinyBackbone()), Scene()
    split = benchmark.CollectionSplit.draw(files, 0)
    fine_tuned = benchmark.FineTunedCollections(files, TinyBackbone(), {"steps": 3})
    applied = fine_tuned.apply(split, "QCH", 8, 0, "words")
    ((*_, features),) = calls
    for images, pixels in (
        (applied.collection.auxiliary_images, scene.images),
        (applied.collection.images, scene.target_images),
    ):
        np.testing.assert_array_equal(images.features, features.extract(pixels))
    np.testing.assert_array_equal(applied.query_images, split.query_images)
    frozen = TinyBackbone().extract(scene.target_images)
    np.testing.assert_allclose(split.collection.images.features, frozen, rtol=1e-5, atol=1e-5)
    assert not np.allclose(applied.collection.images.features, frozen, rtol=1e-3, atol=1e-3)


def test_fine_tuning_does_not_depend_on_labels(
    benchmark: ModuleType, collection: Path, calls: list[tuple[Any, ...]]
) -> None:
    run(benchmark, collection, "--seeds", "0", "--methods", "CVH@QCH")
    with (collection / "labels.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    labels = [label for _, label in rows]
    with (collection / "labels.csv").open("w", newline="") as file:
        rotated = [[item, label] for (item, _), label in zip(rows, labels[1:] + labels[:1])]
        csv.writer(file).writerows([header, *rotated])
    run(benchmark, collection, "--seeds", "0", "--methods", "CVH@QCH")
    before, after = (call[-1].digest for call in calls)
    assert before == after


def test_typed_queries_search_with_a_backbone_trained_on_all_images(
    benchmark: ModuleType, collection: Path, calls: list[tuple[Any, ...]]
) -> None:
    queries = ("--queries", str(collection.parent / "queries.csv"))
    methods = ("--methods", "CVH@QCH", "QCH@QCH")
    scores = run(benchmark, collection, "--seeds", "0", *methods, *queries)
    assert len(scores["CVH@QCH, words"]) == len(scores["QCH@QCH, words"]) == 1
    ((_, images, target_images, *_),) = calls
    assert (len(images), len(target_images)) == (80, 80)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--methods", "CVH@"), "Unknown method ''"),
        (("--methods", "CVH@kNN"), "no codes"),
        (("--methods", "CVH@QCH", "--fine-tuning", "step=3"), "no setting 'step'"),
    ],
)
def test_invalid_fine_tuning_is_refused_before_the_first_ranking(
    options: tuple[str, ...], message: str, benchmark: ModuleType, collection: Path, capsys: Any
) -> None:
    with pytest.raises(DataError, match=message):
        run(benchmark, collection, *options)
    assert "random" not in capsys.readouterr().out


def test_fine_tuning_settings_without_a_teacher_are_refused(
    benchmark: ModuleType, collection: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit):
        run(benchmark, collection, "--methods", "CVH", "--fine-tuning", "steps=3")
    assert "teacher" in capsys.readouterr().err


def test_methods_learn_from_captions_concepts_or_both(
    benchmark: ModuleType, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(1000, 24)).astype(np.float32), np.zeros(1000, np.float32)
    monkeypatch.setattr(benchmark, "require_class_weights", lambda *_: weights)
    monkeypatch.setattr(benchmark, "lite_classifier", lambda _: (weights, bias))
    options = ("--methods", "CVH", "kNN", "--auxiliary", "captions", "concepts", "both")
    scores = run(benchmark, collection, "--seeds", "0", *options)
    assert list(scores) == [
        "random", "keyword", "CVH, words", "kNN, words", "CVH, words, concepts",
        "kNN, words, concepts", "ConSE, words", "CVH, words, both", "kNN, words, both",
    ]  # fmt: skip
    captions, both = (scores[f"kNN, words{source}"][0] for source in ("", ", both"))
    assert captions != both


def test_texts_that_contain_a_definition_can_be_left_out(
    benchmark: ModuleType, collection: Path
) -> None:
    files = benchmark.ThirdPartyCollection.read(collection, TinyBackbone())
    definition = benchmark.load_concepts().definitions[207]
    texts = replace(files.texts, items=[f"x: {definition}.", *files.texts.items[1:]])
    rest = benchmark.drop_overlap(replace(files, texts=texts))
    assert rest.texts.items == files.texts.items[1:]
    np.testing.assert_array_equal(rest.text_labels, files.text_labels[1:])
