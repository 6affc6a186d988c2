"""Small copies of the public data sets in their official layouts."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

JPEG = b"\xff\xd8\xff\xe0 a photo"
PLACEHOLDER = b"GIF89a photo unavailable"
VOCABULARY = ("nature", "dog", "puppy", "cat", "night", "tiger")
# file in the list, tags, labels
PHOTOS = (
    ("actor\\0001_111.jpg", "dog puppy unknownword", ("dog",)),
    ("actor\\0002_222.jpg", "cat night", ("cat",)),
    ("zoo\\0001_333.jpg", "tiger nature cat", ("cat", "tiger")),
    ("zoo\\0002_444.jpg", "nature", ()),
    ("zoo\\0003_555.jpg", "dog nature", ("dog",)),
)
CATEGORIES = ("dog", "cat", "tiger")


def write_nuswide(
    root: Path,
    photos: Sequence[tuple[str, str, tuple[str, ...]]] = PHOTOS,
    categories: Sequence[str] = CATEGORIES,
    *,
    words: bool = True,
    matrix: bool = True,
    images: bool = True,
) -> Path:
    for folder in ("ImageList", "Groundtruth/AllLabels", "NUS_WID_Tags"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _lines(root / "ImageList/Imagelist.txt", (name for name, _, _ in photos))
    for category in categories:
        flags = (str(int(category in labels)) for _, _, labels in photos)
        _lines(root / f"Groundtruth/AllLabels/Labels_{category}.txt", flags)
    tags = root / "NUS_WID_Tags"
    if words:
        ids = (name.rpartition("_")[2].partition(".")[0] for name, _, _ in photos)
        rows = (f"{photo}      {text} " for photo, (_, text, _) in zip(ids, photos))
        _lines(tags / "All_Tags.txt", rows)
        _lines(tags / "Final_Tag_List.txt", VOCABULARY)
    if matrix:  # the official matrix has a tab at the end of each row
        cells = (
            "".join(f"{int(word in text.split())}\t" for word in VOCABULARY)
            for _, text, _ in photos
        )
        _lines(tags / "AllTags1k.txt", cells)
        _lines(tags / "TagList1k.txt", VOCABULARY)
    if images:
        for name, _, _ in photos:
            path = root / "Flickr" / name.replace("\\", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(JPEG)
    return root


def write_imagenet(root: Path, synsets: dict[str, int]) -> Path:
    for wnid, count in synsets.items():
        (root / wnid).mkdir(parents=True)
        for number in range(count):
            (root / wnid / f"{wnid}_{number}.JPEG").write_bytes(JPEG)
    return root


def document(uri: str, subject: str, content: str = "", answer: str = "", more: str = "") -> str:
    """Return one question in the format of L6."""
    detail = f"<content>{escape(content)}</content>\n" if content else ""
    return (
        f'<vespaadd><document type="wisdom"><uri>{uri}</uri>\n'
        f"<subject>{escape(subject)}</subject>\n{detail}"
        f"<bestanswer>{escape(answer)}</bestanswer>\n"
        f"<nbestanswers><answer_item>{escape(answer)}</answer_item>\n</nbestanswers>\n{more}"
        "</document></vespaadd>\n"
    )


def xml(documents: Iterable[str]) -> str:
    return '<?xml version="1.0" encoding="UTF-8"?>\n<ystfeed>\n' + "".join(documents) + "</ystfeed>"


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def reasons(path: Path) -> list[tuple[str, int, str]]:
    """Return file name, line and kind of each reported problem."""
    return [
        (Path(row["file"]).name, int(row["line"]), row["reason"].partition(":")[0])
        for row in read_rows(path)
    ]


def _lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
