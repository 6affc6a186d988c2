"""ImageNet as ILSVRC-2012 unpacks: one folder a synset, named by its wnid."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transhash.datasets.raw import Problems, image_problem
from transhash.errors import DataError
from transhash.progress import Track, no_progress

_WNID = re.compile(r"n\d{8}")
_PLACES = (
    "",
    "train",
    "ILSVRC2012_img_train",
    "CLS-LOC/train",
    "Data/CLS-LOC/train",
    "ILSVRC/Data/CLS-LOC/train",
)
_SUFFIXES = (".jpeg", ".jpg", ".png")


class LabeledImage(NamedTuple):
    """An image of one category."""

    id: str
    image: Path
    label: str


def find_imagenet(root: Path) -> Path:
    """The folder that holds the synset folders, at `root` or where the archives put it."""
    for place in _PLACES:
        folder = root / place
        if folder.is_dir() and any(
            _WNID.fullmatch(entry.name) and entry.is_dir() for entry in os.scandir(folder)
        ):
            return folder
    packed = any(any((root / place).glob("n????????.tar")) for place in _PLACES)
    hint = (
        "unpack each nXXXXXXXX.tar into a folder of its name"
        if packed
        else "give the unpacked training images of ILSVRC-2012 (image-net.org, after signing up)"
    )
    raise DataError(f"{root} holds no synset folders such as n02129604/; {hint}")


def read_imagenet(
    root: Path,
    synsets: Mapping[str, Sequence[str]],
    problems: Problems,
    *,
    per_category: int | None = None,
    seed: int = 0,
    track: Track = no_progress,
) -> Iterator[LabeledImage]:
    """The images of each category's synsets; with a limit, a seeded draw of them.

    Only drawn images are looked at: a bad one is reported and the next of the draw takes its place.
    """
    folder = find_imagenet(root)
    for category in track(list(synsets), "ImageNet", len(synsets)):
        names = _names(folder, category, synsets[category], problems)
        # A stream of its own for each category: another list for one leaves the others' draw alone.
        rng = np.random.default_rng([seed, zlib.crc32(category.encode())])
        order = rng.permutation(len(names)) if per_category is not None else range(len(names))
        drawn: list[str] = []
        for position in order:
            if len(drawn) == per_category:
                problems.skip("ImageNet images beyond the number a category")
                continue
            name = names[int(position)]
            flaw = image_problem(folder / name)
            if flaw is not None:
                problems.add(folder / name, 0, *flaw)
                continue
            drawn.append(name)
        for name in sorted(drawn):
            yield LabeledImage(name.rpartition(".")[0], folder / name, category)


def _names(folder: Path, category: str, wnids: Sequence[str], problems: Problems) -> list[str]:
    """`n02129604/n02129604_10034.JPEG` and so on, sorted."""
    names: list[str] = []
    absent = []
    for wnid in wnids:
        if not (folder / wnid).is_dir():
            absent.append(wnid)
            continue
        inside = sorted(entry.name for entry in os.scandir(folder / wnid))
        names.extend(f"{wnid}/{name}" for name in inside if name.lower().endswith(_SUFFIXES))
    if len(absent) == len(wnids):
        raise DataError(
            f"{folder} has no folder for category {category!r} (any of {', '.join(wnids[:5])}); "
            "unpack those synsets of ILSVRC-2012"
        )
    for wnid in absent:
        problems.add(folder / wnid, 0, "missing synset", f"of category {category}")
    return names
