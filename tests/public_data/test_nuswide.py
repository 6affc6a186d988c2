from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from transhash.datasets.nuswide import TaggedPhoto, find_nuswide, read_nuswide
from transhash.datasets.raw import Problems
from transhash.errors import DataError

from .raw_layouts import CATEGORIES, JPEG, PHOTOS, PLACEHOLDER, reasons, write_nuswide

MEMORY_PROGRAM = """
import sys, tracemalloc
from pathlib import Path
from transhash.datasets.nuswide import find_nuswide, read_nuswide
from transhash.datasets.raw import Problems

root, report, *categories = sys.argv[1:]
layout = find_nuswide(Path(root), categories)
with Problems(Path(report)) as problems:
    tracemalloc.start()
    pairs = sum(1 for _ in read_nuswide(layout, problems))
    peak = tracemalloc.get_traced_memory()[1]
print(pairs, problems.counts["missing image"], peak)
"""


def read(root: Path) -> tuple[list[TaggedPhoto], list[tuple[str, int, str]]]:
    report = root.parent / "problems.tsv"
    with Problems(report) as problems:
        pairs = list(read_nuswide(find_nuswide(root, CATEGORIES), problems))
    return pairs, reasons(report)


def replace_line(path: Path, line: int, content: bytes) -> None:
    rows = path.read_bytes().split(b"\n")
    rows[line - 1] = content
    path.write_bytes(b"\n".join(rows))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_nuswide(tmp_path / "NUS-WIDE")


def test_photos_have_listed_tags_and_all_their_categories(root: Path) -> None:
    pairs, problems = read(root)
    assert pairs[0] == TaggedPhoto(
        "actor/0001_111", root / "Flickr/actor/0001_111.jpg", "dog puppy", ("dog",)
    )
    assert [pair.id for pair in pairs] == [
        "actor/0001_111",
        "actor/0002_222",
        "zoo/0001_333",
        "zoo/0003_555",
    ]
    assert pairs[2].labels == ("cat", "tiger")
    assert problems == []


def test_the_tag_matrix_gives_the_same_tags_in_the_order_of_its_list(root: Path) -> None:
    (root / "NUS_WID_Tags/All_Tags.txt").unlink()
    pairs, problems = read(root)
    assert [pair.text for pair in pairs] == [
        "dog puppy",
        "cat night",
        "nature cat tiger",
        "nature dog",
    ]
    assert problems == []


def test_the_tag_matrix_is_used_without_all_tags(tmp_path: Path) -> None:
    root = write_nuswide(tmp_path / "NUS-WIDE", words=False)
    assert find_nuswide(root, CATEGORIES).kind == "1k"
    assert len(read(root)[0]) == 4


def test_the_other_name_of_the_label_folder_is_found(root: Path) -> None:
    (root / "Groundtruth").rename(root / "ConceptsAndGroundtruth")
    assert len(read(root)[0]) == 4


@pytest.mark.parametrize("name", ["0001_111.jpg", "111.jpg"])
def test_photos_in_one_flat_folder_are_found(tmp_path: Path, name: str) -> None:
    root = write_nuswide(tmp_path / "NUS-WIDE", images=False)
    flat = root / "images"
    flat.mkdir()
    (flat / name).write_bytes(JPEG)
    pairs, problems = read(root)
    assert [pair.image for pair in pairs] == [flat / name]
    assert {reason for _, _, reason in problems} == {"missing image"}


def test_windows_paths_in_the_list_are_accepted(tmp_path: Path) -> None:
    photos = [(f"C:\\ImageData\\Flickr\\{name}", text, labels) for name, text, labels in PHOTOS]
    root = write_nuswide(tmp_path / "NUS-WIDE", photos, images=False)
    other = write_nuswide(tmp_path / "other")
    (root / "Flickr").symlink_to(other / "Flickr")
    pairs, _ = read(root)
    assert pairs[0].id == "actor/0001_111"


def test_missing_photos_are_listed(root: Path) -> None:
    (root / "Flickr/actor/0001_111.jpg").unlink()
    (root / "Flickr/actor/0002_222.jpg").write_bytes(b"<html>404</html>")
    (root / "Flickr/zoo/0001_333.jpg").write_bytes(PLACEHOLDER)
    pairs, problems = read(root)
    assert [pair.id for pair in pairs] == ["zoo/0003_555"]
    assert problems == [
        ("Imagelist.txt", 1, "missing image"),
        ("Imagelist.txt", 2, "not an image"),
        ("Imagelist.txt", 3, "placeholder image"),
    ]


