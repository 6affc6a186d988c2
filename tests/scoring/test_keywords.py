"""Keyword search on names, beside a run's scores: where pictures have names that texts say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scale.command import Command
from search.conftest import photo
from transhash.evaluation import Scores
from transhash.scoring.labeled_files import keyword_directions, read_labelled


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def write(folder: Path, names: list[str]) -> tuple[Path, Path]:
    """Pictures called so, labelled red and blue in turn, and texts that say boat or cat."""
    colours = ["red", "blue"]
    rows = ["image,labels"]
    for number, name in enumerate(names):
        photo(folder / name, colours[number % 2])
        rows.append(f"{name},{colours[number % 2]}")
    (folder / "images.csv").write_text("\n".join(rows) + "\n")
    texts = ["text,labels", "the boat sails,red", "a cat sleeps,blue", "my boat sinks,red"]
    (folder / "texts.csv").write_text("\n".join(texts) + "\n")
    return folder / "images.csv", folder / "texts.csv"


NAMED = ["RedBoat_01.png", "cat-2.png", "old boat 3.png", "sleepingCat.png"]


def test_words_of_names_rank_by_what_they_share_with_texts(tmp_path: Path) -> None:
    found = keyword_directions(read_labelled(*write(tmp_path, NAMED)))
    assert found is not None
    there = found["image_to_text"].score(np.arange(4))
    assert (there[0] > 0).tolist() == [True, False, True]  # boat, whatever its case or number
    assert (there[1] > 0).tolist() == [False, True, False]
    assert np.allclose(found["text_to_image"].score(np.arange(3)), there.T)
    for way in found.values():
        assert Scores.of(way.counted()).map == 1.0


def test_numbers_are_no_names(tmp_path: Path) -> None:
    ids_are_row_numbers = ["IMG_0001.png", "IMG_0002.png", "IMG_0003.png", "boat.png"]
    assert keyword_directions(read_labelled(*write(tmp_path, ids_are_row_numbers))) is None


@pytest.mark.parametrize("named", [True, False])
def test_evaluate_prints_keyword_search_beside_the_run_where_there_are_names(
    named: bool, tmp_path: Path, run: Path, command: Command
) -> None:
    names = NAMED if named else [f"{number}.png" for number in range(4)]
    images, texts = write(tmp_path / "own", names)
    options = ("evaluate", run, "--images", images, "--texts", texts)
    said = command(*options).out
    assert ("keywords" in said) == named
    scores = json.loads(command(*options, "--json").out)
    assert ("keyword" in scores) == named
    if named:
        assert scores["keyword"]["text_to_image"]["map"] == 1.0
