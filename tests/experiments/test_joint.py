"""What a joint model's own embedding gives: rows that are right where the embedding is."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from features.tiny_models import tiny_clip
from transhash.data.relation import LabelRelation
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.datasets.synthetic import make_synthetic
from transhash.features.words import WordFeatures
from transhash.training.split_data import LabeledFeatures, SplitData, TestSet

FILE = Path(__file__).parents[2] / "benchmarks" / "joint.py"
CLASSES, WIDTH = 6, 24


@pytest.fixture(scope="module")
def joint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("joint", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def task_of(noise: float, gap: float) -> SplitData:
    """Both sides in one space: a direction a class, noise, and a gap between the sides."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, WIDTH))
    spread_labels = gap * rng.standard_normal(WIDTH)

    def side(count: int, sign: int) -> LabeledFeatures:
        kinds = np.arange(count) % CLASSES
        rows = centres[kinds] + noise * rng.standard_normal((count, WIDTH)) + sign * spread_labels
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return LabeledFeatures(rows.astype(np.float32), np.eye(CLASSES, dtype=bool)[kinds])

    images, texts = side(60, 1), side(60, -1)
    relation = LabelRelation(images.labels, texts.labels)
    seen = side(60, 1).features, side(60, -1).features
    return SplitData(
        TrainingSet(images.features, texts.features, relation, *seen),
        AuxiliarySet(images.features, texts.features, relation),
        WordFeatures(),
        TestSet(side(30, 1), side(30, -1), side(90, 1), side(90, -1)),
    )


@pytest.mark.parametrize("row", ["cosine", "sign", "rotated", "ITQ"])
def test_a_row_is_as_good_as_the_embedding(row: str, joint: ModuleType) -> None:
    *right, chance = joint.maps_of(row, task_of(noise=0.1, gap=0.0), 16, 0)
    assert min(right) > 0.9
    assert chance == pytest.approx(1 / CLASSES, abs=0.05)
    *nothing, _ = joint.maps_of(row, task_of(noise=100.0, gap=0.0), 16, 0)
    assert max(nothing) < 0.35


def test_a_gap_between_the_sides_does_not_disturb_itq(joint: ModuleType) -> None:
    """Each side less its own mean: what signs alone cannot do."""
    task = task_of(noise=0.1, gap=3.0)
    assert min(joint.maps_of("ITQ", task, 16, 0)[:2]) > 0.9
    assert max(joint.maps_of("sign", task, 16, 0)[:2]) < 0.9


def test_all_rows_run_from_a_folder_and_a_model(
    joint: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    model = tiny_clip(tmp_path / "clip")
    folder = make_synthetic(tmp_path / "drawn", per_class=3)
    arguments = [str(folder), f"transformers:{model}", "--bits", "8", "--methods", "CVH"]
    monkeypatch.setattr(sys, "argv", ["joint.py", *arguments, "--seeds", "2"])
    joint.main()
    rows = re.findall(r"^\| (\w+) \| ([\d-]+) \|", capsys.readouterr().out, re.MULTILINE)
    expected = [("cosine", "-"), ("sign", "16"), ("rotated", "8"), ("ITQ", "8"), ("CVH", "8")]
    assert rows == expected
