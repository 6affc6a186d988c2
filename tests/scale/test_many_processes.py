"""torchrun: several processes have the objective, gradients and checkpoints of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.data.manifest import read_texts
from transhash.features import LITE0
from transhash.features.efficientnet import trainable_lite
from transhash.model.encoder import Encoder
from transhash.storage import read_tensors

SCRIPT = Path(__file__).with_name("training_script.py")


def start(processes: int, *arguments: object) -> str:
    """Run a script in one process or under torchrun; return what it printed."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command += [str(processes)]
    # One thread: with more, results before training are rounded differently.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True, text=True, env=environment, timeout=900,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    kinds = [f"{kind}:{seed}" for kind in ("labels", "pairs", "paper") for seed in (0, 1)]
    start(1, SCRIPT, ",".join(kinds), 3, -1, "", tmp_path / "one")
    start(2, SCRIPT, ",".join(kinds), 3, -1, "", tmp_path / "two")
    for kind in kinds:
        single = np.load(tmp_path / f"one-{kind}.npz")["gradients"]
        distributed = np.load(tmp_path / f"two-{kind}.npz")["gradients"]
        assert single.shape == distributed.shape
        assert np.abs(single).max() > 1e-3
        np.testing.assert_allclose(distributed, single, rtol=0, atol=1e-6, err_msg=kind)


@pytest.mark.slow
def test_another_number_of_processes_can_resume_a_training(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    printed = start(3, SCRIPT, "labels", 20, 13, folder, tmp_path / "interrupted")
    assert printed.splitlines() == ["from step 0"]  # printed once, by any number of processes
    assert not (tmp_path / "interrupted-labels.npz").exists()
    assert (folder / "checkpoint.safetensors").exists()
    printed = start(2, SCRIPT, "labels", 20, -1, folder, tmp_path / "resumed")
    assert printed.splitlines() != ["from step 0"]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 20
    start(1, SCRIPT, "labels", 20, -1, "", tmp_path / "uninterrupted")
    resumed, uninterrupted = (
        np.load(tmp_path / f"{name}-labels.npz") for name in ("resumed", "uninterrupted")
    )
    assert np.array_equal(resumed["codes"], uninterrupted["codes"])
    np.testing.assert_allclose(resumed["z"], uninterrupted["z"], atol=1e-6)


@pytest.mark.slow
def test_fit_learns_the_same_under_torchrun(data: Path, tmp_path: Path) -> None:
    """The features are in the cache of `run`, so both fits only train."""
    arguments = [
        "-m", "transhash", "fit", "thn", "--auxiliary", data / "auxiliary.tsv",
        "--images", data / "images.tsv", "--texts", data / "texts.tsv", "--bits", 16,
        "--set", "steps=20", "--set", "dropout=0", "--set", "batch_size=32",
        "--set", "target_batch_size=16",
    ]  # fmt: skip
    printed = start(2, *arguments, "--out", tmp_path / "two")
    assert printed.count("Saved to") == 1
    start(1, *arguments, "--out", tmp_path / "one")
    texts = read_texts(data / "texts.tsv")
    two, one = (Encoder.load(tmp_path / name).encode_texts(texts) for name in ("two", "one"))
    assert different_bits(two, one) < 0.01


@pytest.mark.slow
def test_two_processes_fine_tune_like_one(data: Path, tmp_path: Path) -> None:
    arguments = [
        "-m", "transhash", "fit", "thn", "--auxiliary", data / "auxiliary.tsv",
        "--images", data / "images.tsv", "--texts", data / "texts.tsv", "--bits", 16,
        "--set", "steps=4", "--set", "batch_size=32", "--set", "target_batch_size=16",
        "--fine-tune", "--fine-tune-blocks", 1, "--set", "fine_tune.steps=4",
        "--set", "fine_tune.cached_views=1", "--set", "fine_tune.batch_size=8",
        "--set", "fine_tune.target_batch_size=8",
    ]  # fmt: skip
    start(2, *arguments, "--out", tmp_path / "two")
    start(1, *arguments, "--out", tmp_path / "one")
    two, one, frozen = (
        read_tensors(tmp_path / name / "backbone.safetensors") if name else frozen_weights()
        for name in ("two", "one", "")
    )
    for name, value in one.items():
        step = np.abs(value - frozen[name]).max()
        np.testing.assert_allclose(two[name], value, rtol=0, atol=0.02 * step, err_msg=name)
    assert any((one[name] != frozen[name]).any() for name in one)
    with pytest.raises(AssertionError, match="9"):
        start(2, *arguments, "--set", "fine_tune.batch_size=9", "--out", tmp_path / "odd")


def frozen_weights() -> dict[str, np.ndarray]:
    return trainable_lite(LITE0).weights()


@pytest.mark.slow
def test_a_fit_that_cannot_be_distributed_is_refused(data: Path, tmp_path: Path) -> None:
    arguments = ["--benchmark", data, "--bits", 16, "--out", tmp_path / "run"]
    for extra in (["qch"], ["thn", "--tune", 2]):
        with pytest.raises(AssertionError, match="torchrun"):
            start(2, "-m", "transhash", "fit", *extra, *arguments)
    assert not (tmp_path / "run").exists()


def different_bits(left: Codes, right: Codes) -> float:
    return float(np.bitwise_count(left.packed ^ right.packed).sum() / (len(left) * left.bits))
