"""THN: resuming, collapse, the paper's recipe, the transfer step, AlexNet."""

import json
import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers import make_hasher
from transhash.hashers.canonical import canonical_analysis
from transhash.hashers.components import leave_one_out_coordinates
from transhash.hashers.deep import AlexNet
from transhash.hashers.thn import PAPER, THN
from transhash.hashers.thn.initialization import calibrate_relation
from transhash.hashers.thn.transfer import TransferStep
from transhash.hashers.training_loop import (
    Checkpoint,
    collapse_warning,
    fingerprint,
    lr_factor,
)
from transhash.storage import write_tensors

from .worlds import World

SMALL: dict[str, Any] = {"bits": 16, "steps": 60, "batch_size": 64, "target_batch_size": 32}


@pytest.fixture(scope="module")
def training() -> TrainingSet:
    return World().training(300)


class Killed(Exception):
    pass


def kill_after(steps: int) -> Any:
    def track(items: Any, description: str, total: int | None = None, start: int = 0) -> Any:
        for count, item in enumerate(items):
            if count == steps:
                raise Killed
            yield item

    return track


def test_a_killed_fit_resumes_exactly(training: TrainingSet, tmp_path: Path) -> None:
    uninterrupted = THN(**SMALL).fit(training)
    with pytest.raises(Killed):
        THN(**SMALL).fit(training, folder=tmp_path, track=kill_after(41))
    resumed = THN(**SMALL).fit(training, folder=tmp_path)
    for name, array in uninterrupted.state().items():
        assert np.array_equal(array, resumed.state()[name]), name
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == list(range(60))
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_checkpoint_of_other_settings_is_not_resumed(
    training: TrainingSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Killed):
        THN(**SMALL).fit(training, folder=tmp_path, track=kill_after(41))
    other = {**SMALL, "learning_rate": 1e-4}
    with caplog.at_level(logging.WARNING):
        again = THN(**other).fit(training, folder=tmp_path)
    assert "starts from step 0" in caplog.text
    assert np.array_equal(
        again.state()["towers.image.fch.weight"],
        THN(**other).fit(training).state()["towers.image.fch.weight"],
    )


