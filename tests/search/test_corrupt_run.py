"""Every command reports a missing or corrupt file of a run folder in one message."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scale.command import Command
from small_run import copy_small_run

from .forked import forked, forking

pytestmark = forking


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with labels for its items."""
    folder = tmp_path_factory.mktemp("intact")
    copy_small_run(folder)
    (folder / "labeled.csv").write_text(
        "id,text,labels\na,a red boat,boat\nb,the cat sleeps,cat\nc,a boat with sails,boat\n"
    )
    (folder / "images.csv").write_text(
        "id,image,labels\nr,photos/red.png,boat\nb,photos/blue.png,cat\n"
    )
    return folder


@pytest.fixture
def run(intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


COMMANDS: dict[str, tuple[str, ...]] = {
    "search": ("search", "run", "--text", "a red boat"),
    "index": ("index", "run", "--texts", "notes.txt"),
    "encode": ("encode", "run", "--texts", "notes.txt", "--out", "codes"),
    "encode to a file": ("encode", "run", "--texts", "notes.txt", "--out", "codes.npy"),
    "evaluate": ("evaluate", "run", "--images", "images.csv", "--texts", "labeled.csv"),
    "serve": ("serve", "run", "--port", "0"),
}
Change = Callable[[Path], object]


def change_json(change: Callable[[Any], Any]) -> Change:
    """Change the content of a JSON file in place, or replace it by what is returned."""

    def corrupt(path: Path) -> None:
        content = json.loads(path.read_text("utf-8"))
        changed = change(content)
        path.write_text(json.dumps(content if changed is None else changed), "utf-8")

    return corrupt


def change_tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    def corrupt(path: Path) -> None:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return corrupt


def without(key: str) -> Change:
    return change_json(lambda content: content.pop(key) and None)


def with_value(key: str, value: Any) -> Change:
    return change_json(lambda content: content.update({key: value}))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def narrow(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors:
        tensors[name] = np.ascontiguousarray(tensors[name][:3])


def not_finite(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors:
        tensors[name] = np.full_like(tensors[name], np.nan)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


ANY: dict[str, Change] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": truncate,
    "garbage": lambda path: path.write_bytes(b"\xff\x00garbage\n" * 50),
    "a folder": replace_by_folder,
}
TENSORS: dict[str, Change] = {
    **ANY,
    "other names": change_tensors(lambda t: t.update({"other": t.pop(next(iter(t)))})),
    "other shapes": change_tensors(narrow),
    "other type": change_tensors(lambda t: t.update({n: np.zeros(1, np.uint8) for n in t})),
    "not finite": change_tensors(not_finite),
}
CORRUPTIONS: dict[str, dict[str, Change]] = {
    "config.json": {
        **ANY,
        "a list": change_json(lambda _: [1]),
        "a number": change_json(lambda _: 5),
        "nothing": change_json(lambda _: {}),
        "no method": without("method"),
        "no settings": without("settings"),
        "no image features": without("image_features"),
        "no text features": without("text_features"),
        "no format": without("format"),
        "no version": without("version"),
        "another version": with_value("version", 99),
        "a list of settings": with_value("settings", [1, 2]),
        "unknown settings": with_value("settings", {"bits": 16, "color": 3}),
        "settings of another kind": with_value("settings", {"bits": "many"}),
        "another length": with_value("settings", {"bits": 24}),
        "no length": with_value("settings", {}),
        "an unknown method": with_value("method", "XYZ"),
        "a method of another kind": with_value("method", 7),
        "another method": with_value("method", "THN"),
        "unknown features": with_value("image_features", "resnet-9000"),
        "features of another kind": with_value("text_features", None),
        "files of another kind": with_value("files", {"hasher.safetensors": 5}),
        "deep": lambda path: path.write_text("[" * 100_000),
    },
    "hasher.safetensors": TENSORS,
    "text.safetensors": TENSORS,
    "vocabulary.json": {
        **ANY,
        "an object": change_json(lambda _: {"a": 1}),
        "numbers": change_json(lambda lists: lists | {"words": list(range(len(lists["words"])))}),
        "too few": change_json(lambda lists: lists | {"words": lists["words"][:-1]}),
        "duplicates": change_json(lambda lists: lists | {"words": lists["words"][:1] * 2}),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("file", "change"), [(file, name) for file, changes in CORRUPTIONS.items() for name in changes]
)
def test_a_corrupt_model_is_reported_with_the_name_of_the_file(
    file: str, change: str, name: str, run: Path, command: Command
) -> None:
    CORRUPTIONS[file][change](run / file)
    if name == "serve":  # in its own process, since a service would not end
        code, message = forked(*COMMANDS[name])
        assert code == 2, message
    else:
        message = command.refused(*COMMANDS[name])
    assert file in message or "config.json" in message, message


def sql(*statements: str) -> Change:
    def corrupt(path: Path) -> None:
        base = sqlite3.connect(path)
        with base:
            for statement in statements:
                base.execute(statement)
        base.close()

    return corrupt


CATALOG: dict[str, Change] = {
    "empty": ANY["empty"],
    "truncated": truncate,
    "garbage": ANY["garbage"],
    "a folder": replace_by_folder,
    "another version": sql("PRAGMA user_version=99"),
    "another table": sql("DROP TABLE items", "CREATE TABLE items (color TEXT)"),
    "no table": sql("DROP TABLE items"),
}


@pytest.mark.parametrize("name", ["search", "index", "serve", "verify"])
@pytest.mark.parametrize("change", CATALOG)
def test_a_corrupt_catalog_is_reported_with_its_name(change: str, name: str, run: Path) -> None:
    CATALOG[change](run / "catalog.sqlite")
    code, message = forked(*COMMANDS.get(name, (name, "run")))
    assert code == 2, message
    assert "catalog.sqlite" in message or "no indexed items" in message


def test_verify_reports_codes_of_another_length(run: Path, command: Command) -> None:
    sql("UPDATE items SET code = x'01'")(run / "catalog.sqlite")
    assert "catalog.sqlite" in command("verify", "run", code=2).err


JOB: dict[str, Change] = {
    **ANY,
    "a list": change_json(lambda _: [1]),
    "no bits": without("bits"),
    "no model": without("model"),
    "bits of another kind": with_value("bits", "many"),
    "another length": with_value("bits", 24),
    "an unknown modality": with_value("modality", "sounds"),
    "no shard size": with_value("shard_size", 0),
    "more items": with_value("items", 10**9),
}


@pytest.mark.parametrize("change", JOB)
def test_a_corrupt_job_is_reported(change: str, run: Path, command: Command) -> None:
    command(*COMMANDS["encode"])
    JOB[change](run.parent / "codes" / "job.json")
    assert "codes" in command.refused("index", "run", "--codes", "codes")
    if change != "missing":  # then the shards are other files
        assert "codes" in command.refused(*COMMANDS["encode"])


@pytest.mark.parametrize("change", ANY)
def test_a_corrupt_shard_is_reported(change: str, run: Path, command: Command) -> None:
    command(*COMMANDS["encode"])
    ANY[change](run.parent / "codes" / "part-000000.parquet")
    assert "part-000000.parquet" in command.refused("index", "run", "--codes", "codes")


@pytest.mark.parametrize("file", ["report.json", "diagnostics.json", "results.json"])
@pytest.mark.parametrize("change", ["garbage", "a folder", "empty"])
def test_corrupt_reports_do_not_stop_commands(
    file: str, change: str, run: Path, command: Command
) -> None:
    (run / file).write_text("{}")
    ANY[change](run / file)
    for name in ("search", "index", "encode", "evaluate"):
        command(*COMMANDS[name])


def test_every_command_accepts_the_intact_run(run: Path, command: Command) -> None:
    for name in COMMANDS.keys() - {"serve"}:
        command(*COMMANDS[name])
    command("verify", "run")


RUN_FILES = [
    "config.json",
    "hasher.safetensors",
    "text.safetensors",
    "vocabulary.json",
    "report.json",
    "catalog.sqlite",
    "votes.sqlite",
    "index/images/index.json",
    "index/images/log-*.bin",
    "index/images/segment-*.bin",
]


@pytest.mark.parametrize("pattern", RUN_FILES)
def test_no_command_waits_for_a_pipe_that_has_the_name_of_a_file(run: Path, pattern: str) -> None:
    paths = list(run.glob(pattern)) or ([] if "*" in pattern else [run / pattern])
    for path in paths:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        for arguments in (
            COMMANDS["search"],
            ("search", "run", "--image", "photos/red.png", "--modality", "images"),
            ("info", "run"),
            ("list", "run"),
            ("feedback", "run"),
            ("verify", "run"),
            COMMANDS["index"],
        ):
            code, _ = forked(*arguments)  # which ends after a minute by a signal
            assert code in (0, 1, 2), arguments


def test_no_command_waits_for_a_pipe_among_its_inputs(run: Path, tmp_path: Path) -> None:
    for name in ("pipe.csv", "pipe.jsonl", "pipe.parquet", "pipe.npy", "pipe.txt", "pipe.png"):
        os.mkfifo(tmp_path / name)
        option = "--images" if name.endswith(("npy", "png")) else "--texts"
        for arguments in (("index", "run", option, name), ("sync", "run", name)):
            assert forked(*arguments)[0] == 2
    assert forked("search", "run", "--image", "pipe.png")[0] == 2
    os.mkfifo(tmp_path / "photos" / "pipe.png")
    os.mkfifo(tmp_path / "photos" / "pipe.txt")
    code, message = forked("index", "run", "--images", "photos")
    assert code == 0
    assert "pipe.png: is not a file" in message


def test_verify_suggests_a_repair_only_where_it_helps(run: Path, command: Command) -> None:
    segments = next((run / "index" / "texts").glob("*"))
    segments.write_bytes(b"garbage")
    assert "--repair" in command("verify", run, code=2).err
    command("verify", run, "--repair")
    (run / "hasher.safetensors").write_bytes(b"garbage")
    assert "--repair" not in command("verify", run, code=2).err


def test_a_run_whose_fit_was_interrupted_is_named_so(run: Path, command: Command) -> None:
    (run / "config.json").unlink()
    (run / "metrics.jsonl").write_text("")
    for arguments in (("search", run, "--text", "boat"), ("info", run)):
        assert "was interrupted. Run the same command again" in command.refused(*arguments)


def test_conditions_that_no_item_meets_are_mentioned(run: Path, command: Command) -> None:
    result = command("search", run, "--text", "boat", "--source", "nowhere")
    assert "No item meets all conditions" in result.err
    assert "No item meets" not in command("search", run, "--text", "boat").err
