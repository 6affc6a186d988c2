"""Converts public data sets to a benchmark folder by one of the paper's two protocols.

A benchmark folder has auxiliary.tsv, images.tsv, texts.tsv and benchmark.json (docs/benchmarks.md).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transhash.datasets.imagenet_yahooqa import (
    LabeledQuestion,
    find_imagenet,
    find_yahooqa,
    read_imagenet,
    read_yahooqa,
)
from transhash.datasets.nuswide import Tags, find_nuswide, read_nuswide
from transhash.datasets.raw import Problems, packaged_list, tsv_line
from transhash.errors import DataError
from transhash.progress import Track, no_progress
from transhash.storage import atomic_folder, write_json

_FORMAT = 1
# surrogateescape: file names that are not UTF-8 are written as their bytes.
_TEXT: Any = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
# In the counters below, the key "" counts rows and the others labels.


@dataclass(frozen=True)
class PreparedBenchmark:
    """Counts of the written and skipped rows of a benchmark folder."""

    folder: Path
    protocol: str
    counts: Mapping[str, int]  # rows of auxiliary, images, texts
    problems: Mapping[str, int]  # by kind, all listed in problems.tsv
    skipped: Mapping[str, int]  # good rows that the protocol does not use


@contextmanager
def _staging_folder(out: Path, sources: Sequence[Path]) -> Iterator[tuple[Path, Problems]]:
    """Yield a temporary folder that replaces `out`, a new, empty or benchmark folder."""
    is_used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if is_used and not (out / "benchmark.json").is_file():
        raise DataError(f"{out} exists and is not a benchmark folder. Choose a new folder.")
    if any(source.resolve().is_relative_to(out.resolve()) for source in sources):
        raise DataError(f"{out} contains the raw data. Choose a folder outside of it.")
    with atomic_folder(out) as folder, Problems(folder / "problems.tsv") as problems:
        yield folder, problems


def _write_rows(
    path: Path, columns: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[str]]]
) -> Counter[str]:
    """Write rows of cells and labels."""
    counts: Counter[str] = Counter()
    with path.open("w", **_TEXT) as file:
        file.write(tsv_line((*columns, "labels")))
        for cells, labels in rows:
            file.write(tsv_line((*cells, "|".join(labels))))
            counts.update(("", *labels))
    return counts


def _write_texts(
    folder: Path,
    questions: Iterable[LabeledQuestion],
    per_category: int,
    seed: int,
    problems: Problems,
) -> Counter[str]:
    """Write all texts to a spool file, then a sample of its lines; only offsets are in memory."""
    counts: Counter[str] = Counter()
    offsets: dict[str, array[int]] = {}
    spool = folder / "texts.spool"
    with spool.open("w+b") as file:
        for question in questions:
            offsets.setdefault(question.label, array("q")).append(file.tell())
            file.write(tsv_line(question).encode())
        sample: list[int] = []
        rng = np.random.default_rng([seed, 0x7E87])
        for label in sorted(offsets):
            lines = np.array(offsets[label])
            if len(lines) > per_category:
                problems.skipped["questions above the limit per category"] += (
                    len(lines) - per_category
                )
                lines = rng.choice(lines, per_category, replace=False)
            sample.extend(lines.tolist())
            counts[label] = len(lines)
        counts[""] = len(sample)
        with (folder / "texts.tsv").open("wb") as texts:
            texts.write(b"id\ttext\tlabels\n")
            for offset in sorted(sample):
                file.seek(offset)
                texts.write(file.readline())
    spool.unlink()
    return counts


def _write_benchmark_json(
    folder: Path,
    protocol: str,
    categories: Sequence[str],
    sizes: Mapping[str, int],
    parts: Mapping[str, Counter[str]],
    problems: Problems,
    *,
    tags: Tags,
) -> None:
    """Write benchmark.json. An empty part is an error, a small one is reported."""
    skipped = ", ".join(f"{n} x {kind}" for kind, n in (problems.counts + problems.skipped).items())
    for part, tally in parts.items():
        if not tally[""]:
            raise DataError(
                f"No rows remain for {part}.tsv (skipped: {skipped or 'none'}). Check the raw data."
            )
        for name in categories:
            if not tally[name]:
                problems.add(f"{part}.tsv", 0, "empty category", name)
        needed = sizes.get("auxiliary" if part == "auxiliary" else "queries", sizes["queries"])
        if tally[""] <= needed:
            detail = f"{tally['']} rows, the paper's protocol needs more than {needed}"
            problems.add(f"{part}.tsv", 0, "too few rows", detail)
    write_json(
        folder / "benchmark.json",
        {
            "format": _FORMAT,
            "protocol": protocol,
            "categories": list(categories),
            "sizes": dict(sizes),
            "counts": {part: tally[""] for part, tally in parts.items()},
            "per_category": {
                part: {name: tally[name] for name in categories} for part, tally in parts.items()
            },
            "tags": tags,
            "problems": dict(problems.counts.most_common()),
            "skipped": dict(problems.skipped.most_common()),
        },
    )


# Categories have 1 to 118 synsets of at most 1,300 images each. The paper's lowest scores (0.07 to
# 0.12 with 16 classes) suggest an equal number of images per category.
IMAGES_PER_CATEGORY = 1300
TEXTS_PER_CATEGORY = 5000

SOURCES = """\
NUS-WIDE: the page "NUS-WIDE" of the Lab for Media Search, National University of Singapore.
  ImageList.zip     -> ImageList/Imagelist.txt
  Groundtruth.zip   -> Groundtruth/AllLabels/Labels_<concept>.txt
  NUS_WID_Tags.zip  -> NUS_WID_Tags/All_Tags.txt and Final_Tag_List.txt
                       (or AllTags1k.txt and TagList1k.txt)
  NUS-WIDE-urls.rar -> Flickr URLs of the photos. Download them to Flickr/<word>/<name>.jpg.
                       Missing photos are counted and skipped.
