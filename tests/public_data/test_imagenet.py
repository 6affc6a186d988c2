from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transhash.datasets.imagenet import LabeledImage, find_imagenet, read_imagenet
from transhash.datasets.raw import Problems, shipped
from transhash.errors import DataError

from .raw_layouts import reasons, write_imagenet

SYNSETS = {"tiger": ["n02129604"], "cat": ["n02123045", "n02123394"]}


def read(
    root: Path, synsets: dict[str, list[str]] = SYNSETS, **options: Any
) -> tuple[list[LabeledImage], list[tuple[str, int, str]]]:
    report = root.parent / "problems.tsv"
    with Problems(report) as problems:
        pictures = list(read_imagenet(root, synsets, problems, **options))
    return pictures, reasons(report)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_imagenet(tmp_path / "ImageNet", {"n02129604": 3, "n02123045": 9, "n02123394": 9})


def test_images_carry_the_category_of_their_synset(root: Path) -> None:
    pictures, problems = read(root)
    assert len(pictures) == 21
    assert problems == []
    assert pictures[0] == LabeledImage(
        "n02129604/n02129604_0", root / "n02129604/n02129604_0.JPEG", "tiger"
    )
    assert {p.label for p in pictures if p.id.startswith("n02123394")} == {"cat"}


@pytest.mark.parametrize("place", ["train", "ILSVRC2012_img_train", "ILSVRC/Data/CLS-LOC/train"])
def test_the_folders_are_found_where_the_archives_put_them(tmp_path: Path, place: str) -> None:
    write_imagenet(tmp_path / "ImageNet" / place, {"n02129604": 1})
    assert find_imagenet(tmp_path / "ImageNet") == tmp_path / "ImageNet" / place


def test_a_limit_draws_by_the_seed_over_all_synsets_of_a_category(root: Path) -> None:
    drawn = [p.id for p in read(root, per_category=6, seed=1)[0]]
    assert len(drawn) == 3 + 6
    assert drawn == [p.id for p in read(root, per_category=6, seed=1)[0]]
    assert drawn != [p.id for p in read(root, per_category=6, seed=2)[0]]
    assert {name.partition("/")[0] for name in drawn} == {"n02129604", "n02123045", "n02123394"}


def test_the_draw_of_one_category_does_not_hang_on_the_others(root: Path) -> None:
    both = [p.id for p in read(root, per_category=4)[0] if p.label == "cat"]
    alone = [p.id for p in read(root, {"cat": SYNSETS["cat"]}, per_category=4)[0]]
    assert both == alone


def test_a_bad_image_is_reported_and_another_is_drawn(root: Path) -> None:
    for path in (root / "n02123045").iterdir():
        path.write_bytes(b"" if path.name.endswith("_0.JPEG") else b"no image")
    (root / "n02123394/notes.txt").write_text("not looked at")
    pictures, problems = read(root, per_category=9)
    assert sum(p.label == "cat" for p in pictures) == 9
    assert {reason for _, _, reason in problems} <= {"not an image", "empty image"}
    assert problems


def test_one_missing_synset_is_reported_and_a_category_without_any_is_refused(root: Path) -> None:
    _, problems = read(root, {"cat": ["n02123045", "n02124075"]})
    assert problems == [("n02124075", 0, "missing synset")]
    with pytest.raises(DataError, match=r"no folder for category 'fox'.*n02119022"):
        read(root, {"fox": ["n02119022"]})


def test_packed_archives_are_met_with_advice(tmp_path: Path) -> None:
    (tmp_path / "n02129604.tar").write_bytes(b"")
    with pytest.raises(DataError, match="unpack each"):
        find_imagenet(tmp_path)
    with pytest.raises(DataError, match=r"image-net\.org"):
        find_imagenet(tmp_path / "nowhere")


def test_every_shipped_category_has_synsets_of_its_own_and_class_words() -> None:
    categories = shipped("nuswide_categories.json")["categories"]
    synsets = shipped("imagenet_synsets.json")["synsets"]
    words = shipped("class_words.json")["words"]
    assert len(categories) == 16
    assert list(synsets) == list(words) == categories
    wnids = [wnid for names in synsets.values() for wnid in names]
    assert len(wnids) == len(set(wnids))
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdigit() for wnid in wnids)
