"""Every command answers a run folder with a file missing or mutilated by one sentence."""

from __future__ import annotations

import json
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
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with labels for its items."""
    folder = tmp_path_factory.mktemp("whole")
    copy_small_run(folder)
    (folder / "labelled.csv").write_text(
        "id,text,labels\na,a red boat,boat\nb,the cat sleeps,cat\nc,a boat with sails,boat\n"
    )
    (folder / "pictures.csv").write_text(
        "id,image,labels\nr,photos/red.png,boat\nb,photos/blue.png,cat\n"
    )
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
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
    "evaluate": ("evaluate", "run", "--images", "pictures.csv", "--texts", "labelled.csv"),
    "serve": ("serve", "run", "--port", "0"),
}
Change = Callable[[Path], object]


def of_json(change: Callable[[Any], Any]) -> Change:
    """The content of a JSON file, changed in place or replaced by what is returned."""

    def mutilate(path: Path) -> None:
        content = json.loads(path.read_text("utf-8"))
        changed = change(content)
        path.write_text(json.dumps(content if changed is None else changed), "utf-8")

    return mutilate


def of_tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    def mutilate(path: Path) -> None:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return mutilate


def lacking(key: str) -> Change:
    return of_json(lambda content: content.pop(key) and None)


def having(key: str, value: Any) -> Change:
    return of_json(lambda content: content.update({key: value}))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def narrow(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors:
        tensors[name] = np.ascontiguousarray(tensors[name][:3])


def not_finite(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors:
        tensors[name] = np.full_like(tensors[name], np.nan)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


ANY: dict[str, Change] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "garbage": lambda path: path.write_bytes(b"\xff\x00garbage\n" * 50),
    "a folder": a_folder,
}
TENSORS: dict[str, Change] = {
    **ANY,
    "other names": of_tensors(lambda t: t.update({"other": t.pop(next(iter(t)))})),
    "other shapes": of_tensors(narrow),
    "other kind": of_tensors(lambda t: t.update({n: np.zeros(1, np.uint8) for n in t})),
    "no numbers": of_tensors(not_finite),
}
MUTILATIONS: dict[str, dict[str, Change]] = {
    "config.json": {
        **ANY,
        "a list": of_json(lambda _: [1]),
        "a number": of_json(lambda _: 5),
        "nothing": of_json(lambda _: {}),
        "no method": lacking("method"),
        "no settings": lacking("settings"),
        "no image features": lacking("image_features"),
        "no text features": lacking("text_features"),
        "no format": lacking("format"),
        "no version": lacking("version"),
        "a newer version": having("version", 99),
        "a list of settings": having("settings", [1, 2]),
        "unknown settings": having("settings", {"bits": 16, "colour": 3}),
        "settings of another kind": having("settings", {"bits": "many"}),
        "another length": having("settings", {"bits": 24}),
        "no length": having("settings", {}),
        "an unknown method": having("method", "XYZ"),
        "a method of another kind": having("method", 7),
        "another method": having("method", "THN"),
        "unknown features": having("image_features", "resnet-9000"),
        "features of another kind": having("text_features", None),
        "files of another kind": having("files", {"hasher.safetensors": 5}),
        "deep": lambda path: path.write_text("[" * 100_000),
    },
    "hasher.safetensors": TENSORS,
    "text.safetensors": TENSORS,
    "vocabulary.json": {
        **ANY,
        "an object": of_json(lambda _: {"a": 1}),
        "numbers": of_json(lambda lists: lists | {"words": list(range(len(lists["words"])))}),
        "too few": of_json(lambda lists: lists | {"words": lists["words"][:-1]}),
        "twice the same": of_json(lambda lists: lists | {"words": lists["words"][:1] * 2}),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("file", "how"), [(file, how) for file, ways in MUTILATIONS.items() for how in ways]
)
def test_a_mutilated_model_is_told_in_a_sentence_that_names_the_file(
    file: str, how: str, name: str, run: Path, command: Command
) -> None:
    MUTILATIONS[file][how](run / file)
    if name == "serve":  # in a process of its own: if it were served, it would not end
        code, said = forked(*COMMANDS[name])
        assert code == 2, said
    else:
        said = command.refused(*COMMANDS[name])
    assert file in said or "config.json" in said, said


def sql(*statements: str) -> Change:
    def mutilate(path: Path) -> None:
        base = sqlite3.connect(path)
        with base:
            for statement in statements:
                base.execute(statement)
        base.close()

    return mutilate


CATALOG: dict[str, Change] = {
    "empty": ANY["empty"],
    "cut": cut,
    "garbage": ANY["garbage"],
    "a folder": a_folder,
    "a newer version": sql("PRAGMA user_version=99"),
    "another table": sql("DROP TABLE items", "CREATE TABLE items (colour TEXT)"),
    "no table": sql("DROP TABLE items"),
}


@pytest.mark.parametrize("name", ["search", "index", "serve", "verify"])
@pytest.mark.parametrize("how", CATALOG)
def test_a_mutilated_catalog_is_told_in_a_sentence_that_names_it(
    how: str, name: str, run: Path
) -> None:
    CATALOG[how](run / "catalog.sqlite")
    if how == "empty" and name == "index":
        pytest.skip("nothing was indexed yet, as far as a file of no bytes tells")
    code, said = forked(*COMMANDS.get(name, (name, "run")))
    assert code == 2, said
    assert "catalog.sqlite" in said


def test_codes_of_another_length_are_found_by_verify(run: Path, command: Command) -> None:
    sql("UPDATE items SET code = x'01'")(run / "catalog.sqlite")
    assert "catalog.sqlite" in command("verify", "run", code=2).err


JOB: dict[str, Change] = {
    **ANY,
    "a list": of_json(lambda _: [1]),
    "no bits": lacking("bits"),
    "no model": lacking("model"),
    "bits of another kind": having("bits", "many"),
    "another length": having("bits", 24),
    "an unknown kind": having("modality", "sounds"),
    "no shard size": having("shard_size", 0),
    "more items": having("items", 10**9),
}


@pytest.mark.parametrize("how", JOB)
def test_a_mutilated_job_is_told_in_a_sentence(how: str, run: Path, command: Command) -> None:
    command(*COMMANDS["encode"])
    JOB[how](run.parent / "codes" / "job.json")
    assert "codes" in command.refused("index", "run", "--codes", "codes")
    if how != "missing":  # then the shards are other files
        assert "codes" in command.refused(*COMMANDS["encode"])


@pytest.mark.parametrize("how", ANY)
def test_a_mutilated_shard_is_told_in_a_sentence(how: str, run: Path, command: Command) -> None:
    command(*COMMANDS["encode"])
    ANY[how](run.parent / "codes" / "part-000000.parquet")
    assert "part-000000.parquet" in command.refused("index", "run", "--codes", "codes")


@pytest.mark.parametrize("file", ["report.json", "diagnostics.json", "results.json"])
@pytest.mark.parametrize("how", ["garbage", "a folder", "empty"])
def test_what_only_informs_is_in_nobodys_way(
    file: str, how: str, run: Path, command: Command
) -> None:
    (run / file).write_text("{}")
    ANY[how](run / file)
    for name in ("search", "index", "encode", "evaluate"):
        command(*COMMANDS[name])


def test_the_whole_run_passes_every_command(run: Path, command: Command) -> None:
    for name in COMMANDS.keys() - {"serve"}:
        command(*COMMANDS[name])
    command("verify", "run")
