from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transhash.datasets.imagenet_yahooqa import (
    ClassWords,
    LabeledImage,
    find_imagenet,
    read_imagenet,
)
from transhash.datasets.raw import Problems, packaged_list
from transhash.errors import DataError

from .raw_layouts import reasons, write_imagenet

SYNSETS = {"tiger": ["n02129604"], "cat": ["n02123045", "n02123394"]}


def read(
    root: Path, synsets: dict[str, list[str]] = SYNSETS, **options: Any
) -> tuple[list[LabeledImage], list[tuple[str, int, str]]]:
    report = root.parent / "problems.tsv"
    with Problems(report) as problems:
        images = list(read_imagenet(root, synsets, problems, **options))
    return images, reasons(report)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_imagenet(tmp_path / "ImageNet", {"n02129604": 3, "n02123045": 9, "n02123394": 9})


def test_images_have_the_category_of_their_synset(root: Path) -> None:
    images, problems = read(root)
    assert len(images) == 21
    assert problems == []
    assert images[0] == LabeledImage(
        "n02129604/n02129604_0", root / "n02129604/n02129604_0.JPEG", "tiger"
    )
    assert {p.label for p in images if p.id.startswith("n02123394")} == {"cat"}


@pytest.mark.parametrize(
    "subfolder", ["train", "ILSVRC2012_img_train", "ILSVRC/Data/CLS-LOC/train"]
)
def test_synset_folders_may_be_in_a_subfolder(tmp_path: Path, subfolder: str) -> None:
    write_imagenet(tmp_path / "ImageNet" / subfolder, {"n02129604": 1})
    assert find_imagenet(tmp_path / "ImageNet") == tmp_path / "ImageNet" / subfolder


def test_a_seeded_sample_covers_all_synsets_of_a_category(root: Path) -> None:
    sample = [p.id for p in read(root, per_category=6, seed=1)[0]]
    assert len(sample) == 3 + 6
    assert sample == [p.id for p in read(root, per_category=6, seed=1)[0]]
    assert sample != [p.id for p in read(root, per_category=6, seed=2)[0]]
    assert {name.partition("/")[0] for name in sample} == {"n02129604", "n02123045", "n02123394"}


def test_the_sample_of_a_category_does_not_depend_on_the_others(root: Path) -> None:
    both = [p.id for p in read(root, per_category=4)[0] if p.label == "cat"]
    alone = [p.id for p in read(root, {"cat": SYNSETS["cat"]}, per_category=4)[0]]
    assert both == alone


def test_a_bad_image_is_reported_and_replaced(root: Path) -> None:
    for path in (root / "n02123045").iterdir():
        path.write_bytes(b"" if path.name.endswith("_0.JPEG") else b"text")
    (root / "n02123394/notes.txt").write_text("ignored")
    images, problems = read(root, per_category=9)
    assert sum(p.label == "cat" for p in images) == 9
    assert {reason for _, _, reason in problems} <= {"not an image", "empty image"}
    assert problems


def test_a_missing_synset_is_reported_and_a_missing_category_is_an_error(root: Path) -> None:
    _, problems = read(root, {"cat": ["n02123045", "n02124075"]})
    assert problems == [("n02124075", 0, "missing synset")]
    with pytest.raises(DataError, match="no folder for category 'fox'"):
        read(root, {"fox": ["n02119022"]})


def test_packed_archives_must_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "n02129604.tar").write_bytes(b"")
    with pytest.raises(DataError, match="Unpack each"):
        find_imagenet(tmp_path)
    with pytest.raises(DataError, match=r"image-net\.org"):
        find_imagenet(tmp_path / "nowhere")


def test_every_packaged_category_has_its_own_synsets_and_class_words() -> None:
    categories = packaged_list("nuswide_categories.json")["categories"]
    synsets = packaged_list("imagenet_synsets.json")["synsets"]
    words = packaged_list("class_words.json")["words"]
    assert len(categories) == 16
    assert list(synsets) == list(words) == categories
    ClassWords(words)  # raises for a word of two categories
    wnids = [wnid for names in synsets.values() for wnid in names]
    assert len(wnids) == len(set(wnids))
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdigit() for wnid in wnids)
