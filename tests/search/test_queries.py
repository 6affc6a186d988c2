"""Many queries from one file: `transhash search RUN --queries FILE`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scale.command import Command
from transhash.search.engine import SearchEngine
from transhash.search.queries import read_queries, search_queries


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def rows(command: Command, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    result = command("search", "run", *arguments, "--json", code=code)
    return [json.loads(line) for line in result.out.splitlines()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.csv", "id,text\none,a red boat\ntwo,a cat\n"),
        ("q.tsv", "id\ttext\none\ta red boat\ntwo\ta cat\n"),
        ("q.jsonl", '{"id": "one", "text": "a red boat"}\n{"id": "two", "text": "a cat"}\n'),
        ("q.txt", "a red boat\na cat\n"),
    ],
)
def test_each_text_of_a_file_gives_one_line_with_the_results_of_a_single_search(
    indexed_run: Path, command: Command, name: str, content: str
) -> None:
    (indexed_run.parent / name).write_text(content)
    first, second = rows(command, "--queries", name, "-k", 2)
    assert [first["text"], second["text"]] == ["a red boat", "a cat"]
    if name != "q.txt":
        assert [first["query"], second["query"]] == ["one", "two"]
    single = rows(command, "--text", "a cat", "-k", 2)
    assert second["results"] == single
    assert {hit["id"] for hit in single} == {"red.png", "blue.png"}
    texts = rows(command, "--queries", name, "-k", 1, "--modality", "texts")
    assert [len(row["results"]) for row in texts] == [1, 1]
    assert texts[0]["results"][0]["text"] == "a red boat"


def test_an_image_finds_images_if_there_are_no_texts(indexed_run: Path, command: Command) -> None:
    image = indexed_run.parent / "photos" / "red.png"
    assert rows(command, "--image", image)[0]["text"]
    with SearchEngine.open(indexed_run, writable=True) as engine:
        engine.remove("texts", [item.id for item in engine.catalog.sources.list_items("texts")])
    assert rows(command, "--image", image)[0]["id"] == "red.png"
    query = rows(command, "--queries", image.parent)[1]
    assert query["results"][0]["id"] == "red.png"


def test_a_bad_query_does_not_stop_the_others(indexed_run: Path, command: Command) -> None:
    folder = indexed_run.parent
    (folder / "q.csv").write_text("id,text\none,a red boat\ntwo,\nthree,a qqqq zzzz\n")
    by_id = {row["query"]: row for row in rows(command, "--queries", "q.csv", code=2)}
    assert by_id.keys() == {"one", "line 3", "three"}
    assert len(by_id["one"]["results"]) == 2
    assert "neither image nor text" in by_id["line 3"]["error"]
    assert "results" not in by_id["line 3"]
    assert by_id["three"].get("warning", "").startswith(("No query word", "Ignored"))
    (folder / "photos" / "broken.png").write_bytes(b"\x89PNG broken")
    by_id = {row["query"]: row for row in rows(command, "--queries", "photos", code=2)}
    assert by_id.keys() == {"red.png", "blue.png", "broken.png"}
    assert by_id["broken.png"]["error"]
    assert by_id["broken.png"]["path"] == "photos/broken.png"
    assert by_id["red.png"]["results"] == rows(command, "--image", "photos/red.png")


def test_results_come_while_later_queries_are_still_waiting(indexed_run: Path) -> None:
    folder = indexed_run.parent
    (folder / "q.txt").write_text("".join(f"a red boat {i}\n" for i in range(200)))
    calls = []
    with SearchEngine.open(indexed_run) as engine:
        inner = engine.similar_to_texts
        engine.similar_to_texts = lambda texts, *a, **b: (
            calls.append(len(texts)) or inner(texts, *a, **b)
        )  # type: ignore
        results = search_queries(engine, read_queries(folder / "q.txt"))
        assert next(results).content == "a red boat 0"
        assert sum(calls) < 200
        assert len(list(results)) == 199
        assert sum(calls) == 200


def test_the_lines_can_be_piped_and_progress_goes_to_standard_error(indexed_run: Path) -> None:
    folder = indexed_run.parent
    (folder / "q.txt").write_text("a red boat\na cat\n")
    result = subprocess.run(
        [sys.executable, "-m", "transhash", "search", "run", "--queries", "q.txt", "--json"],
        cwd=folder, capture_output=True, text=True, check=True,
        env=os.environ | {"TRANSHASH_PROGRESS_SECONDS": "0"},
    )  # fmt: skip
    assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == [
        "a red boat",
        "a cat",
    ]
    assert "searching: 2 of 2" in result.stderr


def test_without_json_each_query_is_followed_by_its_table(
    indexed_run: Path, command: Command
) -> None:
    (indexed_run.parent / "q.csv").write_text("id,text\none,a red boat\ntwo,a cat\n")
    lines = command("search", "run", "--queries", "q.csv").out.splitlines()
    assert lines[0] == "one: a red boat"
    assert "two: a cat" in lines
    assert sum("distance" in line for line in lines) == 2


def test_files_that_are_not_queries_are_refused(indexed_run: Path, command: Command) -> None:
    folder = indexed_run.parent
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    (folder / "both.csv").write_text("image,text\na.png,a boat\n")
    assert "both columns" in command.refused("search", "run", "--queries", "both.csv")
    assert "does not exist" in command.refused("search", "run", "--queries", "none.csv")
    assert "features" in command.refused("search", "run", "--queries", "x.npy")
    assert "one query" in command.refused("search", "run", "--queries", "q.csv", "--text", "a")
    refusal = command.refused("search", "run", "--queries", "both.csv", "--contact-sheet", "s.png")
    assert "--contact-sheet" in refusal
    assert "at least 1" in command.refused("search", "run", "--queries", "both.csv", "-k", 0)


def test_images_of_queries_and_previews_are_decoded_in_another_process(
    indexed_run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "x.png"
    path.parent.mkdir()
    Image.new("RGB", (24, 16), "red").save(path)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("decoded in this process")

    monkeypatch.setattr("transhash.features.decode._open_upright", fail)
    with SearchEngine.open(indexed_run) as engine:
        assert engine.similar_to_image(path)
        assert engine.encoder.encode_image(path) == engine.encoder.encode_image(path.read_bytes())
    assert "would add 1" in command("sync", indexed_run, path.parent, "--dry-run").out
