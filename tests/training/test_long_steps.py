"""Every step that can take long reports: `fit` and the commands are never silent."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import transhash
from scale.command import Command
from small_run import copy_small_run

FIT = (
    "reading captions.csv", "reading folders", "reading notes.txt", "loading text features",
    "image features", "word features", "holding out pairs", "validation, canonical analysis",
    "validation, best rotation", "validation, training 64 bits",
    "calibration", "canonical analysis", "leave-one-out validation of components",
    "matching target items", "calibration of the relation", "best rotation", "training 64 bits",
    "report", "coverage", "saving",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with files, where each step prints a line however short it is."""
    copy_small_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSHASH_PROGRESS_SECONDS", "0")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def missing(steps: tuple[str, ...], text: str) -> list[str]:
    pattern = r"(?<!validation, ){}: [^:]*done in"
    return [step for step in steps if not re.search(pattern.format(re.escape(step)), text)]


def test_all_long_steps_of_fit_report(command: Command) -> None:
    result = command(
        "fit", "thn", "--auxiliary", "captions.csv", "--images", "photos", "--texts", "notes.txt",
        "--bits", 64, "--set", "steps=4", "--text-features", "words", "--no-concepts",
        "--out", "new",
    )  # fmt: skip
    assert missing(FIT, result.err) == []


def test_all_long_steps_of_the_other_commands_report(command: Command) -> None:
    index = ("reading folders", "reading notes.txt", "indexing images", "indexing texts")
    result = command("index", "run", "--images", "photos", "--texts", "notes.txt", "--reread")
    assert missing(index, result.err) == []
    os.unlink("photos/red.png")
    steps = ("reading folders", "removing images", "checking files")
    assert missing(steps, command("sync", "run", "photos").err) == []
    steps = ("checking the model", "checking the image index", "comparing index and catalog")
    assert missing(steps, command("verify", "run").err) == []
    exported = command("export", "run", "--format", "npy", "--out", "codes").err
    assert missing(("exporting",), exported) == []
    copied = command("copy", "run", "--from", "grouped:run/index", "--to", "exact:other").err
    assert missing(("sending codes",), copied) == []
    encoded = command("encode", "run", "--images", "photos", "--out", "shards").err
    assert missing(("encoding images",), encoded) == []


def test_python_prints_nothing_with_progress_false_and_lines_with_true(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run(progress: bool | None) -> str:
        with transhash.fit(
            "captions.csv", "photos", "notes.txt", method="QCH", bits=8, progress=progress,
            concepts=False, text_features="words",
        ) as engine:  # fmt: skip
            engine.add_texts(["a boat"], progress=progress)
            engine.add_images("photos", reread=True, progress=progress)
        out, err = capfd.readouterr()
        assert out == ""
        return err

    capfd.readouterr()
    assert run(False) == ""
    assert run(None) == ""  # standard error is not a terminal
    assert missing(("canonical analysis", "indexing images"), run(True)) == []