def test_a_checkpoint_of_another_relation_is_not_resumed(
    training: TrainingSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(training.relation, LabelRelation)
    rotated = LabelRelation(
        np.roll(training.relation.image_labels, 1, axis=0), training.relation.text_labels
    )
    with pytest.raises(Killed):
        THN(**SMALL).fit(training, folder=tmp_path, track=kill_after(41))
    with caplog.at_level(logging.WARNING):
        THN(**SMALL).fit(replace(training, relation=rotated), folder=tmp_path, track=kill_after(99))
    assert "starts from step 0" in caplog.text


@pytest.mark.parametrize("part", ["images", "texts", "target_images", "target_texts"])
def test_the_fingerprint_depends_on_all_data(training: TrainingSet, part: str) -> None:
    other = np.array(getattr(training, part))
    other[-1, -1] += 1
    name = fingerprint({"bits": 16}, training)
    assert fingerprint({"bits": 16}, training) == name
    assert fingerprint({"bits": 24}, training) != name
    assert fingerprint({"bits": 16}, replace(training, **{part: other})) != name


def test_the_moving_average_of_the_weights_is_used(training: TrainingSet) -> None:
    """After one step the average is a tenth the initial and nine tenths the new weights."""

    def weights(**settings: Any) -> Any:
        return (
            THN(**{**SMALL, "steps": 1, **settings}).fit(training).state()["towers.text.fch.weight"]
        )

    initial, trained = weights(ema_decay=0.0, learning_rate=1e-12), weights(ema_decay=0.0)
    assert np.abs(trained - initial).max() > 1e-5
    np.testing.assert_allclose(weights(ema_decay=0.98), 0.1 * initial + 0.9 * trained, atol=1e-7)


def test_a_diverging_training_is_reported_and_writes_nothing(
    training: TrainingSet, tmp_path: Path
) -> None:
    hasher = THN(**{**SMALL, "learning_rate": 1e30})
    with pytest.raises(DataError, match="diverged"):
        hasher.fit(training, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("use_target", [True, False])
def test_the_papers_recipe_aligns_with_target_items(
    training: TrainingSet, use_target: bool
) -> None:
    settings = {**SMALL, "steps": 2, "use_target": use_target}
    paper = make_hasher("THN-paper", **settings).fit(training)
    assert isinstance(paper, THN)
    assert set(paper.alignment_) == ({"images", "texts"} if use_target else set())


def test_the_papers_recipe_has_every_setting() -> None:
    other = {"bits", "seed", "device", "precision", "weights"}
    assert set(PAPER) == {field.name for field in fields(THN)} - other


def test_target_images_without_target_texts_are_used(training: TrainingSet) -> None:
    images_only = replace(training, target_texts=None)
    hasher = THN(**SMALL).fit(images_only)
    assert set(hasher.alignment_) == {"images"}
    without = THN(**SMALL).fit(replace(images_only, target_images=None))
    assert hasher.encode_images(training.images) != without.encode_images(training.images)


def test_a_subclass_can_use_any_tower(training: TrainingSet) -> None:
    class Wide(THN):
        def image_tower(self, shape: Any, generator: Any, load: bool) -> Any:
            return torch.nn.Sequential(
                torch.nn.Linear(shape[0], 24), torch.nn.Linear(24, self.bits)
            )

    hasher = Wide(**{**SMALL, "rotation_trials": 0}).fit(training)
    assert hasher.state()["towers.image.0.weight"].shape[0] == 24
    again = Wide(**{**SMALL, "rotation_trials": 0}).restore(hasher.state())
    assert again.encode_images(training.images) == hasher.encode_images(training.images)


def test_every_step_logs_the_terms_of_the_objective(training: TrainingSet, tmp_path: Path) -> None:
    THN(**SMALL).fit(training, folder=tmp_path)
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    names = {"relation", "quantization", "inherited", "alignment_images", "alignment_texts"}
    assert names | {"step", "objective"} == set(last)
    assert last["objective"] == pytest.approx(sum(last[name] for name in names), abs=1e-4)


def test_mmd_before_and_after_training_is_reported(training: TrainingSet) -> None:
    alignment = THN(**SMALL).fit(training).alignment_
    assert set(alignment) == {"images", "texts"}
    assert all(values["before"] > 0 and values["after"] >= -1e-6 for values in alignment.values())


def test_without_target_data_thn_equals_its_ablation_thn_d(training: TrainingSet) -> None:
    plain = replace(training, target_images=None, target_texts=None)
    aligned = THN(**SMALL).fit(plain)
    ablated = make_hasher("THN-D", **SMALL).fit(training)
    assert aligned.encode_images(training.images) == ablated.encode_images(training.images)


def test_only_collapsed_codes_give_a_warning() -> None:
    rng = np.random.default_rng(0)
    random = Codes.from_projections(rng.standard_normal((100, 16)))
    assert collapse_warning(random) is None
    two_classes = Codes(np.repeat(np.array([[0, 0], [255, 255]], np.uint8), 50, axis=0), 16)
    assert collapse_warning(two_classes) is None
    one = Codes(np.zeros((100, 2), np.uint8), 16)
    assert "1 distinct code among 100" in str(collapse_warning(one))


def test_the_papers_recipe_collapses_and_warns(
    training: TrainingSet, caplog: pytest.LogCaptureFixture
) -> None:
    """Because of unweighted pairs and λ = 1e-2 from the first step; see docs/differences.md."""
    small = {
        **SMALL, "image_hidden": (64,), "text_hidden": (64,), "quantization_weight": 1e-2
    }  # fmt: skip
    paper = make_hasher("THN-paper", **{**small, "steps": 300, "learning_rate": 0.03})
    assert isinstance(paper, THN)
    with caplog.at_level(logging.WARNING):
        paper.fit(training)
    assert paper.encode_texts(training.texts).distinct() < 30  # of 300
    assert "codes collapsed" in paper.warnings_[0]
    assert len(paper.warnings_) == 1
    assert "balanced=True" in caplog.text


def test_after_a_collapse_training_continues_without_q_and_d(
    training: TrainingSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "transhash.hashers.thn.thn.collapse_warning", lambda codes: "codes collapsed: test"
    )
    hasher = THN(**SMALL).fit(training, folder=tmp_path)
    assert "without quantization and alignment" in hasher.warnings_[0]
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert "quantization" not in last
    assert "alignment_images" not in last


@pytest.mark.parametrize("bits", [8, 64, 128])
def test_no_code_length_collapses(training: TrainingSet, bits: int) -> None:
    hasher = THN(**{**SMALL, "bits": bits}).fit(training)
    assert not hasher.warnings_
    assert hasher.encode_images(training.images).distinct() > 4


def test_leave_one_out_coordinates_equal_those_of_a_refit_without_the_item() -> None:
    """Compares the closed form with a ridge regression without item i."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 6)), rng.standard_normal((30, 5))
    relation = World().training(40).relation.subset(np.arange(40), np.arange(30))
    counts = relation.times(np.ones((30, 1)))
    x -= (counts.T @ x / counts.sum()).ravel()
    ridge = 0.1
    analysis = canonical_analysis(x, y, relation, ridge, 3, centered=True)
    pairs = counts.sum()
    covariance = (x * counts).T @ x / pairs
    largest = np.linalg.eigvalsh(covariance)[-1]
    i = 7
    aim = relation.times(y @ analysis.text_axes) / counts / analysis.s
    others = np.arange(40) != i
    gram = (x[others] * counts[others]).T @ x[others] / pairs + ridge * largest * np.eye(6)
    weights = np.linalg.solve(gram, (x[others] * counts[others]).T @ aim[others] / pairs)
    assert np.allclose(leave_one_out_coordinates(analysis, x, y, relation)[0][i], x[i] @ weights)


def test_empty_target_arrays_are_the_same_as_none(training: TrainingSet) -> None:
    none = replace(training, target_images=None, target_texts=None)
    images, texts = training.images[:0], training.texts[:0]
    empty = replace(training, target_images=images, target_texts=texts)
    result, expected = (THN(bits=16, steps=5).fit(part) for part in (empty, none))
    rows = training.images
    np.testing.assert_array_equal(result.project_images(rows), expected.project_images(rows))


def test_a_sample_of_many_target_items_is_analyzed(monkeypatch: pytest.MonkeyPatch) -> None:
    training = World(classes=6).training(300)
    monkeypatch.setattr(TransferStep, "max_target_items", 40)
    transfer = TransferStep(32, 0.05, None, 4, 0.05, 0.5, 0)
    layer, inputs = transfer.build(training, use_target=True)
    assert len(inputs.images) == 300
    assert inputs.target_images is not None
    assert inputs.target_texts is not None
    assert (len(inputs.target_images), len(inputs.target_texts)) == (40, 40)
    assert np.isfinite(inputs.target_images).all()
    assert layer.image is not None


def test_the_rank_is_chosen_from_the_relation_alone() -> None:
    world = World(classes=6)
    transfer = TransferStep(32, 0.05, None, 4, 0.05, 0.5, 0)
    layer, inputs = transfer.build(world.training(400), use_target=True)
    assert layer.text.axes is not None
    assert layer.text.axes.shape[1] == 5  # classes - 1
    assert inputs.images.shape == (400, 5)


def test_calibration_gives_the_right_fraction_of_related_pairs(training: TrainingSet) -> None:
    _, inputs = TransferStep(32, 0.05, None, 4, 0.05, 0.5, 0).build(training, use_target=False)
    calibration = calibrate_relation(inputs.images, inputs.texts, training.relation, 0)
    assert calibration is not None
    slope, offset = calibration
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (inputs.images, inputs.texts))
    probability = 1 / (1 + np.exp(-(slope * (x @ y.T) + offset)))
    rate = training.relation.positives / training.relation.known
    assert probability.mean() == pytest.approx(rate, rel=0.15)


def test_thn_learns_from_rare_pairs(training: TrainingSet, tmp_path: Path) -> None:
    world = World()
    sample = world.draw(300)
    keys = [str(i) for i in range(300)]
    pairs = TrainingSet(sample.images, sample.texts, SparseRelation.from_pairs(keys, keys))
    hasher = THN(**SMALL).fit(pairs, folder=tmp_path)
    assert not hasher.warnings_
    assert np.isfinite(hasher.project_images(sample.images)).all()


def test_features_of_another_width_are_refused(training: TrainingSet) -> None:
    hasher = THN(**SMALL).fit(training)
    with pytest.raises(DataError, match="same features"):
        hasher.encode_images(training.images[:, :-1])


def test_learning_rate_schedules_of_caffe() -> None:
    assert lr_factor("inv", 0, 100) == 1.0
    assert lr_factor("inv", 1000, 2000) == pytest.approx(3**-0.75)
    assert [lr_factor("step", t, 9000) for t in (0, 1999, 2000, 4000)] == [1, 1, 0.5, 0.25]


def test_a_missing_gpu_is_reported() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(DataError, match="GPU"):
        THN(device="cuda")


@pytest.mark.slow
def test_alexnet_is_fine_tuned_from_pixels_with_fch_ten_times_faster(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (8, 3, 224, 224), dtype=np.uint8)
    texts = rng.standard_normal((8, 10)).astype(np.float32)
    relation = SparseRelation.from_pairs(list("abcdefgh"), list("abcdefgh"))
    conv = {
        name: value.numpy()
        for name, value in AlexNet(16).state_dict().items()
        if name.startswith("features.")
    }
    write_tensors(tmp_path / "alexnet.safetensors", conv)
    hasher = make_hasher(
        "THN-paper",
        bits=16,
        steps=2,
        batch_size=4,
        target_batch_size=4,
        learning_rate=0.01,
        weights=str(tmp_path / "alexnet.safetensors"),
    )
    hasher.fit(TrainingSet(pixels, texts, relation, pixels[:4], texts[:4]))
    assert "classifier.1.weight" in hasher.fresh_layers_  # conv layers were in the file
    change = hasher.state()["towers.image.features.0.weight"] - conv["features.0.weight"]
    assert np.abs(change).max() > 0
    rates = {group["lr"] for group in hasher._parameter_groups(hasher.towers_)}
    assert rates == {0.01, 0.1}
    assert len(hasher.encode_images(pixels)) == 8


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "other.safetensors", {"x": np.zeros(3, np.float32)})
    with pytest.raises(DataError, match="AlexNet"):
        AlexNet(8).load_weights(tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="does not exist"):
        AlexNet(8).load_weights(tmp_path / "missing.pth")


def test_a_fit_resumed_after_a_collapse_continues_without_q_and_d(
    training: TrainingSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def collapse_once() -> None:
        messages = iter(["codes collapsed: test"])
        monkeypatch.setattr(
            "transhash.hashers.thn.thn.collapse_warning", lambda codes: next(messages, None)
        )

    settings = {**SMALL, "quantization_weight": 1.0, "quantization_start": 0.0}
    monkeypatch.setattr(Checkpoint, "is_due", lambda _: True)
    collapse_once()
    whole = THN(**settings).fit(training)
    collapse_once()
    with pytest.raises(Killed):
        THN(**settings).fit(training, folder=tmp_path, track=kill_after(41))
    resumed = THN(**settings).fit(training, folder=tmp_path)  # no message is left
    assert resumed.warnings_ == whole.warnings_
    assert len(whole.warnings_) == 1
    assert all(np.array_equal(resumed.state()[name], whole.state()[name]) for name in whole.state())


def test_many_pairs_are_calibrated_as_few_are() -> None:
    rng = np.random.default_rng(0)

    def calibrate(n: int) -> tuple[float, float] | None:
        x = rng.standard_normal((n, 8)).astype(np.float32)
        y = (x + rng.standard_normal((n, 8))).astype(np.float32)
        pairs = SparseRelation.from_pairs(*[[str(i) for i in range(n)]] * 2)
        return calibrate_relation(x, y, pairs, seed=0)

    small, large = calibrate(1_000), calibrate(100_000)  # 10 of these pairs are left by chance
    assert small is not None
    assert large is not None
    assert large[0] == pytest.approx(small[0], rel=0.15)
    assert small[1] - large[1] == pytest.approx(np.log(100), abs=0.7)  # pairs are 100 times rarer
