"""Votes in a run survive a kill, are exported, trained on, and left out of scores."""

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
from training.test_fit_python import COLORS, square
from transhash.data.feedback import read_votes
from transhash.errors import DataError
from transhash.model.encoder import Encoder
from transhash.model.files import TRAINED_VOTES_FILE
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
        for name in COLORS
        for i in range(count)
    ]


def vote(n: int, value: int = 1) -> StoredVote:
    return StoredVote(VotedImage(bytes([n]) * 16, f"i{n}", None, b"jpeg"), f"text {n}", value)


def test_the_last_vote_on_a_pair_counts_and_can_be_deleted(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)
    assert votes.all() == []
    assert not votes.delete(b"x", "text")
    assert not votes.path.exists()  # reading creates no file
    for value in (1, 1, 0):
        votes.put(vote(1, value))
    votes.put(vote(2))
    assert sorted((vote.text, vote.vote) for vote in votes.all()) == [("text 1", 0), ("text 2", 1)]
    assert votes.for_text("text 2") == {b"\2" * 16: 1}
    assert votes.for_image(b"\1" * 16) == {"text 1": 0}
    assert votes.delete(b"\1" * 16, "text 1")
    assert [vote.text for vote in votes.all()] == ["text 2"]
    assert votes.find_corruption() == []


@forking
@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
def test_a_vote_is_stored_or_not_whenever_its_process_is_killed(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)

    def first() -> None:
        """Be killed in the first vote, when the file exists but is empty."""
        with votes._transaction():
            os.kill(os.getpid(), signal.SIGKILL)

    def second() -> None:
        votes.put(vote(1))
        with votes._transaction() as base:
            base.execute("UPDATE votes SET vote = 0")
            base.execute("PRAGMA cache_spill = 1")
            base.execute("PRAGMA cache_size = 1")
            for n in range(
                2, 200
            ):  # more than the page cache, so the file is changed before the commit
                base.execute(
                    "INSERT INTO votes SELECT ?, text, vote, image_id, path, zeroblob(5000), "
                    "text_id, checksum FROM votes WHERE image = ?",
                    (bytes([n]) * 16, b"\1" * 16),
                )
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(command=first)[0] == -signal.SIGKILL
    assert votes.all() == []
    assert forked(command=second)[0] == -signal.SIGKILL
    assert votes.path.with_name(
        votes.path.name + "-journal"
    ).exists()  # it was killed while writing
    assert [(vote.text, vote.vote) for vote in votes.all()] == [("text 1", 1)]
    assert votes.find_corruption() == []
    votes.put(vote(2))
    assert len(votes.all()) == 2


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)
    votes.put(vote(1))
    content = votes.path.read_bytes()
    for version in (1, 3):  # in the header, at byte 60
        votes.path.write_bytes(content[:60] + version.to_bytes(4, "big") + content[64:])
        with pytest.raises(DataError, match=f"format version {version}"):
            votes.all()
        assert "format version" in votes.find_corruption()[0]


def test_a_flipped_bit_is_reported_or_changes_no_vote(tmp_path: Path) -> None:
    votes = FeedbackStore(tmp_path)
    for n in range(4):
        votes.put(vote(n))
    content, expected = votes.path.read_bytes(), votes.all()
    reported = 0
    for position in range(0, len(content), 41):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        votes.path.write_bytes(flipped)
        if votes.find_corruption():
            reported += 1
        else:
            assert votes.all() == expected
    assert reported > 5


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "photos").mkdir()
    rows = []
    for i in range(4):
        for name in COLORS:
            Image.fromarray(square(name, 100 + i)).save(folder / "photos" / f"{name}-{i}.png")
            rows.append((f"photos/{name}-{i}.png", name))
    with (folder / "photos.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "labels"), *rows])
    texts = [(f"{name}-{i}", f"my {NOUNS[i]} is {name}", name)
             for i in range(4) for name in COLORS]  # fmt: skip
    with (folder / "notes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text", "labels"), *texts])
    return folder


