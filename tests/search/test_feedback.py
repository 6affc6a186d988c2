"""Votes kept in a run: whole after a kill, exported, learned from, and left out of scores."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import transhash
from training.test_fit_python import KINDS, square
from transhash.data.feedback import read_votes
from transhash.errors import DataError
from transhash.model.encoder import Encoder
from transhash.model.files import LEARNED_VOTES
from transhash.scoring import count_benchmark, count_files
from transhash.search.engine import SearchEngine
from transhash.search.feedback import (
    FeedbackStore,
    StoredVote,
    VotedImage,
    export_votes,
    orphaned_votes,
)

from .forked import forked, forking

NOUNS = ("boat", "cup", "kite", "lamp", "sock", "drum", "leaf", "coin", "bell", "rope")
QUICK = {"steps": 20, "batch_size": 32, "target_batch_size": 16}


def pairs(count: int = 20) -> list[tuple[Any, str]]:
    return [
        (square(name, i), f"a {name} {NOUNS[i % 10]} and {NOUNS[i * 3 % 10]}")
        for name in KINDS
        for i in range(count)
    ]


def vote(n: int, value: int = 1) -> StoredVote:
    return StoredVote(VotedImage(bytes([n]) * 16, f"i{n}", None, b"jpeg"), f"words {n}", value)


def test_the_last_vote_on_the_same_two_counts_and_can_be_taken_back(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)
    assert votes.all() == []
    assert not votes.delete(b"x", "words")
    assert not votes.path.exists()  # asking makes no file
    for value in (1, 1, 0):
        votes.put(vote(1, value))
    votes.put(vote(2))
    assert sorted((one.text, one.vote) for one in votes.all()) == [("words 1", 0), ("words 2", 1)]
    assert votes.for_text("words 2") == {b"\2" * 16: 1}
    assert votes.on_image(b"\1" * 16) == {"words 1": 0}
    assert votes.delete(b"\1" * 16, "words 1")
    assert [one.text for one in votes.all()] == ["words 2"]
    assert votes.damage() == []


@forking
@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
def test_a_vote_is_there_or_not_wherever_its_process_is_killed(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)

    def first() -> None:
        """Killed in the very first vote: the file is there, and nothing is in it."""
        with votes._changing():
            os.kill(os.getpid(), signal.SIGKILL)

    def second() -> None:
        votes.put(vote(1))
        with votes._changing() as base:
            base.execute("UPDATE votes SET vote = 0")
            base.execute("PRAGMA cache_spill = 1")
            base.execute("PRAGMA cache_size = 1")
            for n in range(2, 200):  # more than memory may hold, so the file is changed already
                base.execute(
                    "INSERT INTO votes SELECT ?, text, vote, image_id, source, zeroblob(5000), "
                    "text_id, checksum FROM votes WHERE image = ?",
                    (bytes([n]) * 16, b"\1" * 16),
                )
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(command=first)[0] == -signal.SIGKILL
    assert votes.all() == []
    assert forked(command=second)[0] == -signal.SIGKILL
    assert votes.path.with_name(votes.path.name + "-journal").exists()  # it was in the midst
    assert [(one.text, one.vote) for one in votes.all()] == [("words 1", 1)]
    assert votes.damage() == []
    votes.put(vote(2))
    assert len(votes.all()) == 2


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)
    votes.put(vote(1))
    whole = votes.path.read_bytes()
    for version in (0, 2):  # in the header, at byte 60
        votes.path.write_bytes(whole[:60] + version.to_bytes(4, "big") + whole[64:])
        with pytest.raises(DataError, match=f"has format version {version}"):
            votes.all()
        assert "format version" in votes.damage()[0]


def test_a_flipped_bit_is_told_or_changes_no_vote(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)
    for n in range(4):
        votes.put(vote(n))
    whole, given = votes.path.read_bytes(), votes.all()
    told = 0
    for place in range(0, len(whole), 41):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        votes.path.write_bytes(flipped)
        if votes.damage():
            told += 1
        else:
            assert votes.all() == given
    assert told > 5


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "photos").mkdir()
    rows = []
    for i in range(4):
        for name in KINDS:
            Image.fromarray(square(name, 100 + i)).save(folder / "photos" / f"{name}-{i}.png")
            rows.append((f"photos/{name}-{i}.png", name))
    with (folder / "photos.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "labels"), *rows])
    texts = [(f"{name}-{i}", f"my {NOUNS[i]} is {name}", name)
             for i in range(4) for name in KINDS]  # fmt: skip
    with (folder / "notes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text", "labels"), *texts])
    return folder


@pytest.fixture(scope="module")
def run(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three votes: two on files, one of them with typed words, and one on bytes."""
    out = tmp_path_factory.mktemp("voted") / "run"
    with transhash.fit(
        pairs(12), files / "photos", files / "notes.csv", out=out, method="QCH", bits=16
    ) as engine:
        engine.add_images([square("red", 500)])
        item = engine.catalog.find("images", "red-0.png")
        note = engine.catalog.find("texts", "red-0")
        unfiled = engine.catalog.get([25])[25]
        votes = FeedbackStore(out)
        votes.put(StoredVote(VotedImage.of(engine.catalog, item), "a boat, red", 1))
        votes.put(StoredVote(VotedImage.of(engine.catalog, item), note.text, 0, note.id))
        votes.put(StoredVote(VotedImage.of(engine.catalog, unfiled), "a red cup", 1))
    return out


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_exported_votes_are_read_back_with_files_or_thumbnails(
    run: Path, files: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"votes{suffix}"
    votes = FeedbackStore(run).all()
    assert export_votes(votes, out) == 1
    found, problems = read_votes(out)
    assert not problems
    assert [(one.text, one.vote) for one in found] == [(one.text, one.vote) for one in votes]
    assert [one.image for one in found[:2]] == [files / "photos" / "red-0.png"] * 2
    assert found[2].image.parent == tmp_path / "votes-pictures"
    assert found[2].image.read_bytes() == votes[2].image.thumbnail
    with pytest.raises(DataError, match=r"should end in \.csv"):
        export_votes(votes, tmp_path / "votes.parquet")


def test_votes_on_what_left_the_run_are_told_and_kept_with_their_content(
    run: Path, files: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    with SearchEngine.open(copy, writable=True) as engine:
        assert orphaned_votes(FeedbackStore(copy).all(), engine.catalog) == []
        engine.remove("images", ["red-0.png"])
        votes = FeedbackStore(copy).all()
        assert orphaned_votes(votes, engine.catalog) == votes[:2]
        engine.remove("texts", ["red-0"])
        assert orphaned_votes(FeedbackStore(copy).all(), engine.catalog) == votes[:2]
    assert len(votes) == 3
    photo = files / "photos" / "red-0.png"
    aside = photo.rename(tmp_path / "red-0.png")
    try:
        assert export_votes(votes, tmp_path / "votes.csv") == 2
    finally:
        aside.rename(photo)
    for one in read_votes(tmp_path / "votes.csv")[0]:
        assert Image.open(one.image).size == (24, 24)


def refit(votes: Any, files: Path, out: Path, **more: Any) -> SearchEngine:
    settings = {"method": "THN", "bits": 16, "settings": QUICK, "validate": True, **more}
    settings["text_features"] = "bag-of-words"  # of such short texts the others drop all words
    return transhash.fit(
        pairs(), files / "photos", files / "notes.csv", votes=votes, out=out, **settings
    )


def test_a_run_that_learned_from_votes_is_marked_and_has_no_place_in_a_table(
    run: Path, files: Path, tmp_path: Path
) -> None:
    export_votes(FeedbackStore(run).all(), tmp_path / "votes.csv")
    out = tmp_path / "better"
    with refit(tmp_path / "votes.csv", files, out) as engine:
        assert len(engine.similar_to_text("red", k=4)) == 4
    counts = {"up": 2, "down": 1, "images": 2, "texts": 3}
    report = json.loads((out / "report.json").read_text())
    assert report["votes"] == counts
    assert json.loads((out / "config.json").read_text())["votes"] == counts
    assert report["auxiliary"]["images"] == 62
    assert report["validation"]["retrieval"]["images"] <= 30  # of the bridge alone
    with pytest.raises(DataError, match="learned from votes, so it has no place"):
        count_benchmark(out, tmp_path)
    about = count_files(out, files / "photos.csv", files / "notes.csv").about
    assert about["voted"] == 2  # red-0.png and red-0; typed words and other pictures are no file
    plain = count_files(run, files / "photos.csv", files / "notes.csv").about
    assert plain["voted"] == 0
    loaded = Encoder.load(out).votes
    assert loaded is not None
    assert loaded.counts == counts
    (out / LEARNED_VOTES).unlink()  # the mark cannot be rubbed out
    with pytest.raises(DataError, match="is missing"):
        Encoder.load(out)


def test_votes_are_refused_where_they_would_do_harm(files: Path, tmp_path: Path) -> None:
    votes = [(square("red", 1), "red", 1), (square("blue", 1), "red", 0)]
    with pytest.raises(DataError, match="QCH takes no votes"):
        refit(votes, files, tmp_path / "a", method="QCH", settings=None)
    with pytest.raises(DataError, match="QCH+target takes no votes"):
        refit(votes, files, tmp_path / "e", method="QCH+target", settings=None)
    with pytest.raises(DataError, match="THN takes no votes, or not with these settings"):
        refit(votes, files, tmp_path / "b", settings={"use_target": False, "alignment_weight": 0})
    with pytest.raises(DataError, match=r"a vote is 0 or 1, got '2'"):
        refit([(square("red", 1), "red", 2)], files, tmp_path / "c")
    with pytest.raises(DataError, match=r"votes are \(image, text, 0 or 1\)"):
        refit([("a.png", "red")], files, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_votes_from_python_are_learned_like_those_of_a_file(files: Path, tmp_path: Path) -> None:
    rows = [{"image": square("red", 1), "text": "red lamp", "vote": np.int64(1)}]
    with refit(rows, files, tmp_path / "run", validate=False) as engine:
        assert engine.encoder.votes is not None
        assert engine.encoder.votes.counts == {"up": 1, "down": 0, "images": 1, "texts": 1}