def test_malformed_lines_cost_only_their_row(root: Path) -> None:
    replace_line(root / "Groundtruth/AllLabels/Labels_tiger.txt", 1, b"-1130179")
    replace_line(root / "NUS_WID_Tags/All_Tags.txt", 2, b"222 caf\xe9 cat")
    replace_line(root / "NUS_WID_Tags/All_Tags.txt", 3, b"999 tiger")
    replace_line(root / "ImageList/Imagelist.txt", 5, b"zoo\\\xff.jpg")
    pairs, problems = read(root)
    assert pairs == []
    assert problems == [
        ("Labels_tiger.txt", 1, "bad label"),
        ("All_Tags.txt", 2, "not UTF-8"),
        ("All_Tags.txt", 3, "other photo"),
        ("Imagelist.txt", 5, "not UTF-8"),
    ]


def test_a_short_matrix_row_is_reported_with_its_line(root: Path) -> None:
    replace_line(root / "NUS_WID_Tags/AllTags1k.txt", 2, b"0\t1\t0")
    replace_line(root / "NUS_WID_Tags/AllTags1k.txt", 3, b"0\t1\t0\t7\t0\t0\t")
    replace_line(root / "NUS_WID_Tags/AllTags1k.txt", 5, b"0\t0\t0\t0\t0\t0\t")
    (root / "NUS_WID_Tags/All_Tags.txt").unlink()
    pairs, problems = read(root)
    assert [pair.id for pair in pairs] == ["actor/0001_111"]
    assert problems == [
        ("AllTags1k.txt", 2, "bad matrix row"),
        ("AllTags1k.txt", 3, "bad matrix row"),
        ("AllTags1k.txt", 5, "no tags"),
    ]


def test_a_photo_without_a_listed_tag_is_reported(root: Path) -> None:
    replace_line(root / "NUS_WID_Tags/All_Tags.txt", 1, b"111 unknownword")
    assert read(root)[1] == [("All_Tags.txt", 1, "no tags")]


def test_trailing_blank_lines_windows_line_ends_and_byte_order_marks_are_accepted(
    root: Path,
) -> None:
    for path in (
        *root.rglob("Labels_*.txt"),
        *root.rglob("All_Tags.txt"),
        *root.rglob("Image*.txt"),
    ):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert len(read(root)[0]) == 4


@pytest.mark.parametrize("extra", [True, False])
def test_label_files_of_different_lengths_are_refused(root: Path, extra: bool) -> None:
    path = root / "Groundtruth/AllLabels/Labels_cat.txt"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows, "1"] if extra else rows[:-1]) + "\n")
    with pytest.raises(DataError, match=r"ends after [45] lines"):
        read(root)


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("ImageList/Imagelist.txt", "ImageList.zip"),
        ("Groundtruth/AllLabels/Labels_cat.txt", "Groundtruth.zip"),
        ("NUS_WID_Tags/TagList1k.txt", "NUS_WID_Tags.zip"),
        ("NUS_WID_Tags/AllTags1k.txt", "NUS_WID_Tags.zip"),
    ],
)
def test_a_missing_file_is_reported_with_its_archive(root: Path, name: str, archive: str) -> None:
    (root / "NUS_WID_Tags/All_Tags.txt").unlink()
    (root / name).unlink()
    with pytest.raises(DataError, match=f"has no {name}.*{archive}"):
        read(root)


def test_tags_in_another_order_than_the_photos_are_refused(root: Path) -> None:
    path = root / "NUS_WID_Tags/All_Tags.txt"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    with pytest.raises(DataError, match="names other photos"):
        read(root)


def test_a_wrong_image_folder_is_refused_with_an_example(tmp_path: Path) -> None:
    root = write_nuswide(tmp_path / "NUS-WIDE", images=False)
    with pytest.raises(DataError, match=r"No NUS-WIDE photo .*actor/0001_111\.jpg"):
        read(root)


def test_memory_does_not_grow_with_the_number_of_photos(tmp_path: Path) -> None:
    count = 20_000
    photos = [
        (f"actor\\{n:05}_{n}.jpg", "dog nature " * 20, ("dog",) if n % 10 == 0 else ())
        for n in range(count)
    ]
    root = write_nuswide(tmp_path / "NUS-WIDE", photos, images=False, matrix=False)
    (root / "Flickr/actor").mkdir(parents=True)
    (root / "Flickr/actor/00010_10.jpg").write_bytes(JPEG)
    # In its own process, because memory of other tests would be counted.
    program = [sys.executable, "-c", MEMORY_PROGRAM, str(root), str(tmp_path / "problems.tsv")]
    result = subprocess.run([*program, *CATEGORIES], capture_output=True, text=True, check=True)
    pairs, missing, peak = map(int, result.stdout.split())
    assert pairs == 1
    assert missing == count // 10 - 1
    assert peak < 4_000_000  # the tags alone are 4.6 MB, the interpreter's tables up to 2 MB
