"""NUS-WIDE in its official layout: image list, concept label files, tag files, Flickr photos.

All files have one line a photo in the same order, so they are read side by side, a line of each at
a time: 269,648 photos cost no more memory than one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from transhash.datasets.raw import Problems, count_lines, find_file, image_problem, lines
from transhash.errors import DataError
from transhash.progress import Track, no_progress

Tags = Literal["5018", "1k"]
_PAGE = "on the NUS-WIDE page of the Lab for Media Search, National University of Singapore"
_TAG_FOLDERS = ("NUS_WID_Tags", "NUS_WIDE_Tags", "Tags", "tags", "ConceptsList", "")
_LABEL_FOLDERS = ("Groundtruth/AllLabels", "ConceptsAndGroundtruth/AllLabels", "AllLabels")
_IMAGE_FOLDERS = ("Flickr", "ImageData/Flickr", "images", "Images", "image", "")


class TaggedPhoto(NamedTuple):
    """A photo and its tags."""

    id: str
    image: Path
    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Where the parts of one copy of NUS-WIDE lie."""

    image_list: Path
    labels: dict[str, Path]  # category -> one 0 or 1 a line
    tags: Path
    kind: Tags
    vocabulary: tuple[str, ...]
    images: tuple[Path, ...]


def find_nuswide(root: Path, categories: Sequence[str]) -> Layout:
    """The files under `root`, or a DataError naming the first that is missing.

    Of the two forms of the tags All_Tags.txt cut to the 5,018 words of Final_Tag_List.txt is
    preferred: the paper reduces its bags of words to 1,000 dimensions, so it had more than 1,000
    words. Without it the matrix AllTags1k.txt is read, which is what DCMH's data were made of.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give the folder that holds ImageList/ ({_PAGE})")
    names = ("ImageList/Imagelist.txt", "ImageList/ImageList.txt", "Imagelist.txt", "ImageList.txt")
    image_list = find_file(root, names, f"it is in ImageList.zip {_PAGE}")
    labels = {
        name: find_file(
            root,
            [f"{folder}/Labels_{name}.txt" for folder in _LABEL_FOLDERS],
            f"it is in Groundtruth.zip {_PAGE}; is {name!r} one of the 81 concepts?",
        )
        for name in categories
    }
    kind: Tags = "5018" if _has(root, "All_Tags", "Final_Tag_List") else "1k"
    file, vocabulary = ("All_Tags", "Final_Tag_List") if kind == "5018" else _MATRIX
    zipped = f"it is in NUS_WID_Tags.zip {_PAGE}"
    words = _words(find_file(root, _tag_names(vocabulary), zipped))
    folders = tuple(root / name for name in _IMAGE_FOLDERS if (root / name).is_dir())
    return Layout(
        image_list, labels, find_file(root, _tag_names(file), zipped), kind, words, folders
    )


def read_nuswide(
    layout: Layout, problems: Problems, track: Track = no_progress
) -> Iterator[TaggedPhoto]:
    """The pairs with at least one category, at least one tag and a photo on disk, in list order."""
    total = count_lines(layout.image_list)
    paths = [layout.image_list, layout.tags, *layout.labels.values()]
    words = frozenset(layout.vocabulary)
    labelled = found = strange = 0
    example = ""
    with ExitStack() as stack:
        columns = [lines(stack.enter_context(path.open("rb"))) for path in paths]
        rows = track(zip_longest(*columns), "NUS-WIDE", total)
        for number, row in enumerate(rows, 1):
            if None in row:
                _refuse_lengths(paths, row, number)
            labels = _labels(layout, row[2:], number, problems)
            if not labels:
                continue
            labelled += 1
            name = _photo(layout, row[0], number, problems)
            if name is None:
                continue
            if layout.kind == "5018":
                tags, right = _listed(layout, row[1], name, words, number, problems)
                strange += not right
            else:
                tags = _flagged(layout, row[1], number, problems)
            if tags is None:
                continue
            image = _find(layout, name)
            flaw = image_problem(image, jpeg_only=True)
            if flaw is not None:
                # By its name in the list: the full path would name only one of the places tried.
                detail = name if flaw[0] == "missing image" else flaw[1]
                problems.add(layout.image_list, number, flaw[0], detail)
                example = example or f"{flaw[0]}: {detail}"
                continue
            found += 1
            yield TaggedPhoto(name.rpartition(".")[0], image, tags, labels)
    if labelled and strange * 2 > labelled:
        raise DataError(
            f"{layout.tags} names other photos than {layout.image_list} in {strange} of {labelled} "
            "lines: the two files must be of one release and in their first order"
        )
    if example and not found:
        places = ", ".join(str(folder) for folder in layout.images)
        raise DataError(
            f"no NUS-WIDE photo of the categories is usable under {places} ({example}); give the "
            "folder that has the sub-folders actor, administrative_assistant and so on"
        )


_MATRIX = ("AllTags1k", "TagList1k")


def _tag_names(name: str) -> list[str]:
    return [f"{folder}/{name}.txt".lstrip("/") for folder in _TAG_FOLDERS]


def _has(root: Path, *names: str) -> bool:
    return all(any((root / path).is_file() for path in _tag_names(name)) for name in names)


def _words(path: Path) -> tuple[str, ...]:
    with path.open("rb") as file:
        words = tuple(line.decode("utf-8", "replace") for line in lines(file))
    if not words or any(len(word.split()) != 1 for word in words):
        raise DataError(f"{path} must hold one tag a line; take it from NUS_WID_Tags.zip {_PAGE}")
    return words


def _refuse_lengths(paths: list[Path], row: tuple[bytes | None, ...], number: int) -> None:
    short = next(path for path, line in zip(paths, row) if line is None)
    longer = next(path for path, line in zip(paths, row) if line is not None)
    raise DataError(
        f"{short} ends after {number - 1} lines, {longer} goes on: NUS-WIDE's files have one line "
        f"a photo (269,648 in the full set); unpack the shorter one again ({_PAGE})"
    )


def _labels(
    layout: Layout, flags: tuple[bytes, ...], number: int, problems: Problems
) -> tuple[str, ...]:
    names = []
    for name, flag in zip(layout.labels, flags):
        if flag == b"1":
            names.append(name)
        elif flag != b"0":
            shown = flag[:40].decode("ascii", "replace")
            problems.add(layout.labels[name], number, "bad label", f"{shown!r} is neither 0 nor 1")
            return ()
    if not names:
        problems.skip("NUS-WIDE photos of no category")
    return tuple(names)


def _photo(layout: Layout, line: bytes, number: int, problems: Problems) -> str | None:
    """`actor/0001_2124494179.jpg` of the `actor\\0001_2124494179.jpg` in the list."""
    try:
        name = line.decode().replace("\\", "/")
    except UnicodeDecodeError:
        problems.add(layout.image_list, number, "not UTF-8", "image name")
        return None
    # Some copies keep the makers' own C:\ImageData\Flickr\ in front.
    parts = [part for part in name.split("/") if part not in ("", ".", "..")][-2:]
    if not parts or "." not in parts[-1]:
        problems.add(layout.image_list, number, "bad image name", name[:80])
        return None
    return "/".join(parts)


def _photo_id(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0].rpartition("_")[2]


def _listed(
    layout: Layout, line: bytes, name: str, words: frozenset[str], number: int, problems: Problems
) -> tuple[str | None, bool]:
    """The tags of a line `<photo id> tag tag ...` and whether it is the right photo's."""
    try:
        photo, *tags = line.decode().split() or [""]
    except UnicodeDecodeError:
        problems.add(layout.tags, number, "not UTF-8", "tags")
        return None, True
    if photo != _photo_id(name):
        problems.add(layout.tags, number, "other photo", f"tags of {photo!r}, the list has {name}")
        return None, False
    kept = " ".join(dict.fromkeys(tag for tag in tags if tag in words))
    if not kept:
        problems.add(layout.tags, number, "no tags", f"{name} has no tag of the 5,018")
    return kept or None, True


def _flagged(layout: Layout, line: bytes, number: int, problems: Problems) -> str | None:
    """The tags whose column is 1 in a row of the matrix."""
    cells = line.split()
    if len(cells) != len(layout.vocabulary):
        detail = f"{len(cells)} cells for {len(layout.vocabulary)} tags"
        problems.add(layout.tags, number, "bad matrix row", detail)
        return None
    if set(cells) - {b"0", b"1"}:
        problems.add(layout.tags, number, "bad matrix row", "a cell is neither 0 nor 1")
        return None
    kept = " ".join(tag for tag, cell in zip(layout.vocabulary, cells) if cell == b"1")
    if not kept:
        problems.add(layout.tags, number, "no tags", "all cells are 0")
    return kept or None


def _find(layout: Layout, name: str) -> Path:
    """The photo's file: in its sub-folder, or flat under its own name or its photo id."""
    flat = name.rpartition("/")[2]
    by_id = f"{_photo_id(name)}.{name.rpartition('.')[2]}"
    for folder in layout.images:
        for form in (name, flat, by_id):
            if os.path.isfile(path := folder / form):  # False also for impossible names
                return path
    return layout.images[0] / name
