"""The embedded data set: the same under one seed, whole or absent, and a fair bridge of words."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from transhash.datasets.synthetic import (
    CLASSES,
    LEXICONS,
    SYNTHETIC_VERSION,
    make_riddle,
    make_synthetic,
)
from transhash.errors import DataError

PER_CLASS = 4


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("drawn") / "set", seed=3, per_class=PER_CLASS)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def vocabulary(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[a-z]{3,}", text.lower())}


def test_the_same_seed_draws_the_same_files(drawn: Path, tmp_path: Path) -> None:
    assert contents(make_synthetic(tmp_path / "again", 3, PER_CLASS)) == contents(drawn)


def test_another_seed_draws_other_pictures_and_texts(drawn: Path, tmp_path: Path) -> None:
    first, other = contents(drawn), contents(make_synthetic(tmp_path / "other", 4, PER_CLASS))
    assert first.keys() == other.keys()
    pictures = [name for name in first if name.endswith(".jpg")]
    assert all(first[name] != other[name] for name in pictures)
    assert first["texts.tsv"] != other["texts.tsv"]


def test_a_smaller_set_is_the_beginning_of_a_larger_one(drawn: Path, tmp_path: Path) -> None:
    small, large = contents(make_synthetic(tmp_path / "small", 3, 1)), contents(drawn)
    assert all(large[name] == data for name, data in small.items() if name.endswith(".jpg"))
    assert large["texts.tsv"].startswith(small["texts.tsv"])


def test_every_part_holds_every_thing_equally_often(drawn: Path) -> None:
    expected = dict.fromkeys(CLASSES, PER_CLASS)
    for part in ("auxiliary.tsv", "images.tsv", "texts.tsv"):
        first_labels = Counter(row["labels"].split("|")[0] for row in rows(drawn / part))
        assert first_labels == expected


def test_auxiliary_items_have_one_or_two_labels_and_target_items_one(drawn: Path) -> None:
    label_sets = [row["labels"].split("|") for row in rows(drawn / "auxiliary.tsv")]
    assert {len(labels) for labels in label_sets} == {1, 2}
    assert all(len(set(labels)) == len(labels) for labels in label_sets)
    assert {label for labels in label_sets for label in labels} == set(CLASSES)
    for part in ("images.tsv", "texts.tsv"):
        assert {row["labels"] for row in rows(drawn / part)} == set(CLASSES)


def test_every_row_names_a_picture_of_one_size(drawn: Path) -> None:
    names = [row["image"] for part in ("auxiliary.tsv", "images.tsv") for row in rows(drawn / part)]
    assert len(set(names)) == len(names)
    assert set(names) == {name for name in contents(drawn) if name.endswith(".jpg")}
    for name in names:
        with Image.open(drawn / name) as image:
            assert (image.mode, image.size) == ("RGB", (160, 160))


def test_the_two_hands_use_different_palettes(drawn: Path) -> None:
    def saturation(part: str) -> float:
        found = []
        for row in rows(drawn / part):
            with Image.open(drawn / row["image"]) as image:
                found.append(np.asarray(image.convert("HSV"))[..., 1].mean())
        return float(np.mean(found))

    assert saturation("auxiliary.tsv") > 1.3 * saturation("images.tsv")


def test_captions_name_both_things_of_a_scene(drawn: Path) -> None:
    for row in rows(drawn / "auxiliary.tsv"):
        for label in row["labels"].split("|"):
            names = (*LEXICONS[label].names, LEXICONS[label].plural)
            assert any(name in row["text"] for name in names), row


def test_target_texts_share_words_with_captions_but_are_no_captions(drawn: Path) -> None:
    captions = rows(drawn / "auxiliary.tsv")
    texts = rows(drawn / "texts.tsv")
    assert not {row["text"] for row in captions} & {row["text"] for row in texts}
    for row in texts:
        lexicon = LEXICONS[row["labels"]]
        own = vocabulary((*lexicon.names, *lexicon.features, *lexicon.actions))
        assert vocabulary([row["text"]]) & own, row
    target_words = vocabulary(row["text"] for row in texts)
    known = target_words & vocabulary(row["text"] for row in captions)
    assert len(known) < 0.5 * len(target_words)  # the gap: most words are new


def test_most_but_not_all_target_texts_name_their_thing() -> None:
    texts = [(t, make_riddle(Random(f"{t}{i}"), t)) for t in CLASSES for i in range(100)]
    named = np.mean([thing in re.findall(r"[a-z]+", text) for thing, text in texts])
    assert 0.6 < named < 0.72
    assert len({text for _, text in texts}) > 0.9 * len(texts)


def test_a_whole_set_is_returned_at_once(drawn: Path) -> None:
    def refuse(*_: object) -> Iterator[tuple[str, int]]:
        raise AssertionError("drawn again")

    before = (drawn / "dataset.json").stat().st_mtime_ns
    assert make_synthetic(drawn, 3, PER_CLASS, track=refuse) == drawn
    assert (drawn / "dataset.json").stat().st_mtime_ns == before


def test_a_set_of_another_size_is_replaced(tmp_path: Path) -> None:
    make_synthetic(tmp_path / "set", per_class=2)
    make_synthetic(tmp_path / "set", per_class=1)
    assert len(rows(tmp_path / "set" / "texts.tsv")) == len(CLASSES)
    assert json.loads((tmp_path / "set" / "dataset.json").read_text()) == {
        "version": SYNTHETIC_VERSION,
        "seed": 0,
        "per_class": 1,
    }
    assert len(list((tmp_path / "set" / "images").iterdir())) == len(CLASSES)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="not a drawn data set"):
        make_synthetic(tmp_path, per_class=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_interrupted_drawing_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted(items: Iterable[tuple[str, int]], *_: object) -> Iterator[tuple[str, int]]:
        for count, item in enumerate(items):
            if count == 5:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        make_synthetic(tmp_path / "set", per_class=1, track=interrupted)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_redrawing_keeps_the_old_set(tmp_path: Path) -> None:
    def interrupted(*_: object) -> Iterator[tuple[str, int]]:
        raise KeyboardInterrupt

    old = contents(make_synthetic(tmp_path / "set", per_class=1))
    with pytest.raises(KeyboardInterrupt):
        make_synthetic(tmp_path / "set", per_class=2, track=interrupted)
    assert contents(tmp_path / "set") == old


def test_progress_is_told_what_is_drawn_and_how_much(tmp_path: Path) -> None:
    told = []

    def track(
        items: Iterable[tuple[str, int]], description: str, total: int
    ) -> Iterable[tuple[str, int]]:
        told.append((description, total))
        return items

    make_synthetic(tmp_path / "set", per_class=1, track=track)
    assert told == [("posters", len(CLASSES)), ("crayon drawings", len(CLASSES))]


def test_the_readme_calls_the_set_synthetic_and_names_its_seed(drawn: Path) -> None:
    readme = (drawn / "README.md").read_text("utf-8")
    assert "Synthetic" in readme
    assert f"version {SYNTHETIC_VERSION}, seed 3, {PER_CLASS} items a class" in readme
