"""A trial's methods on a fine-tuned backbone: what it learns from, and what it never sees."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hashers.tiny_backbone import Scene, TinyBackbone
from transhash.errors import DataError
from transhash.experiments.plan import Cell

FOLDER = Path(__file__).parents[2] / "benchmarks"
TUNING = ("steps=3", "batch_size=16", "target_batch=16", "learning_rate=0.01")


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)  # it imports from its neighbours
    spec = importlib.util.spec_from_file_location("trial", FOLDER / "trial.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "trial", module)  # where dataclasses look up annotations
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "image_features", lambda name, device: TinyBackbone())
    return module


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """As `third_party_clipart.py` lays them out: stripes, and words for their directions."""
    scene, folder = Scene(), tmp_path / "stripes"
    folder.mkdir()
    own, other = scene.files(folder)
    words = ["across", "down", "rising", "falling"]
    rng = np.random.default_rng(0)

    def told(labels: Any) -> list[str]:
        said = rng.integers(0, 5, (len(labels), 3))  # some of a kind's own five words
        return [" ".join(f"{words[k]}{'abcde'[i]}" for i in some) for k, some in zip(labels, said)]

    def write(name: str, *columns: Any) -> None:
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(zip(*columns))

    texts = [f"text-{i}" for i in range(len(other))]
    write("bridge.csv", ["image", *(p.name for p in own)], ["text", *told(scene.labels)])
    write("pictures.csv", ["image", *(p.name for p in other)])
    write("texts.csv", ["id", *texts], ["text", *told(scene.target_labels)])
    kinds = [words[k] for k in scene.target_labels]
    write("kinds.csv", ["item", *(p.name for p in other), *texts], ["kind", *kinds, *kinds])
    (tmp_path / "queries.csv").write_text("trial,query,kinds\nstripes,fallinga fallingb,falling\n")
    return folder


def run(trial: ModuleType, files: Path, *options: str) -> dict[str, Any]:
    out = files.parent / "found.json"
    given = [str(files), "--bits", "8", "--json", str(out), "--tuning", *TUNING, *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["trial.py", *given])
        trial.main()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture
def taught(trial: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What every fine-tuning is given, and the backbone that comes of it."""
    calls: list[tuple[Any, ...]] = []
    fine_tune = trial.fine_tune

    def told(*given: Any, **more: Any) -> Any:
        calls.append((*given, tuned := fine_tune(*given, **more)))
        return tuned

    monkeypatch.setattr(trial, "fine_tune", told)
    return calls


def test_a_backbone_of_a_seed_and_teacher_serves_all_methods_and_sees_no_query(
    trial: ModuleType, files: Path, taught: list[tuple[Any, ...]]
) -> None:
    methods = ("CVH", "CVH@QCH", "kNN@QCH", "QCH@CVH")
    found = run(trial, files, "--seeds", "0", "1", "--methods", *methods)
    assert [name for name in found if name.endswith("words")] == [f"{m}, words" for m in methods]
    assert found["CVH, words"] != found["CVH@QCH, words"]
    assert [(call[4].name, call[5].seed) for call in taught] == [
        ("QCH", 0), ("QCH", 1), ("CVH", 0), ("CVH", 1),
    ]  # fmt: skip
    whole = trial.Trial.read(files, TinyBackbone())
    scene = Scene()
    for _, images, pictures, training, teacher, settings, _ in taught:
        part = trial.Part.drawn(whole, settings.seed)
        np.testing.assert_array_equal(images, scene.images[part.pairs])
        np.testing.assert_array_equal(pictures, scene.target_images[part.pictures])
        np.testing.assert_array_equal(training.images, whole.images.features[part.pairs])
        assert (settings.steps, settings.learning_rate, teacher.bits) == (3, 0.01, 8)


def test_all_pictures_are_read_anew_and_the_frozen_rows_stay(
    trial: ModuleType, files: Path, taught: list[tuple[Any, ...]]
) -> None:
    whole, scene = trial.Trial.read(files, TinyBackbone()), Scene()
    part = trial.Part.drawn(whole, 0)
    trials = trial.TunedTrials(whole, TinyBackbone(), {"steps": 3})
    read = trials.read(part, Cell("CVH@QCH", 8, 0), "words")
    ((*_, tuned),) = taught
    pairs = ((read.trial.images, scene.images), (read.trial.pictures, scene.target_images))
    for images, pixels in pairs:
        np.testing.assert_array_equal(images.features, tuned.extract(pixels))
    np.testing.assert_array_equal(read.asking_pictures, part.asking_pictures)
    frozen = TinyBackbone().extract(scene.target_images)
    np.testing.assert_allclose(part.trial.pictures.features, frozen, rtol=1e-5, atol=1e-5)
    assert not np.allclose(read.trial.pictures.features, frozen, rtol=1e-3, atol=1e-3)


def test_a_backbone_does_not_hang_on_kinds(
    trial: ModuleType, files: Path, taught: list[tuple[Any, ...]]
) -> None:
    run(trial, files, "--seeds", "0", "--methods", "CVH@QCH")
    with (files / "kinds.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    kinds = [kind for _, kind in rows]
    with (files / "kinds.csv").open("w", newline="") as file:
        turned = [[item, kind] for (item, _), kind in zip(rows, kinds[1:] + kinds[:1])]
        csv.writer(file).writerows([header, *turned])
    run(trial, files, "--seeds", "0", "--methods", "CVH@QCH")
    before, after = (call[-1].digest for call in taught)
    assert before == after


def test_typed_queries_ask_a_backbone_that_learned_from_all_pictures(
    trial: ModuleType, files: Path, taught: list[tuple[Any, ...]]
) -> None:
    queries = ("--queries", str(files.parent / "queries.csv"))
    found = run(trial, files, "--seeds", "0", "--methods", "CVH@QCH", "QCH@QCH", *queries)
    assert len(found["CVH@QCH, words"]) == len(found["QCH@QCH, words"]) == 1
    ((_, images, pictures, *_),) = taught
    assert (len(images), len(pictures)) == (80, 80)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--methods", "CVH@"), "there is no method ''"),
        (("--methods", "CVH@kNN"), "makes no codes"),
        (("--methods", "CVH@QCH", "--tuning", "step=3"), "no setting 'step'"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_ranked(
    options: tuple[str, ...], said: str, trial: ModuleType, files: Path, capsys: Any
) -> None:
    with pytest.raises(DataError, match=said):
        run(trial, files, *options)
    assert "random" not in capsys.readouterr().out


def test_settings_of_a_tuning_that_nobody_asked_for_are_refused(
    trial: ModuleType, files: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit):
        run(trial, files, "--methods", "CVH")
    assert "no method has one" in capsys.readouterr().err
