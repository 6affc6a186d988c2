"""Evaluation in shards: the counts of all shards give the scores of the complete database."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from command import Command

DEFINITIONS = [
    (),
    ("--map-definition", "hits", "--cutoff", 5),
    ("--map-definition", "torchcmh", "--cutoff", 3),
]


@pytest.fixture
def transhash(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def shards(transhash: Command, run: Path, data: Path, tmp_path: Path) -> list[Path]:
    folders = [tmp_path / f"shard-{number}" for number in (1, 2, 3)]
    for number, folder in enumerate(folders, 1):
        result = transhash(
            "evaluate", run, "--benchmark", data, "--shard", f"{number}/3", "--histogram", folder
        )
        assert f"shard {number}/3" in result.out
    return folders


def merge(folders: list[Path]) -> list[object]:
    return [word for folder in folders for word in ("--merge", folder)]


def test_merged_shards_give_the_scores_of_the_complete_database(
    transhash: Command, run: Path, data: Path, shards: list[Path]
) -> None:
    for options in DEFINITIONS:
        complete = transhash("evaluate", run, "--benchmark", data, *options, "--json")
        merged = transhash("evaluate", run, *merge(shards[::-1]), *options, "--json")
        assert merged.directions == complete.directions
        assert merged.scores.keys() == complete.scores.keys()
    table = transhash("evaluate", run, "--benchmark", data, *merge(shards)).out
    assert "chance" in table
    assert "divided by all relevant items" in " ".join(table.split())


def test_a_shard_reads_only_its_images_and_a_merge_none(
    transhash: Command, run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "h1", tmp_path / "h2"]
    for number, folder in enumerate(folders, 1):
        cache = tmp_path / f"cache-{number}"  # as on another machine
        monkeypatch.setenv("TRANSHASH_CACHE", str(cache))
        transhash(
            "evaluate", run, "--benchmark", data, "--shard", f"{number}/2", "--histogram", folder
        )
        with sqlite3.connect(cache / "features.sqlite") as base:
            # 12 queries and half of 24 database images; the benchmark has 36 + 36 images.
            assert base.execute("SELECT COUNT(*) FROM features").fetchone() == (24,)
    monkeypatch.setenv("TRANSHASH_CACHE", str(tmp_path / "unused"))
    transhash("evaluate", run, *merge(folders))
    assert not (tmp_path / "unused").exists()


def test_an_unreadable_image_does_not_change_the_shards(
    transhash: Command, run: Path, data: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(data, tmp_path / "set"))
    some = sorted((broken / "images").iterdir())[5]
    some.write_bytes(some.read_bytes()[:300])
    folders = [tmp_path / "h1", tmp_path / "h2"]
    for number, folder in enumerate(folders, 1):
        transhash(
            "evaluate", run, "--benchmark", broken, "--shard", f"{number}/2", "--histogram", folder
        )
    complete = transhash("evaluate", run, "--benchmark", broken, "--json")
    merged = transhash("evaluate", run, *merge(folders), "--json")
    assert merged.directions == complete.directions
    assert merged.scores["problems"] == complete.scores["problems"] == 1


def test_shards_that_do_not_belong_together_are_refused(
    transhash: Command, run: Path, data: Path, shards: list[Path], tmp_path: Path
) -> None:
    def refused(*folders: Path) -> str:
        return transhash.refused("evaluate", run, *merge(list(folders)))

    first, second, third = shards
    assert "Shard 2 is missing" in refused(first, third)
    assert "are both shard 1" in refused(first, second, first)
    assert "no complete shard" in refused(first, second, tmp_path)
    other = tmp_path / "other"
    transhash(
        "evaluate", run, "--benchmark", data, "--shard", "2/2", "--histogram", other
    )  # fmt: skip
    assert "number of shards" in refused(first, other)
    transhash(
        "evaluate", run, "--benchmark", data, "--split-seed", 1,
        "--shard", "2/3", "--histogram", other,
    )  # fmt: skip
    assert "split_seed" in refused(first, other, third)
    assert "--split-seed 0" in transhash.refused("evaluate", run, "--split-seed", 1, *merge(shards))
    assert "not of" in transhash.refused("evaluate", run, "--benchmark", tmp_path, *merge(shards))
    for folder in shards:
        record = json.loads((folder / "shard.json").read_text())
        record["identity"]["model"] = "another"
        (folder / "shard.json").write_text(json.dumps(record))
    assert "not written by" in refused(*shards)


def test_a_corrupt_shard_is_refused(transhash: Command, run: Path, shards: list[Path]) -> None:
    def refused() -> str:
        return transhash.refused("evaluate", run, *merge(shards))

    table, record = shards[1] / "text_to_image.npz", shards[1] / "shard.json"
    content, description = table.read_bytes(), record.read_text()
    for corrupt in (content[: len(content) // 2], b"", b"not a table"):
        table.write_bytes(corrupt)
        assert "text_to_image.npz" in refused()
    table.unlink()
    assert "text_to_image.npz cannot be read" in refused()
    table.write_bytes(content)
    for text in ("{", "[]", "{}", json.dumps(json.loads(description) | {"total": "3"})):
        record.write_text(text)
        assert "shard.json" in refused()


@pytest.mark.parametrize("shard", ["0/3", "4/3", "2", "a/b", "", "-1/3", "1/3/5"])
def test_a_wrong_shard_is_refused(
    transhash: Command, run: Path, data: Path, shard: str, tmp_path: Path
) -> None:
    output = tmp_path / "h"
    message = transhash.refused(
        "evaluate", run, "--benchmark", data, "--shard", shard, "--histogram", output
    )
    assert "i/n" in message
    assert not output.exists()


def test_more_shards_than_items_are_refused(
    transhash: Command, run: Path, data: Path, tmp_path: Path
) -> None:
    message = transhash.refused(
        "evaluate", run, "--benchmark", data, "--shard", "30/30", "--histogram", tmp_path / "h"
    )
    assert "24" in message
