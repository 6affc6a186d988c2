"""Moving a run's codes between engines, and its commands on another engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("pymilvus", reason="needs the milvus extra: pip install 'transhash[milvus]'")

from transhash.cli import app, encode, search  # noqa: F401
from transhash.errors import DataError
from transhash.index import open_index
from transhash.model.shards import read_job


def call(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_codes_move_to_milvus_and_back_and_search_finds_the_same(run: Path, tmp_path: Path) -> None:
    own, milvus = f"grouped:{run / 'index'}", f"milvus:{tmp_path / 'codes.db'}"
    said = " ".join(call("index", run, "--from", own, "--into", milvus).split())
    assert "36 sent" in said
    assert "0 sent" in " ".join(call("index", run, "--from", own, "--into", milvus).split())
    back = f"grouped:{tmp_path / 'back'}"
    call("index", run, "--from", milvus, "--into", back)
    assert "0 sent" in " ".join(call("index", run, "--from", milvus, "--into", back).split())
    for modality in ("images", "texts"):
        first = open_index(f"{run / 'index'}/{modality}", read_only=True)
        last = open_index(f"{tmp_path / 'back'}/{modality}", read_only=True)
        assert np.array_equal(first.export()[0], last.export()[0])
        assert first.export()[1] == last.export()[1]
    query = ("--text", "a boat on the sea", "-k", 12, "--json")
    assert call("search", run, *query, "--index", milvus) == call("search", run, *query)
    with pytest.raises(DataError, match="--from needs --into"):
        scale.copy_indexes(run, own, None)


def test_a_run_is_indexed_straight_into_milvus(run: Path, data: Path, tmp_path: Path) -> None:
    milvus = f"milvus:{tmp_path / 'fresh.db'}"
    said = call("index", run, "--texts", data / "texts.tsv", "--into", milvus)
    assert "36 texts are searchable" in " ".join(said.split())
    rows = call(
        "search", run, "--text", "a cat", "--among", "texts", "--index", milvus, "--json", "-k", 3
    )
    assert len([json.loads(line) for line in rows.splitlines()]) == 3


def test_codes_that_were_encoded_elsewhere_are_indexed_as_if_here(
    run: Path, data: Path, tmp_path: Path
) -> None:
    call("encode", run, "--images", data / "images.tsv", "--out", tmp_path / "codes")
    milvus = f"milvus:{tmp_path / 'shards.db'}"
    copy = tmp_path / "copy"  # with a catalog of its own
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("catalog*", "index"))
    said = call("index", copy, "--codes", tmp_path / "codes", "--into", milvus)
    assert "36 images and 0 texts are searchable" in " ".join(said.split())
    query = ("--text", "a boat on the sea", "-k", 36, "--json")
    there = [
        json.loads(line)
        for line in call("search", copy, *query, "--index", milvus).split("\n")
        if line
    ]
    here = [json.loads(line) for line in call("search", run, *query).split("\n") if line]
    assert {(row["id"], row["distance"]) for row in there} == {
        (row["id"], row["distance"]) for row in here
    }


def test_codes_of_another_model_or_an_unfinished_job_are_refused(
    run: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "codes"
    call("encode", run, "--texts", data / "texts.tsv", "--out", folder, "--shard-size", 20)
    other = tmp_path / "other"
    shutil.copytree(run, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"transhash": "another"}))
    with pytest.raises(DataError, match="another model"):
        read_job(folder, other)
    (folder / "part-000001.parquet").unlink()
    with pytest.raises(DataError, match="is missing; give the encode command again"):
        read_job(folder, run)
    with pytest.raises(DataError, match="holds no codes"):
        read_job(tmp_path, run)
