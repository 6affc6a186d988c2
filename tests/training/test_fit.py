"""A fit writes a complete run or none, alone, and rejects data that it cannot learn from."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transhash
from scale.command import Command
from search.forked import forked, forking
from training.feature_files import write_features
from transhash.codes import BENCHMARK_BITS, DEFAULT_BITS
from transhash.data.relation import LabelRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers import METHODS, make_hasher
from transhash.model.encoder import Encoder

# Files and arrays here relate items by class; a method with one code per pair refuses that.
FREE = [method for method in METHODS if not method.fixed_settings.get("shared_code")]
HASHERS = [method.name for method in FREE if method.has_codes]
STEPPED = [
    method.name
    for method in FREE
    if "learning_rate" in method.settings() and method.fixed_settings.get("steps") != 0
]
LONG = ("--set", "steps=1000000", "--no-validate")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return write_features(tmp_path / "data")


@pytest.mark.parametrize(
    ("method", "more"), [("thn", ("--set", "steps=2")), ("thn-d", ("--set", "steps=2"))]
)
def test_the_default_code_length_depends_on_the_method(
    command: Command, options: list[str], method: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    without_bits = options[: options.index("--bits")]
    command("fit", method, *without_bits, *more, "--out", tmp_path / "run")
    expected = DEFAULT_BITS if method == "thn" else BENCHMARK_BITS
    assert Encoder.load(tmp_path / "run").bits == expected
    command("fit", method, *without_bits, *more, "--bits", 16, "--out", tmp_path / "short")
    assert Encoder.load(tmp_path / "short").bits == 16


def in_own_process(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "transhash", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Children of a shell's background job ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **settings,
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
def test_a_second_fit_into_the_same_folder_is_refused(
    tmp_path: Path, options: list[str], command: Command
) -> None:
    out = tmp_path / "run"
    first = in_own_process("fit", "thn", *options, *LONG, "--out", out)
    try:
        wait_for(out / "metrics.jsonl", first)
        second = command.refused("fit", "thn", *options, "--out", out)
        assert f"{out} is locked by process {first.pid}." in second
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate()
    assert first.returncode == 130, errors
    assert not (out / "config.json").exists()
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").open()]
    assert steps == list(range(len(steps)))
    # The folder is free again, and a draft left by a kill is no obstacle.
    (out / ".hasher.safetensors.0123456789ab.draft").write_bytes(b"half")
    command("fit", "thn", *options, "--set", "steps=5", "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "diagnostics.json", "hasher.safetensors", "metrics.jsonl", "report.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_under_torchrun_the_folder_is_locked_as_well(tmp_path: Path, options: list[str]) -> None:
    out = tmp_path / "run"
    first = in_own_process("fit", "thn", *options, *LONG, "--out", out)
    try:
        wait_for(out / "metrics.jsonl", first)
        second = subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", "2", "-m", "transhash", "fit", "thn", *options,
                "--set", "steps=4", "--out", str(out),
            ],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert second.returncode != 0
        assert f"is locked by process {first.pid}" in " ".join(second.stderr.split())
    finally:
        first.kill()
        first.communicate()
    assert not (out / "config.json").exists()


@pytest.mark.parametrize("method", STEPPED)
def test_a_fit_that_diverges_leaves_no_run(
    method: str, tmp_path: Path, options: list[str], command: Command
) -> None:
    out = tmp_path / "new" / "run"
    error = command.refused("fit", method, *options, "--set", "learning_rate=1e30", "--out", out)
    assert "diverged" in error
    assert "learning_rate below 1e+30" in error
    assert not out.parent.exists()


@pytest.mark.parametrize("method", ["HTH", "DCMH", "THN"])
def test_a_fit_that_diverges_keeps_an_earlier_run(
    method: str, tmp_path: Path, options: list[str], command: Command
) -> None:
    out = tmp_path / "run"
    command("fit", "cvh", *options, "--out", out)
    before = Encoder.load(out).hasher.state()
    command.refused("fit", method, *options, "--set", "learning_rate=1e30", "--out", out)
    after = Encoder.load(out).hasher.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def rewrite(path: str, change: Any) -> None:
    np.save(path, change(np.load(path)))


def with_value(value: float, row: int = 3) -> Any:
    def change(rows: np.ndarray) -> np.ndarray:
        rows[row, 1] = value
        return rows

    return change


BAD = {
    "NaN": ("images", with_value(np.nan), "not a finite float32"),
    "infinity": ("texts", with_value(np.inf), "not a finite float32"),
    "NaN in a target": ("target-images", with_value(np.nan), "not a finite float32"),
    "infinity in a target": ("target-texts", with_value(-np.inf), "not a finite float32"),
    "too large": ("images", with_value(1e37), "auxiliary image 3 has the feature 1e+37"),
    "too large a target": ("target-texts", with_value(1e37), "target text 3 has the feature"),
    "zeros": ("images", np.zeros_like, "All auxiliary image features are zero"),
    "zero targets": ("target-images", np.zeros_like, "All target image features are zero"),
    "no rows": ("texts", lambda rows: rows[:0], "Pass a matrix of numbers"),
    "other width": ("target-images", lambda rows: rows[:, :5], "Use the same features"),
}


@pytest.mark.parametrize("method", HASHERS)
@pytest.mark.parametrize("name", BAD)
def test_every_method_rejects_bad_features_with_the_same_message(
    method: str, name: str, tmp_path: Path, options: list[str], command: Command
) -> None:
    file, change, phrase = BAD[name]
    rewrite(f"{tmp_path}/data/{file}.npy", change)
    out = tmp_path / "run"
    assert phrase in command.refused("fit", method, *options, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("method", HASHERS)
@pytest.mark.parametrize("value", ["0", "1"])
def test_every_method_rejects_a_relation_without_both_values(
    method: str, value: str, tmp_path: Path, options: list[str], command: Command
) -> None:
    relation = tmp_path / "data" / "relation.csv"
    lines = [line[:-1] + value for line in relation.read_text().splitlines()]
    relation.write_text("\n".join(lines) + "\n")
    error = command.refused("fit", method, *options, "--out", tmp_path / "run")
    assert ("All known pairs" if value == "1" else "related") in error
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def training() -> TrainingSet:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 10)), rng.standard_normal((36, 8))
    classes = np.eye(4, dtype=bool)
    relation = LabelRelation(classes[np.arange(40) % 4], classes[np.arange(36) % 4])
    return TrainingSet(x, y, relation)


@pytest.mark.parametrize("method", HASHERS)
def test_no_method_encodes_a_row_that_is_not_finite(method: str, training: TrainingSet) -> None:
    quick = {"steps": 3} if method.startswith(("THN", "HTH")) else {}
    quick = {"epochs": 1} if method == "DCMH" else quick
    hasher = make_hasher(method, bits=8, **quick).fit(training)
    for encode, rows, modality in (
        (hasher.encode_images, training.images, "images"),
        (hasher.encode_texts, training.texts, "texts"),
    ):
        assert len(encode(rows)) == len(rows)
        for value in (np.nan, np.inf, -np.inf):
            broken = rows.copy()
            broken[7, 2] = value
            with pytest.raises(DataError, match=f"(?i)row 7 .*{modality}"):
                encode(broken)


@pytest.mark.slow
@forking
@pytest.mark.parametrize("size", [0, 300, 4000, 20_000])
def test_a_full_disk_stops_fit_with_a_message_that_names_the_file(
    size: int, tmp_path: Path, options: list[str]
) -> None:
    def limit_file_size() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    out = tmp_path / "run"
    settings = ("--set", "steps=10", "--set", "batch_size=32")
    arguments = ("fit", "thn", *options, *settings, "--out", out)
    code, output = forked(*arguments, prepare=limit_file_size)
    assert code == 2, output
    assert f"{out}/" in output  # the file that could not be written
    assert not (out / "config.json").exists()
    assert forked(*arguments)[0] == 0
    Encoder.load(out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_reported(
    tmp_path: Path, options: list[str], command: Command
) -> None:
    (tmp_path / "fixed").mkdir(mode=0o555)
    error = command.refused("fit", "cvh", *options, "--out", tmp_path / "fixed" / "run")
    assert "Cannot write" in error


def test_unknown_features_are_refused_before_files_are_read_or_torch_is_loaded(
    tmp_path: Path,
) -> None:
    program = (
        "import sys; sys.modules['torch'] = None  # importing it fails\n"
        f"sys.argv = ['transhash', 'fit', '--features', 'nonsense', '--auxiliary', 'missing.csv', "
        f"'--out', {str(tmp_path / 'run')!r}]\n"
        "from transhash.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert "Unknown image features 'nonsense'" in result.stderr
    with pytest.raises(DataError, match="Unknown image features 'nonsense'"):
        transhash.fit("missing.csv", "missing", features="nonsense")
