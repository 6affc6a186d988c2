"""Files of every release since 0.2.0 are read: formats stay readable."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import transhash
from release_files import FOLDER, search
from transhash.codes import Codes
from transhash.data.manifest import read_texts
from transhash.model.encode_job import encode_shards
from transhash.search.backup import restore_run
from transhash.search.engine import SearchEngine
from transhash.search.feedback import FeedbackStore
from transhash.search.verify import verify_run

RELEASES = sorted(FOLDER.glob("*.tar.gz"))


@pytest.fixture(params=RELEASES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def expected(files: Path) -> dict[str, object]:
    results: dict[str, object] = json.loads((files / "expected.json").read_text())["search"]
    return results


def test_the_files_of_this_version_are_there() -> None:
    assert f"{transhash.__version__}.tar.gz" in [path.name for path in RELEASES]


def test_a_run_of_a_release_is_consistent_and_finds_the_same(files: Path) -> None:
    assert verify_run(files / "run") == []
    assert search(files / "run") == expected(files)


def test_a_run_of_a_release_takes_new_items_and_votes(files: Path) -> None:
    run = files / "run"
    votes = FeedbackStore(run).all()
    assert [(vote.text, vote.vote) for vote in votes] == [("a red boat", 1)]
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(["a boat on the sea"])
        assert len(engine.indexes["texts"]) == 4
    FeedbackStore(run).delete(votes[0].image.digest, votes[0].text)
    assert FeedbackStore(run).all() == []
    assert verify_run(run) == []


def test_a_backup_of_a_release_is_restored(files: Path) -> None:
    restore_run(files / "run.tar", files / "restored")
    assert search(files / "restored") == expected(files)


def test_a_job_of_a_release_is_resumed_and_its_codes_are_the_same(files: Path) -> None:
    run, texts = files / "run", read_texts(files / "named.csv")
    assert encode_shards(run, texts, "texts", files / "codes").already_done == 1
    (files / "codes" / "part-000000.parquet").rename(files / "old.parquet")
    assert encode_shards(run, texts, "texts", files / "codes").already_done == 0


def test_a_saved_method_of_a_release_makes_codes(files: Path) -> None:
    hasher = transhash.load(files / "cvh").hasher
    rows = np.random.default_rng(0).normal(size=(3, 1280)).astype(np.float32)
    codes = hasher.encode_images(rows)
    assert isinstance(codes, Codes)
    assert codes.bits == 16
