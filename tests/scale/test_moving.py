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

from transhash.cli import load_commands
from transhash.errors import DataError
from transhash.index import open_index
from transhash.model.shards import read_job


def call(*arguments: Any) -> str:
    result = CliRunner().invoke(load_commands(), [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_codes_can_be_copied_to_milvus_and_back(run: Path, tmp_path: Path) -> None:
    own, milvus = f"grouped:{run / 'index'}", f"milvus:{tmp_path / 'codes.db'}"
    printed = " ".join(call("copy", run, "--from", own, "--to", milvus).split())
    assert "sent 36" in printed
    assert "sent 0" in " ".join(call("copy", run, "--from", own, "--to", milvus).split())
    back = f"grouped:{tmp_path / 'back'}"
    call("copy", run, "--from", milvus, "--to", back)
    assert "sent 0" in " ".join(call("copy", run, "--from", milvus, "--to", back).split())
    for modality in ("images", "texts"):
        with (
            open_index(f"{run / 'index'}/{modality}", read_only=True) as first,
            open_index(f"{tmp_path / 'back'}/{modality}", read_only=True) as last,
        ):
            assert np.array_equal(first.export()[0], last.export()[0])
            assert first.export()[1] == last.export()[1]
    query = ("--text", "a boat on the sea", "-k", 12, "--json")
    assert call("search", run, *query, "--index", milvus) == call("search", run, *query)


def test_a_run_can_be_indexed_into_milvus(run: Path, data: Path, tmp_path: Path) -> None:
    milvus = f"milvus:{tmp_path / 'fresh.db'}"
    printed = call("index", run, "--texts", data / "texts.tsv", "--index", milvus)
    assert "36 texts" in " ".join(printed.split())
    rows = call(
        "search", run, "--text", "a cat", "--modality", "texts",
        "--index", milvus, "--json", "-k", 3,
    )  # fmt: skip
    assert len([json.loads(line) for line in rows.splitlines()]) == 3


def test_codes_encoded_elsewhere_can_be_indexed(run: Path, data: Path, tmp_path: Path) -> None:
    call("encode", run, "--images", data / "images.tsv", "--out", tmp_path / "codes")
    milvus = f"milvus:{tmp_path / 'shards.db'}"
    copy = tmp_path / "copy"  # with an empty catalog
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("catalog*", "index"))
    printed = call("index", copy, "--codes", tmp_path / "codes", "--index", milvus)
    assert "36 images and 0 texts" in " ".join(printed.split())
    query = ("--text", "a boat on the sea", "-k", 36, "--json")
    in_milvus, in_run = (
        [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        for printed in (
            call("search", copy, *query, "--index", milvus),
            call("search", run, *query),
        )
    )  # without warnings
    assert len(in_run) == 36
    assert {(row["id"], row["distance"]) for row in in_milvus} == {
        (row["id"], row["distance"]) for row in in_run
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
    with pytest.raises(DataError, match="model"):
        read_job(folder, other)
    (folder / "part-000001.parquet").unlink()
    with pytest.raises(DataError, match="missing"):
        read_job(folder, run)
    with pytest.raises(DataError, match="no codes"):
        read_job(tmp_path, run)
