"""Keyword search on image names, a baseline next to the scores of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scale.command import Command
from search.conftest import photo
from transhash.evaluation import Scores
from transhash.scoring.labeled_files import keyword_directions, read_labeled


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def write(folder: Path, names: list[str]) -> tuple[Path, Path]:
    """Images of these names, labeled red and blue in turn, and texts about a boat or a cat."""
    colors = ["red", "blue"]
    rows = ["image,labels"]
    for number, name in enumerate(names):
        photo(folder / name, colors[number % 2])
        rows.append(f"{name},{colors[number % 2]}")
    (folder / "images.csv").write_text("\n".join(rows) + "\n")
    texts = ["text,labels", "the boat sails,red", "a cat sleeps,blue", "my boat sinks,red"]
    (folder / "texts.csv").write_text("\n".join(texts) + "\n")
    return folder / "images.csv", folder / "texts.csv"


NAMED = ["RedBoat_01.png", "cat-2.png", "old boat 3.png", "sleepingCat.png"]


def test_images_are_ranked_by_the_words_that_names_and_texts_share(tmp_path: Path) -> None:
    directions = keyword_directions(read_labeled(*write(tmp_path, NAMED)))
    assert directions is not None
    scores = directions["image_to_text"].score(np.arange(4))
    assert (scores[0] > 0).tolist() == [True, False, True]  # boat, in any case and with any number
    assert (scores[1] > 0).tolist() == [False, True, False]
    assert np.allclose(directions["text_to_image"].score(np.arange(3)), scores.T)
    for direction in directions.values():
        assert Scores.from_counts(direction.tie_groups()).map == 1.0


def test_names_without_words_are_ignored(tmp_path: Path) -> None:
    numbered = ["IMG_0001.png", "IMG_0002.png", "IMG_0003.png", "boat.png"]
    assert keyword_directions(read_labeled(*write(tmp_path, numbered))) is None


@pytest.mark.parametrize("named", [True, False])
def test_evaluate_reports_keyword_search_if_images_have_names(
    named: bool, tmp_path: Path, run: Path, command: Command
) -> None:
    names = NAMED if named else [f"{number}.png" for number in range(4)]
    images, texts = write(tmp_path / "own", names)
    options = ("evaluate", run, "--images", images, "--texts", texts)
    assert ("keywords" in command(*options).out) == named
    scores = json.loads(command(*options, "--json").out)
    assert ("keyword" in scores) == named
    if named:
        assert scores["keyword"]["text_to_image"]["map"] == 1.0
