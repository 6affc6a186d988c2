"""Fine-tuning: what is trained, its terms, budget, views and resuming."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hashers.tiny_backbone import Scene, TinyBackbone
from transhash.errors import DataError
from transhash.features.backbone import FineTunedFeatures
from transhash.hashers import make_hasher
from transhash.hashers.base import Hasher
from transhash.hashers.deep import Device
from transhash.hashers.fine_tuning import FineTuning, fine_tune, loop
from transhash.hashers.fine_tuning.batches import (
    CachedViews,
    FineTuningBatches,
    ImageHead,
    RandomViews,
    apply_crops,
    draw_crops,
    teacher_targets,
)
from transhash.hashers.fine_tuning.loop import TimeBudget, cosine_with_warmup, steps_within
from transhash.hashers.thn import THN
from transhash.hashers.world import SINGLE_PROCESS
from transhash.progress import no_progress

SMALL: dict[str, Any] = {
    "batch_size": 32, "target_batch_size": 32, "text_batch": 40, "learning_rate": 3e-3, "steps": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


@pytest.fixture(scope="module")
def teacher(scene: Scene) -> Hasher:
    return THN(bits=16, steps=60).fit(scene.training)


def tune(scene: Scene, teacher: Hasher, settings: dict[str, Any], **more: Any) -> FineTunedFeatures:
    return fine_tune(
        TinyBackbone(), scene.images, scene.target_images, scene.training, teacher,
        FineTuning(**{**SMALL, **settings}), **more,
    )  # fmt: skip


def equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray], part: str) -> bool:
    names = [name for name in left if part in name]
    assert names
    return all(np.array_equal(left[name], right[name]) for name in names)


def test_all_stages_are_trained_unless_blocks_is_set(scene: Scene, teacher: Hasher) -> None:
    before = TinyBackbone().trainable().weights()
    full = tune(scene, teacher, {"steps": 3}).weights
    last = tune(scene, teacher, {"steps": 3, "blocks": 1}).weights
    for stage in ("stages.0", "stages.1", "stages.2"):
        assert not equal(before, full, f"{stage}.0.weight")
    assert equal(before, last, "stages.0")
    assert equal(before, last, "stages.1")
    assert not equal(before, last, "stages.2.0.weight")


def test_batch_norm_statistics_are_frozen_or_those_of_the_target(
    scene: Scene, teacher: Hasher
) -> None:
    before = TinyBackbone().trainable().weights()
    frozen = tune(scene, teacher, {"steps": 2}).weights
    target = tune(scene, teacher, {"steps": 2, "batch_norm_statistics": "target"}).weights
    assert equal(before, frozen, "running")
    pixels = torch.from_numpy(scene.target_images[:64]).permute(0, 3, 1, 2).float()
    conv = TinyBackbone().trainable().stages[0][0]  # type: ignore[index]
    with torch.no_grad():
        first = conv((pixels - 127.0) / 64.0).mean(dim=(0, 2, 3)).numpy()
        rest = torch.from_numpy(scene.target_images[64:]).permute(0, 3, 1, 2).float()
        second = conv((rest - 127.0) / 64.0).mean(dim=(0, 2, 3)).numpy()
    np.testing.assert_allclose(
        target["stages.0.1.running_mean"], (first + second) / 2, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["labels", "pairs", "clicks"])
def test_terms_decrease_and_terms_without_weight_are_absent(kind: str, tmp_path: Path) -> None:
    scene = Scene(kind)
    teacher = THN(bits=16, steps=40).fit(scene.training)
    tune(scene, teacher, {"steps": 60, "augment": False}, folder=tmp_path / "all")
    rows = [json.loads(line) for line in (tmp_path / "all" / "metrics.jsonl").open()]
    assert set(rows[-1]) == {
        "step", "relation", "quantization", "inherited", "alignment_images", "alignment_texts",
    }  # fmt: skip
    for term in ("relation", "inherited"):
        values = [row[term] for row in rows]
        assert np.mean(values[-10:]) < np.mean(values[:10]), term
    off = {"quantization_weight": 0, "pseudo_label_weight": 0, "alignment_weight": 0}
    tune(scene, teacher, {**off, "steps": 2}, folder=tmp_path / "one")
    rows = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").open()]
    assert [set(row) for row in rows] == [{"step", "relation"}] * 2


def test_quantization_and_alignment_decrease_with_their_weight(
    scene: Scene, teacher: Hasher, tmp_path: Path
) -> None:
    for term, settings in (
        ("quantization", {"quantization_weight": 1.0}),
        ("alignment_images", {"alignment_weight": 30.0}),
    ):
        means = []
        for name, weights in (("with", settings), ("without", dict.fromkeys(settings, 0.01))):
            out = tmp_path / term / name
            tune(scene, teacher, {"steps": 60, "augment": False, **weights}, folder=out)
            rows = [json.loads(line) for line in (out / "metrics.jsonl").open()][-10:]
            means.append(np.mean([row[term] for row in rows]) / next(iter(weights.values())))
        assert means[0] < means[1], term


def test_fine_tuning_separates_classes_that_the_frozen_backbone_confuses(scene: Scene) -> None:
    """Scores a linear map, fitted on auxiliary rows, on target rows."""
    teacher = THN(bits=16, steps=40).fit(scene.training)
    settings = {"steps": 60, "learning_rate": 1e-2, "ema_decay": 0.9}
    tuned = tune(scene, teacher, settings)

    def accuracy(images: np.ndarray, target: np.ndarray) -> float:
        x, t = images - images.mean(axis=0), target - target.mean(axis=0)
        gram = x.T @ x
        gram += 1e-2 * np.trace(gram) / len(gram) * np.eye(len(gram))
        scores = t @ np.linalg.solve(gram, x.T @ (np.eye(4)[scene.labels] - 0.25))
        return float((scores.argmax(axis=1) == scene.target_labels).mean())

    assert scene.training.target_images is not None
    frozen = accuracy(scene.training.images, scene.training.target_images)
    assert accuracy(tuned.extract(scene.images), tuned.extract(scene.target_images)) > frozen + 0.2


def test_without_use_target_target_images_have_no_effect(scene: Scene, teacher: Hasher) -> None:
    other = Scene()
    other.target_images = 255 - scene.target_images
    left, right = (
        tune(one, teacher, {"steps": 3, "use_target": False}).weights for one in (scene, other)
    )
    assert all(np.array_equal(left[name], right[name]) for name in left)
    with_target = tune(scene, teacher, {"steps": 3}).weights
    assert not equal(left, with_target, "stages.2.0.weight")


@pytest.mark.parametrize(
    "settings", [{}, {"blocks": 2, "cached_views": 3}, {"batch_norm_statistics": "target"}]
)
def test_a_killed_fine_tuning_resumes_exactly(
    scene: Scene, teacher: Hasher, tmp_path: Path, settings: dict[str, Any]
) -> None:
    uninterrupted = tune(scene, teacher, settings)
    folder = tmp_path / "killed"
    starts: list[int] = []

    def kill_at_15(
        items: Iterable[Any], description: str, total: int | None = None, start: int = 0
    ) -> Iterator[Any]:
        for step in items:
            if description == "fine-tuning" and step == 15:
                raise KeyboardInterrupt
            yield step

    def record_start(
        items: Iterable[Any], description: str, total: int | None = None, start: int = 0
    ) -> Iterable[Any]:
        starts.extend([start] if description == "fine-tuning" else [])
        return items

    with pytest.raises(KeyboardInterrupt):
        tune(scene, teacher, settings, folder=folder, track=kill_at_15)
    resumed = tune(scene, teacher, settings, folder=folder, track=record_start)
    assert starts == [10]
    assert resumed.digest == uninterrupted.digest
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()]
    assert steps == list(range(24))
    assert not (folder / "checkpoint.safetensors").exists()


def test_a_budget_is_measured_once_and_stored(
    scene: Scene, teacher: Hasher, tmp_path: Path
) -> None:
    tune(scene, teacher, {"minutes": 1e-6}, folder=tmp_path)  # the minimum of steps
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["steps"] == 20
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "steps": 7}))
    tune(scene, teacher, {"minutes": 1e-6}, folder=tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 7
    tune(scene, teacher, {"minutes": 2e-6}, folder=tmp_path)  # another name, so measured again
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 20
    assert TimeBudget(tmp_path, "another", SINGLE_PROCESS).steps is None


@pytest.mark.parametrize(("images", "steps"), [(0, 300), (500, 300), (1920, 300), (1921, 301)])
def test_many_target_images_take_more_steps(images: int, steps: int) -> None:
    assert FineTuning().step_count(images) == steps
    assert FineTuning(target_batch_size=48).step_count(images) == max(300, -(-images * 15 // 48))
    assert FineTuning(steps=7).step_count(images) == 7


def test_only_images_that_are_trained_on_add_steps(
    scene: Scene, teacher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_DEFAULT_STEPS", 2)
    monkeypatch.setattr(loop, "_TARGET_PASSES", 1)
    for use_target, steps in (False, 2), (True, -(-len(scene.target_images) // 8)):
        settings = {"steps": None, "target_batch_size": 8, "use_target": use_target}
        tune(scene, teacher, settings, folder=tmp_path / str(steps))
        assert json.loads((tmp_path / str(steps) / "plan.json").read_text())["steps"] == steps


def test_steps_fit_into_the_remaining_time() -> None:
    assert steps_within(100.0, 2.0, 600) == 50
    assert steps_within(100.0, 0.1, 600) == 600
    assert steps_within(-5.0, 2.0, 600) == 20
    assert steps_within(1.0, 2.0, 6) == 6


def test_the_rate_rises_for_fifty_steps_and_falls_to_zero() -> None:
    factors = [cosine_with_warmup(step, 600) for step in range(600)]
    assert factors[0] == pytest.approx(1 / 50)
    assert int(np.argmax(factors)) == 49
    assert factors[-1] < 1e-4
    assert cosine_with_warmup(9, 50) == pytest.approx(0.5 * (1 + np.cos(np.pi * 9 / 50)))


def test_the_moving_average_of_the_weights_is_used(scene: Scene, teacher: Hasher) -> None:
    last = tune(scene, teacher, {"ema_decay": 0.0})
    mean = tune(scene, teacher, {"ema_decay": 0.99})
    start = TinyBackbone().trainable().weights()

    def distance(features: FineTunedFeatures) -> float:
        return sum(float(np.abs(v - start[n]).sum()) for n, v in features.weights.items())

    assert distance(mean) < distance(last)


def test_weights_are_interpolated_between_initial_and_trained(
    scene: Scene, teacher: Hasher
) -> None:
    start = TinyBackbone().trainable().weights()
    none, part, full = (
        tune(scene, teacher, {"weight_interpolation": value}).weights for value in (0, 0.25, 1)
    )
    assert equal(start, none, "stages.")
    for name, value in part.items():
        np.testing.assert_allclose(value, 0.75 * start[name] + 0.25 * full[name], atol=1e-5)
    assert not equal(none, full, "stages.0.0.weight")


def test_the_target_shift_is_applied_to_target_images_only(scene: Scene, teacher: Hasher) -> None:
    targets = teacher_targets(teacher, scene.training, 0, use_target=True)
    stages, device = TinyBackbone().trainable(), Device("cpu")
    views = [
        RandomViews(pixels, stages, 0, False, device)
        for pixels in (scene.images, scene.target_images)
    ]
    batches = FineTuningBatches(
        FineTuning(**SMALL), scene.training.relation, targets, views, 0, device
    )
    rows = np.arange(4)
    parts = [(batches.images, rows, None), (batches.target_images, rows, None)]
    shift = torch.full((16,), 0.5)
    head = ImageHead(torch.zeros(scene.training.images.shape[1], 16), torch.zeros(16), shift)
    modules = torch.nn.ModuleDict({"stages": stages, "head": head})
    auxiliary, target = batches.encode("image", parts, 0, modules, SINGLE_PROCESS)
    assert torch.equal(auxiliary, torch.zeros(4, 16))
    assert torch.equal(target, torch.tanh(shift).expand(4, 16))


def test_a_crop_of_the_full_image_is_the_image() -> None:
    pixels = torch.rand(3, 3, 8, 8) * 255
    plain = torch.tensor([[1.0, 0, 0, 1, 1, 1]]).repeat(3, 1)
    assert torch.allclose(apply_crops(pixels, plain), pixels, atol=1e-3)
    mirrored = torch.tensor([[1.0, 0, 0, -1, 1, 1]]).repeat(3, 1)
    assert torch.allclose(apply_crops(pixels, mirrored), pixels.flip(3), atol=1e-3)
    left_top = torch.tensor([[0.5, -0.5, -0.5, 1, 1, 1]]).repeat(3, 1)
    smooth = torch.arange(8.0).view(1, 1, 1, 8).expand(3, 3, 8, 8).contiguous()
    assert float(apply_crops(smooth, left_top).mean()) < 2.1
    dark = torch.tensor([[1.0, 0, 0, 1, 0.8, 1]]).repeat(3, 1)
    assert float(apply_crops(pixels, dark).mean()) == pytest.approx(
        0.8 * float(pixels.mean()), rel=0.02
    )


def test_crops_are_inside_and_depend_on_their_seeds_alone() -> None:
    crops = draw_crops(500, [1, 2])
    side = crops[:, 0]
    assert ((side >= 0.5) & (side <= 1)).all()
    assert (np.abs(crops[:, 1:3]) <= 1 - side[:, None] + 1e-6).all()
    assert set(crops[:, 3]) == {-1.0, 1.0}
    assert np.array_equal(crops, draw_crops(500, [1, 2]))
    assert not np.array_equal(crops, draw_crops(500, [1, 3]))


def test_cached_views_are_outputs_of_the_lower_stages(scene: Scene) -> None:
    stages = TinyBackbone().trainable()
    random = RandomViews(scene.images, stages, 2, False, Device("cpu"))
    cached = CachedViews(random, 2, [0], no_progress)
    rows = np.array([5, 0, 41])
    views = cached.draw(rows, slice(None), [3])
    torch.testing.assert_close(views, random.draw(rows, slice(None), [9]), rtol=2e-3, atol=1e-3)
    with torch.no_grad():
        rows_ = stages(torch.from_numpy(scene.images[rows]).permute(0, 3, 1, 2))
        torch.testing.assert_close(stages.forward_from(views, 2), rows_, rtol=1e-2, atol=1e-2)
    assert torch.equal(cached.draw(rows, slice(1, None, 2), [3]), views[1:2])


def test_files_and_their_pixels_give_the_same_result(
    scene: Scene, teacher: Hasher, tmp_path: Path
) -> None:
    files = scene.files(tmp_path)
    from_files = fine_tune(
        TinyBackbone(), *files, scene.training, teacher, FineTuning(**{**SMALL, "steps": 2})
    )
    assert from_files.digest == tune(scene, teacher, {"steps": 2}).digest
    files[0][3].write_text("not an image")
    with pytest.raises(DataError, match=r"0-003.png can no longer be read"):
        fine_tune(TinyBackbone(), *files, scene.training, teacher, FineTuning(**SMALL))


@pytest.mark.parametrize("method", ["QCH", "DCMH", "CVH"])
def test_other_methods_can_be_the_teacher(scene: Scene, method: str) -> None:
    settings = {"epochs": 2} if method == "DCMH" else {}
    teacher = make_hasher(method, bits=16, **settings).fit(scene.training)
    targets = teacher_targets(teacher, scene.training, 0, use_target=True)
    assert 0.9 < float(np.sqrt((targets.images**2).mean())) < 1.1
    tuned = tune(scene, teacher, {"steps": 2})
    assert np.isfinite(tuned.extract(scene.images)).all()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"blocks": 0}, "blocks must be"),
        ({"blocks": 9}, "3 blocks"),
        ({"batch_norm_statistics": "batch"}, "batch_norm_statistics must be frozen or target"),
        ({"minutes": -1}, "minutes must be a number above 0"),
        ({"soft_label_fraction": 2}, "soft_label_fraction must be"),
        ({"cached_views": 3}, "cached_views"),
        ({"batch_norm_statistics": "target", "use_target": False}, "needs target images"),
    ],
)
def test_invalid_settings_are_refused(
    scene: Scene, teacher: Hasher, settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(DataError, match=word):
        tune(scene, teacher, settings)


def test_images_of_other_features_are_refused(scene: Scene, teacher: Hasher) -> None:
    with pytest.raises(DataError, match=r"79 \+ 80 images"):
        fine_tune(TinyBackbone(), scene.images[1:], scene.target_images, scene.training, teacher)


def test_fine_tuning_works_without_target_images(scene: Scene) -> None:
    training = replace(scene.training, target_images=None)
    teacher = THN(bits=16, steps=20).fit(training)
    settings = FineTuning(**{**SMALL, "steps": 2})
    tuned = fine_tune(TinyBackbone(), scene.images, [], training, teacher, settings)
    assert not equal(TinyBackbone().trainable().weights(), tuned.weights, "stages.0.0.weight")


def test_a_diverging_training_is_reported(scene: Scene, teacher: Hasher, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="diverged"):
        tune(scene, teacher, {"learning_rate": 1e16, "weight_decay": 0}, folder=tmp_path / "far")
    assert not (tmp_path / "far" / "metrics.jsonl").exists()