ImageNet: the training images of ILSVRC-2012 from image-net.org (registration required), or from
  Kaggle as "ImageNet Object Localization Challenge". Unpack each nXXXXXXXX.tar into nXXXXXXXX/.
Yahoo Answers: data set L6, "Yahoo! Answers Comprehensive Questions and Answers", from Yahoo's
  Webscope program (agreement required). Use FullOct2007.xml.part1.gz and .part2.gz unchanged, or
  any csv, tsv or jsonl file with a column text, or question and answer.
Put or link them into ROOT/NUS-WIDE, ROOT/ImageNet and ROOT/YahooQA."""

_FOLDER_NAMES = {
    "NUS-WIDE": ("nuswide",),
    "ImageNet": ("imagenet", "ilsvrc", "ilsvrc2012"),
    "YahooQA": ("yahooqa", "yahooanswers", "yahoo"),
}
_SIZES = {
    "nus-wide": {"queries": 2000, "per_class": 30, "target": 0},
    "imagenet-yahooqa": {"queries": 2000, "auxiliary": 2000, "target": 500},
}


def prepare_folder(
    protocol: str,
    *,
    root: str | Path,
    out: str | Path,
    categories: Sequence[str] | None = None,
    images_per_category: int = IMAGES_PER_CATEGORY,
    texts_per_category: int = TEXTS_PER_CATEGORY,
    seed: int = 0,
    track: Track = no_progress,
) -> PreparedBenchmark:
    """Write the benchmark folder of a protocol from the raw data under `root`.

    `categories` is a subset of the packaged ones; all by default.
    """
    if protocol not in _SIZES:
        raise DataError(f"Unknown protocol {protocol!r}. Choose from: {', '.join(_SIZES)}.")
    if (limit := min(images_per_category, texts_per_category)) < 1:
        raise DataError(f"The limit per category is {limit}. Use 1 or more.")
    known = packaged_list("nuswide_categories.json")["categories"]
    names = list(dict.fromkeys(categories or known))
    for name in names:
        if name not in known:
            raise DataError(f"Unknown category {name!r}. Choose from: {', '.join(known)}.")
    # Find all files before an hour of reading.
    layout = find_nuswide(_find_folder(root, "NUS-WIDE"), names)
    sources = [Path(root), *layout.images]
    pairs_only = protocol == "nus-wide"
    if not pairs_only:
        photos, texts = _find_folder(root, "ImageNet"), _find_folder(root, "YahooQA")
        wnids, words = (
            {name: packaged_list(file)[key][name] for name in names}
            for file, key in (("imagenet_synsets.json", "synsets"), ("class_words.json", "words"))
        )
        find_imagenet(photos)
        find_yahooqa(texts)
        sources += [photos, texts]
    with _staging_folder(Path(out), sources) as (folder, problems):
        parts = {}
        if not pairs_only:  # fast, so its problems show early
            images = read_imagenet(
                photos, wnids, problems, per_category=images_per_category, seed=seed, track=track
            )
            parts["images"] = _write_rows(
                folder / "images.tsv",
                ("id", "image"),
                (((row.id, str(row.image.absolute())), (row.label,)) for row in images),
            )
        pairs = read_nuswide(layout, problems, track)
        parts["auxiliary"] = _write_rows(
            folder / "auxiliary.tsv",
            ("id", "image", "text"),
            (((row.id, str(row.image.absolute()), row.text), row.labels) for row in pairs),
        )
        if not pairs_only:
            questions = read_yahooqa(texts, words, problems, track)
            parts["texts"] = _write_texts(folder, questions, texts_per_category, seed, problems)
        _write_benchmark_json(
            folder, protocol, names, _SIZES[protocol], parts, problems, tags=layout.kind
        )
        counts = {part: tally[""] for part, tally in parts.items()}
        return PreparedBenchmark(
            Path(out), protocol, counts, dict(problems.counts), dict(problems.skipped)
        )


def _find_folder(root: str | Path, name: str) -> Path:
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. See --help for its contents.")
    for path in sorted(root.iterdir()):
        letters = "".join(letter for letter in path.name.lower() if letter.isalnum())
        # A benchmark folder may have the same name.
        if (
            path.is_dir()
            and letters in _FOLDER_NAMES[name]
            and not (path / "benchmark.json").exists()
        ):
            return path
    if name == "NUS-WIDE" and any(root.glob("ImageList*")):
        return root
    raise DataError(f"{root} has no folder {name}. See --help for its source.")
