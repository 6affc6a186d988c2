"""Reads NUS-WIDE in its official layout: image list, concept label files, tags, Flickr photos.

All files have one line per photo in the same order, so they are read in parallel, line by line,
and memory does not grow with the 269,648 photos.
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
_DOWNLOAD = "on the NUS-WIDE page of the Lab for Media Search, National University of Singapore"
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
    """The files of one copy of NUS-WIDE."""

    image_list: Path
    labels: dict[str, Path]  # category -> file with one 0 or 1 per line
    tags: Path
    kind: Tags
    vocabulary: tuple[str, ...]
    images: tuple[Path, ...]


def find_nuswide(root: Path, categories: Sequence[str]) -> Layout:
    """Return the files under `root`, or raise a DataError naming the first that is missing.

    Tags come from All_Tags.txt, restricted to the 5,018 words of Final_Tag_List.txt: the paper
    reduces its bags of words to 1,000 dimensions, so it had more than 1,000 words. Without that
    file they come from the matrix AllTags1k.txt, on which DCMH's data are based.
    """
    if not root.is_dir():
        raise DataError(
            f"{root} is not a folder. Pass the folder with ImageList/, available {_DOWNLOAD}."
        )
    names = ("ImageList/Imagelist.txt", "ImageList/ImageList.txt", "Imagelist.txt", "ImageList.txt")
    image_list = find_file(root, names, f"ImageList.zip {_DOWNLOAD}")
    labels = {
        name: find_file(
            root,
            [f"{folder}/Labels_{name}.txt" for folder in _LABEL_FOLDERS],
            f"Groundtruth.zip {_DOWNLOAD}",
        )
        for name in categories
    }
    kind: Tags = "5018" if _has_files(root, "All_Tags", "Final_Tag_List") else "1k"
    file, vocabulary = (
        ("All_Tags", "Final_Tag_List") if kind == "5018" else ("AllTags1k", "TagList1k")
    )
    archive = f"NUS_WID_Tags.zip {_DOWNLOAD}"
    words = _read_vocabulary(find_file(root, _tag_names(vocabulary), archive))
    folders = tuple(root / name for name in _IMAGE_FOLDERS if (root / name).is_dir())
    return Layout(
        image_list, labels, find_file(root, _tag_names(file), archive), kind, words, folders
    )


def read_nuswide(
    layout: Layout, problems: Problems, track: Track = no_progress
) -> Iterator[TaggedPhoto]:
    """Yield the photos with a category, a tag and a file, in the order of the list."""
    total = count_lines(layout.image_list)
    paths = [layout.image_list, layout.tags, *layout.labels.values()]
    words = frozenset(layout.vocabulary)
    labeled = usable = mismatched = 0
    example = ""
    with ExitStack() as stack:
        columns = [lines(stack.enter_context(path.open("rb"))) for path in paths]
        rows = track(zip_longest(*columns), "NUS-WIDE", total)
        for number, row in enumerate(rows, 1):
            if None in row:
                _raise_unequal_lengths(paths, row, number)
            labels = _labels(layout, row[2:], number, problems)
            if not labels:
                continue
            labeled += 1
            name = _photo_name(layout, row[0], number, problems)
            if name is None:
                continue
            if layout.kind == "5018":
                tags, matches = _tags_from_list(layout, row[1], name, words, number, problems)
                mismatched += not matches
            else:
                tags = _tags_from_matrix(layout, row[1], number, problems)
            if tags is None:
                continue
            image = _find_photo(layout, name)
            problem = image_problem(image, jpeg_only=True)
            if problem is not None:
                # The full path would name only one of several locations tried.
                detail = name if problem[0] == "missing image" else problem[1]
                problems.add(layout.image_list, number, problem[0], detail)
                example = example or f"{problem[0]}: {detail}"
                continue
            usable += 1
            yield TaggedPhoto(name.rpartition(".")[0], image, tags, labels)
    if labeled and mismatched * 2 > labeled:
        raise DataError(
            f"{layout.tags} names other photos than {layout.image_list} in {mismatched} of "
            f"{labeled} lines. Use files of one release in their original order."
        )
    if example and not usable:
        folders = ", ".join(str(folder) for folder in layout.images)
        raise DataError(
            f"No NUS-WIDE photo of the categories is usable in {folders} ({example}). Pass the "
            "folder with the subfolders actor, administrative_assistant and so on."
        )


def _tag_names(name: str) -> list[str]:
    return [f"{folder}/{name}.txt".lstrip("/") for folder in _TAG_FOLDERS]


def _has_files(root: Path, *names: str) -> bool:
    return all(any((root / path).is_file() for path in _tag_names(name)) for name in names)


def _read_vocabulary(path: Path) -> tuple[str, ...]:
    with path.open("rb") as file:
        words = tuple(line.decode("utf-8", "replace") for line in lines(file))
    if not words or any(len(word.split()) != 1 for word in words):
        raise DataError(
            f"{path} must have one tag per line. Unpack NUS_WID_Tags.zip, available {_DOWNLOAD}."
        )
    return words


def _raise_unequal_lengths(paths: list[Path], row: tuple[bytes | None, ...], number: int) -> None:
    short = next(path for path, line in zip(paths, row) if line is None)
    longer = next(path for path, line in zip(paths, row) if line is not None)
    raise DataError(
        f"{short} ends after {number - 1} lines but {longer} continues. Unpack {short.name} again "
        f"(one line per photo, 269,648 in the full set), available {_DOWNLOAD}."
    )


def _labels(
    layout: Layout, flags: tuple[bytes, ...], number: int, problems: Problems
) -> tuple[str, ...]:
    names = []
    for name, flag in zip(layout.labels, flags):
        if flag == b"1":
            names.append(name)
        elif flag != b"0":
            value = flag[:40].decode("ascii", "replace")
            problems.add(layout.labels[name], number, "bad label", f"{value!r} is neither 0 nor 1")
            return ()
    if not names:
        problems.skip("NUS-WIDE photos without a category")
    return tuple(names)


def _photo_name(layout: Layout, line: bytes, number: int, problems: Problems) -> str | None:
    """Return `actor/0001_2124494179.jpg` for `actor\\0001_2124494179.jpg` in the list."""
    try:
        name = line.decode().replace("\\", "/")
    except UnicodeDecodeError:
        problems.add(layout.image_list, number, "not UTF-8", "image name")
        return None
    # Some copies have the prefix C:\ImageData\Flickr\.
    parts = [part for part in name.split("/") if part not in ("", ".", "..")][-2:]
    if not parts or "." not in parts[-1]:
        problems.add(layout.image_list, number, "bad image name", name[:80])
        return None
    return "/".join(parts)


def _photo_id(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0].rpartition("_")[2]


def _tags_from_list(
    layout: Layout, line: bytes, name: str, words: frozenset[str], number: int, problems: Problems
) -> tuple[str | None, bool]:
    """Return the tags of a line `<photo id> tag tag ...` and whether the photo id matches."""
    try:
        photo, *tags = line.decode().split() or [""]
    except UnicodeDecodeError:
        problems.add(layout.tags, number, "not UTF-8", "tags")
        return None, True
    if photo != _photo_id(name):
        problems.add(layout.tags, number, "other photo", f"tags of {photo!r} instead of {name}")
        return None, False
    text = " ".join(dict.fromkeys(tag for tag in tags if tag in words))
    if not text:
        problems.add(layout.tags, number, "no tags", f"{name} has no tag of the 5,018")
    return text or None, True


def _tags_from_matrix(layout: Layout, line: bytes, number: int, problems: Problems) -> str | None:
    """Return the tags whose column is 1 in a row of the matrix."""
    cells = line.split()
    if len(cells) != len(layout.vocabulary):
        detail = f"{len(cells)} cells for {len(layout.vocabulary)} tags"
        problems.add(layout.tags, number, "bad matrix row", detail)
        return None
    if set(cells) - {b"0", b"1"}:
        problems.add(layout.tags, number, "bad matrix row", "a cell is neither 0 nor 1")
        return None
    text = " ".join(tag for tag, cell in zip(layout.vocabulary, cells) if cell == b"1")
    if not text:
        problems.add(layout.tags, number, "no tags", "all cells are 0")
    return text or None


def _find_photo(layout: Layout, name: str) -> Path:
    """Return the photo's file, in its subfolder or by its name or photo id without one."""
    flat = name.rpartition("/")[2]
    by_id = f"{_photo_id(name)}.{name.rpartition('.')[2]}"
    for folder in layout.images:
        for candidate in (name, flat, by_id):
            if os.path.isfile(path := folder / candidate):  # False also for invalid names
                return path
    return layout.images[0] / name
