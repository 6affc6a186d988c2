"""image_features of a plan: results of different models are never mixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from features.tiny_models import tiny_clip
from transhash.datasets.synthetic import make_synthetic
from transhash.errors import DataError
from transhash.experiments.runner import run_experiment


def test_results_of_two_models_are_not_mixed_in_one_file(tmp_path: Path) -> None:
    model = tiny_clip(tmp_path / "clip")
    folder = make_synthetic(tmp_path / "data", per_class=3)
    plan = tmp_path / "plan.toml"
    name = f"transformers:{model}"
    both = f'image_features = "{name}"\ntext_features = "{name}"\n'
    head = 'benchmark = "folder"\nmethods = ["CVH"]\nbits = [8]\ntune = false\n'
    plan.write_text(f"{head}seeds = [0]\n{both}")
    quiet = Console(quiet=True)
    path = run_experiment(plan, folder, tmp_path / "out", console=quiet)
    (row,) = map(json.loads, path.read_text().splitlines())
    assert row["shared"]["image_features"] == row["text_features"] == name
    assert row["shared"]["image_model"]
    shutil.rmtree(model)
    tiny_clip(model, seed=1)
    plan.write_text(f"{head}seeds = [0, 1]\n{both}")
    with pytest.raises(DataError, match=r"image_model = .*another --out"):
        run_experiment(plan, folder, tmp_path / "out", console=quiet)
    plan.write_text(f"{head}seeds = [0, 1]\n")
    with pytest.raises(DataError, match=r"image_features = .*another --out"):
        run_experiment(plan, folder, tmp_path / "out", console=quiet)