@pytest.fixture(scope="module")
def run(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three votes: two on files, one of them with a typed text, and one on bytes."""
    out = tmp_path_factory.mktemp("voted") / "run"
    with transhash.fit(
        pairs(12), files / "photos", files / "notes.csv", out=out, method="QCH", bits=16
    ) as engine:
        engine.add_images([square("red", 500)])
        item = engine.catalog.find("images", "red-0.png")
        note = engine.catalog.find("texts", "red-0")
        unfiled = engine.catalog.get([25])[25]
        votes = FeedbackStore(out)
        votes.put(StoredVote(VotedImage.from_item(engine.catalog, item), "a boat, red", 1))
        votes.put(StoredVote(VotedImage.from_item(engine.catalog, item), note.text, 0, note.id))
        votes.put(StoredVote(VotedImage.from_item(engine.catalog, unfiled), "a red cup", 1))
    return out


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_exported_votes_are_read_back_with_files_or_thumbnails(
    run: Path, files: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"votes{suffix}"
    votes = FeedbackStore(run).all()
    assert export_votes(votes, out) == 1
    read, problems = read_votes(out)
    assert not problems
    assert [(vote.text, vote.vote) for vote in read] == [(vote.text, vote.vote) for vote in votes]
    assert [vote.image for vote in read[:2]] == [files / "photos" / "red-0.png"] * 2
    assert read[2].image.parent == tmp_path / "votes-images"
    assert read[2].image.read_bytes() == votes[2].image.thumbnail
    with pytest.raises(DataError, match="format"):
        export_votes(votes, tmp_path / "votes.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_texts_that_look_like_formulas_are_escaped_in_tables_and_read_back(
    run: Path, tmp_path: Path, suffix: str
) -> None:
    image = FeedbackStore(run).all()[0].image
    formulas = ['=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "'=1", "''+2", "'quoted'", "a=b"]
    out = tmp_path / f"votes{suffix}"
    export_votes([StoredVote(image, text, 1) for text in formulas], out)
    votes, problems = read_votes(out)
    assert not problems
    assert [vote.text for vote in votes] == formulas
    if suffix == ".jsonl":
        return
    with out.open(newline="", encoding="utf-8") as file:
        cells = [row[1] for row in csv.reader(file, delimiter="\t" if suffix == ".tsv" else ",")]
    assert not [cell for cell in cells if cell[0] in "=+-@"]
    assert cells[-2:] == formulas[-2:]


def test_votes_on_removed_items_are_listed_and_keep_their_content(
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
    moved = photo.rename(tmp_path / "red-0.png")
    try:
        assert export_votes(votes, tmp_path / "votes.csv") == 2
    finally:
        moved.rename(photo)
    for vote in read_votes(tmp_path / "votes.csv")[0]:
        assert Image.open(vote.image).size == (24, 24)


def refit(votes: Any, files: Path, out: Path, **more: Any) -> SearchEngine:
    settings = {"method": "THN", "bits": 16, "settings": QUICK, "validate": True, **more}
    settings["text_features"] = "bag-of-words"  # others ignore all words of such short texts
    return transhash.fit(
        pairs(), files / "photos", files / "notes.csv", votes=votes, out=out, **settings
    )


def test_a_run_trained_on_votes_is_marked_and_cannot_be_benchmarked(
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
    assert report["validation"]["retrieval"]["images"] <= 30  # without voted items
    with pytest.raises(DataError, match="votes"):
        count_benchmark(out, tmp_path)
    about = count_files(out, files / "photos.csv", files / "notes.csv").about
    assert about["voted"] == 2  # red-0.png and red-0; the others are not in these files
    without_votes = count_files(run, files / "photos.csv", files / "notes.csv").about
    assert without_votes["voted"] == 0
    loaded = Encoder.load(out).votes
    assert loaded is not None
    assert loaded.counts == counts
    (out / TRAINED_VOTES_FILE).unlink()  # the mark cannot be removed
    with pytest.raises(DataError, match="is missing"):
        Encoder.load(out)


def test_votes_are_refused_where_they_do_harm(files: Path, tmp_path: Path) -> None:
    votes = [(square("red", 1), "red", 1), (square("blue", 1), "red", 0)]
    with pytest.raises(DataError, match="votes"):
        refit(votes, files, tmp_path / "a", method="QCH", settings=None)
    with pytest.raises(DataError, match="votes"):
        refit(votes, files, tmp_path / "e", method="QCH+target", settings=None)
    with pytest.raises(DataError, match="votes"):
        refit(votes, files, tmp_path / "b", settings={"use_target": False, "alignment_weight": 0})
    with pytest.raises(DataError, match="vote"):
        refit([(square("red", 1), "red", 2)], files, tmp_path / "c")
    with pytest.raises(DataError, match="vote"):
        refit([("a.png", "red")], files, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_votes_can_be_passed_from_python(files: Path, tmp_path: Path) -> None:
    rows = [{"image": square("red", 1), "text": "red lamp", "vote": np.int64(1)}]
    with refit(rows, files, tmp_path / "run", validate=False) as engine:
        assert engine.encoder.votes is not None
        assert engine.encoder.votes.counts == {"up": 1, "down": 0, "images": 1, "texts": 1}
