"""fit --fine-tune: a run with a backbone of its own, from the command to its codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training.feature_files import write_features

import transhash
from scale.command import Command
from transhash.data.manifest import read_images
from transhash.datasets.synthetic import make_synthetic
from transhash.features.backbone import FineTunedFeatures
from transhash.model.encoder import Encoder
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run
from transhash.storage import read_tensors, write_tensors
from transhash.training import fit as fitting

TUNING = [
    "--fine-tune", "--blocks", "2", "--set", "fine_tune.steps=3", "--set", "fine_tune.batch=8",
    "--set", "fine_tune.target_batch=8", "--set", "fine_tune.views=1",
    "--set", "fine_tune.learning_rate=0.01",
]  # fmt: skip


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("fine-tuned") / "drawn", per_class=2)


def own_files(drawn: Path) -> list[object]:
    return [
        "--auxiliary", drawn / "auxiliary.tsv", "--images", drawn / "images.tsv",
        "--texts", drawn / "texts.tsv", "--bits", 16,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def tuned_run(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "tuned"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["transhash", "fit", "cvh", *map(str, own_files(drawn)),
                                   *TUNING, "--out", str(run)])  # fmt: skip
        from transhash.cli import main

        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
    return run


def codes(run: Path, drawn: Path) -> np.ndarray:
    return Encoder.load(run).encode_images(read_images(drawn / "images.tsv"))[0].packed


def test_the_run_says_what_reads_its_images_and_is_whole(tuned_run: Path) -> None:
    config = json.loads((tuned_run / "config.json").read_text())
    assert config["image_features"] == "efficientnet-lite0+tuned"
    assert "backbone.safetensors" in config["files"]
    assert json.loads((tuned_run / "report.json").read_text())["image_features"].endswith("+tuned")
    record = json.loads((tuned_run / "fine-tuning" / "tuning.json").read_text())
    assert (record["teacher"], record["steps"]) == ("CVH", 3)
    loaded = Encoder.load(tuned_run).image_features
    assert isinstance(loaded, FineTunedFeatures)
    assert loaded.digest == record["digest"]
    assert not (tuned_run / "fine-tuning" / "backbone.safetensors").exists()  # one copy
    assert verify_run(tuned_run) == []


def test_what_was_learned_is_what_is_searched(
    tuned_run: Path, drawn: Path, tmp_path: Path, command: Command
) -> None:
    run = shutil.copytree(tuned_run, tmp_path / "run")
    command("index", run, "--images", drawn / "images.tsv")
    by_batch = codes(run, drawn)
    images = read_images(drawn / "images.tsv")
    encoder = Encoder.load(run)
    one_by_one = np.concatenate([encoder.encode_image(path).packed for path in images.items])
    assert np.array_equal(by_batch, one_by_one)
    engine = SearchEngine.open(run)
    try:
        found = engine.similar_to_image(images.items[5], k=1, modality="images")
        assert found[0].distance == 0
    finally:
        engine.close()
    frozen = Encoder(encoder.hasher, encoder.image_features.base, None)  # type: ignore[union-attr]
    assert not np.array_equal(frozen.encode_images(images)[0].packed, by_batch)


def test_another_backbone_in_its_place_is_found(
    tuned_run: Path, drawn: Path, tmp_path: Path, command: Command
) -> None:
    run = shutil.copytree(tuned_run, tmp_path / "run")
    path = run / "backbone.safetensors"
    weights = read_tensors(path)
    name = sorted(weights)[0]
    write_tensors(path, {**weights, name: weights[name] + 1})
    assert [finding.part for finding in verify_run(run)] == ["model"]
    assert "is not the one that was saved with" in command.refused("search", run, "--text", "boat")
    path.unlink()
    assert f"{path} is missing" in verify_run(run)[0].problem


def test_a_frozen_fit_into_the_same_folder_leaves_no_backbone(
    tuned_run: Path, drawn: Path, tmp_path: Path, command: Command
) -> None:
    run = shutil.copytree(tuned_run, tmp_path / "run")
    command("fit", "cvh", *own_files(drawn), "--out", run)
    assert not (run / "backbone.safetensors").exists()
    assert verify_run(run) == []
    assert Encoder.load(run).image_features.name == "efficientnet-lite0"  # type: ignore[union-attr]


def test_a_fit_killed_after_the_fine_tuning_does_not_tune_again(
    tuned_run: Path, drawn: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    real: Any = fitting._fit

    def killed(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "_fit", killed)
    command("fit", "cvh", *own_files(drawn), *TUNING, "--out", run, code=130)
    assert not (run / "config.json").exists()
    backbone = run / "fine-tuning" / "backbone.safetensors"
    written = backbone.stat().st_mtime_ns
    monkeypatch.setattr(fitting, "_fit", real)
    monkeypatch.setattr(fitting, "forget_backbone", lambda run: None)
    command("fit", "cvh", *own_files(drawn), *TUNING, "--out", run)
    assert backbone.stat().st_mtime_ns == written
    assert np.array_equal(codes(run, drawn), codes(tuned_run, drawn))


def test_the_same_from_python(tuned_run: Path, drawn: Path) -> None:
    settings = {
        "blocks": 2, "steps": 3, "batch_size": 8, "target_batch_size": 8, "views": 1, "learning_rate": 0.01,
    }  # fmt: skip
    with transhash.fit(
        drawn / "auxiliary.tsv", drawn / "images.tsv", drawn / "texts.tsv", method="CVH", bits=16,
        fine_tune=settings,
    ) as engine:  # fmt: skip
        images = engine.encoder.image_features
        assert isinstance(images, FineTunedFeatures)
        own = Encoder.load(tuned_run).image_features
        assert isinstance(own, FineTunedFeatures)
        assert images.digest == own.digest


@pytest.mark.slow
def test_a_benchmark_is_fine_tuned_by_another_method_within_minutes(
    drawn: Path, tmp_path: Path, command: Command
) -> None:
    said = command(
        "fit", "qch", "--benchmark", drawn, "--bits", 16, *TUNING, "--teacher", "thn",
        "--minutes", 5, "--out", tmp_path / "run",
    )  # fmt: skip
    assert "efficientnet-lite0+tuned" in said.out
    record = json.loads((tmp_path / "run" / "fine-tuning" / "tuning.json").read_text())
    assert record["teacher"] == "THN"
    command("evaluate", tmp_path / "run", "--benchmark", drawn, "--json")


def test_what_cannot_be_fine_tuned_is_refused_before_anything_is_read(
    drawn: Path, tmp_path: Path, command: Command
) -> None:
    out = ["--out", tmp_path / "run"]
    files = own_files(drawn)
    for options, sentence in (
        ([*files, "--fine-tune", "--features", "alexnet"], "alexnet is no backbone that can be "
         "fine-tuned; use --features efficientnet-lite0"),
        ([*files, "--blocks", 3], "blocks, minutes, teacher and fine_tune settings need "
         "--fine-tune"),
        ([*files, "--fine-tune", "--set", "fine_tune.stepps=2"], "fine-tuning has no setting "
         "'stepps'; it has "),
        ([*files, "--fine-tune", "--blocks", 0], "blocks takes a whole number of 1 or more"),
        ([*files, "--fine-tune", "--teacher", "knn"], "kNN scores pairs and makes no codes"),
        ([*write_features(tmp_path / "data"), "--fine-tune"], "precomputed image features cannot "
         "be fine-tuned; give the image files"),
    ):  # fmt: skip
        assert command.refused("fit", "thn", *options, *out).startswith(sentence)
    assert not (tmp_path / "run").exists()
