"""fit --fine-tune: a run with its own backbone, from the command to its codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transhash
from scale.command import Command
from training.feature_files import write_features
from transhash.data.manifest import read_images
from transhash.datasets.synthetic import make_synthetic
from transhash.features.backbone import FineTunedFeatures
from transhash.model.encoder import Encoder
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run
from transhash.storage import read_tensors, write_tensors
from transhash.training import fit as fitting

TUNING = [
    "--fine-tune", "--fine-tune-blocks", "2", "--set", "fine_tune.steps=3",
    "--set", "fine_tune.batch_size=8", "--set", "fine_tune.target_batch_size=8",
    "--set", "fine_tune.cached_views=1", "--set", "fine_tune.learning_rate=0.01",
]  # fmt: skip


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("fine-tuned") / "synthetic", per_class=2)


def own_files(synthetic: Path) -> list[object]:
    return [
        "--auxiliary", synthetic / "auxiliary.tsv", "--images", synthetic / "images.tsv",
        "--texts", synthetic / "texts.tsv", "--bits", 16,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def tuned_run(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "tuned"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["transhash", "fit", "cvh", *map(str, own_files(synthetic)),
                                   *TUNING, "--out", str(run)])  # fmt: skip
        from transhash.cli import main

        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
    return run


def codes(run: Path, synthetic: Path) -> np.ndarray:
    return Encoder.load(run).encode_images(read_images(synthetic / "images.tsv"))[0].packed


def test_the_run_names_its_backbone_and_is_consistent(tuned_run: Path) -> None:
    config = json.loads((tuned_run / "config.json").read_text())
    assert config["image_features"] == "efficientnet-lite0+tuned"
    assert "backbone.safetensors" in config["files"]
    assert json.loads((tuned_run / "report.json").read_text())["image_features"].endswith("+tuned")
    record = json.loads((tuned_run / "fine-tuning" / "fine_tuning.json").read_text())
    assert (record["teacher"], record["steps"]) == ("CVH", 3)
    loaded = Encoder.load(tuned_run).image_features
    assert isinstance(loaded, FineTunedFeatures)
    assert loaded.digest == record["digest"]
    assert not (tuned_run / "fine-tuning" / "backbone.safetensors").exists()  # one copy
    assert verify_run(tuned_run) == []


def test_the_fine_tuned_features_are_searched(
    tuned_run: Path, synthetic: Path, tmp_path: Path, command: Command
) -> None:
    run = shutil.copytree(tuned_run, tmp_path / "run")
    command("index", run, "--images", synthetic / "images.tsv")
    by_batch = codes(run, synthetic)
    images = read_images(synthetic / "images.tsv")
    encoder = Encoder.load(run)
    one_by_one = np.concatenate([encoder.encode_image(path).packed for path in images.items])
    assert np.array_equal(by_batch, one_by_one)
    engine = SearchEngine.open(run)
    try:
        hits = engine.similar_to_image(images.items[5], k=1, modality="images")
        assert hits[0].distance == 0
    finally:
        engine.close()
    frozen = Encoder(encoder.hasher, encoder.image_features.base, None)  # type: ignore[union-attr]
    assert not np.array_equal(frozen.encode_images(images)[0].packed, by_batch)


def test_a_changed_backbone_is_detected(
    tuned_run: Path, synthetic: Path, tmp_path: Path, command: Command
) -> None:
    run = shutil.copytree(tuned_run, tmp_path / "run")
    path = run / "backbone.safetensors"
    weights = read_tensors(path)
    name = sorted(weights)[0]
    write_tensors(path, {**weights, name: weights[name] + 1})
    assert [finding.part for finding in verify_run(run)] == ["model"]
    assert str(path) in command.refused("search", run, "--text", "boat")
    path.unlink()
    assert str(path) in verify_run(run)[0].problem


def test_a_frozen_fit_into_the_same_folder_removes_the_backbone(
    tuned_run: Path, synthetic: Path, tmp_path: Path, command: Command
) -> None:
    run = shutil.copytree(tuned_run, tmp_path / "run")
    command("fit", "cvh", *own_files(synthetic), "--out", run)
    assert not (run / "backbone.safetensors").exists()
    assert verify_run(run) == []
    assert Encoder.load(run).image_features.name == "efficientnet-lite0"  # type: ignore[union-attr]


def test_a_fit_killed_after_the_fine_tuning_does_not_tune_again(
    tuned_run: Path, synthetic: Path, tmp_path: Path, command: Command, monkeypatch: Any
) -> None:
    run = tmp_path / "run"

    def interrupt(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitting.Fit, "validation_scores", interrupt)
        command("fit", "cvh", *own_files(synthetic), *TUNING, "--out", run, code=130)
    assert not (run / "config.json").exists()
    backbone = run / "fine-tuning" / "backbone.safetensors"
    written = backbone.stat().st_mtime_ns
    monkeypatch.setattr(fitting, "delete_backbone", lambda run: None)
    command("fit", "cvh", *own_files(synthetic), *TUNING, "--out", run)
    assert backbone.stat().st_mtime_ns == written
    assert np.array_equal(codes(run, synthetic), codes(tuned_run, synthetic))


def test_fine_tuning_from_python_gives_the_same_backbone(tuned_run: Path, synthetic: Path) -> None:
    settings = {
        "blocks": 2, "steps": 3, "batch_size": 8, "target_batch_size": 8, "cached_views": 1,
        "learning_rate": 0.01,
    }  # fmt: skip
    with transhash.fit(
        synthetic / "auxiliary.tsv", synthetic / "images.tsv", synthetic / "texts.tsv",
        method="CVH", bits=16, fine_tune=settings,
    ) as engine:  # fmt: skip
        images = engine.encoder.image_features
        assert isinstance(images, FineTunedFeatures)
        own = Encoder.load(tuned_run).image_features
        assert isinstance(own, FineTunedFeatures)
        assert images.digest == own.digest


@pytest.mark.slow
def test_a_benchmark_run_can_be_fine_tuned_by_another_method(
    synthetic: Path, tmp_path: Path, command: Command
) -> None:
    result = command(
        "fit", "qch", "--benchmark", synthetic, "--bits", 16, *TUNING, "--fine-tune-teacher", "thn",
        "--fine-tune-minutes", 5, "--out", tmp_path / "run",
    )  # fmt: skip
    assert "efficientnet-lite0+tuned" in result.out
    record = json.loads((tmp_path / "run" / "fine-tuning" / "fine_tuning.json").read_text())
    assert record["teacher"] == "THN"
    command("evaluate", tmp_path / "run", "--benchmark", synthetic, "--json")


def test_wrong_fine_tuning_options_are_rejected_early(
    synthetic: Path, tmp_path: Path, command: Command
) -> None:
    out = ["--out", tmp_path / "run"]
    files = own_files(synthetic)
    for options, phrase in (
        ([*files, "--fine-tune", "--features", "alexnet"], "alexnet cannot be fine-tuned"),
        ([*files, "--fine-tune-blocks", 3], "need --fine-tune"),
        ([*files, "--fine-tune", "--set", "fine_tune.stepps=2"], "no setting 'stepps'"),
        ([*files, "--fine-tune", "--fine-tune-blocks", 0], "blocks must be"),
        ([*files, "--fine-tune", "--fine-tune-teacher", "knn"], "kNN produces no codes"),
        ([*write_features(tmp_path / "data"), "--fine-tune"], "Precomputed image features"),
    ):
        assert phrase in command.refused("fit", "thn", *options, *out)
    assert not (tmp_path / "run").exists()
