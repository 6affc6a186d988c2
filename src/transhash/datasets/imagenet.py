"""Reads ImageNet (ILSVRC-2012): one folder per synset, named by its wnid."""

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
_SUBFOLDERS = (
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
    """Return the folder with the synset folders: `root`, or where the archives put it."""
    for name in _SUBFOLDERS:
        folder = root / name
        if folder.is_dir() and any(
            _WNID.fullmatch(entry.name) and entry.is_dir() for entry in os.scandir(folder)
        ):
            return folder
    packed = any(any((root / name).glob("n????????.tar")) for name in _SUBFOLDERS)
    remedy = (
        "Unpack each nXXXXXXXX.tar into a folder of that name."
        if packed
        else "Pass the unpacked training images of ILSVRC-2012 from image-net.org."
    )
    raise DataError(f"{root} contains no synset folders such as n02129604/. {remedy}")


def read_imagenet(
    root: Path,
    synsets: Mapping[str, Sequence[str]],
    problems: Problems,
    *,
    per_category: int | None = None,
    seed: int = 0,
    track: Track = no_progress,
) -> Iterator[LabeledImage]:
    """Yield the images of each category's synsets, or a seeded sample of `per_category`.

    A bad image is reported and replaced by the next of the sample. Other images are not opened.
    """
    folder = find_imagenet(root)
    for category in track(list(synsets), "ImageNet", len(synsets)):
        names = _names(folder, category, synsets[category], problems)
        # Independent random streams: changing one category does not change the others' samples.
        rng = np.random.default_rng([seed, zlib.crc32(category.encode())])
        order = rng.permutation(len(names)) if per_category is not None else range(len(names))
        sample: list[str] = []
        for position in order:
            if len(sample) == per_category:
                problems.skip("ImageNet images above the limit per category")
                continue
            name = names[int(position)]
            problem = image_problem(folder / name)
            if problem is not None:
                problems.add(folder / name, 0, *problem)
                continue
            sample.append(name)
        for name in sorted(sample):
            yield LabeledImage(name.rpartition(".")[0], folder / name, category)


def _names(folder: Path, category: str, wnids: Sequence[str], problems: Problems) -> list[str]:
    """Return sorted names such as `n02129604/n02129604_10034.JPEG`."""
    names: list[str] = []
    missing = []
    for wnid in wnids:
        if not (folder / wnid).is_dir():
            missing.append(wnid)
            continue
        entries = sorted(entry.name for entry in os.scandir(folder / wnid))
        names.extend(f"{wnid}/{name}" for name in entries if name.lower().endswith(_SUFFIXES))
    if len(missing) == len(wnids):
        raise DataError(
            f"{folder} has no folder for category {category!r} (any of {', '.join(wnids[:5])}). "
            "Unpack these synsets of ILSVRC-2012."
        )
    for wnid in missing:
        problems.add(folder / wnid, 0, "missing synset", f"of category {category}")
    return names
