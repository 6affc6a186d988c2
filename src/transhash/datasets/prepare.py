"""Raw public data -> a three-part folder by one of the paper's two protocols (docs/data.md)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transhash.datasets.imagenet import LabeledImage, find_imagenet, read_imagenet
from transhash.datasets.nuswide import TaggedPhoto, Tags, find_nuswide, read_nuswide
from transhash.datasets.raw import Problems, packaged_list, tsv_line
from transhash.datasets.yahooqa import LabeledQuestion, find_yahooqa, read_yahooqa
from transhash.errors import DataError
from transhash.progress import Track, no_progress
from transhash.storage import atomic_folder, write_json

# The three-part folder as it is written: auxiliary.tsv, images.tsv, texts.tsv, benchmark.json.

_FORMAT = 1
# A file name that is no UTF-8 is written as the bytes it has.
_TEXT: Any = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
# In the counters below the key "" counts rows, which are fewer than labels.


@dataclass(frozen=True)
class PreparedBenchmark:
    """What was written, and what was left out."""

    folder: Path
    protocol: str
    counts: Mapping[str, int]  # rows of auxiliary, images, texts
    problems: Mapping[str, int]  # kind -> how many, each listed in problems.tsv
    skipped: Mapping[str, int]  # sound items that the protocol has no use for

    @classmethod
    def of(
        cls, folder: Path, protocol: str, parts: Mapping[str, Counter[str]], problems: Problems
    ) -> PreparedBenchmark:
        counts = {part: tally[""] for part, tally in parts.items()}
        return cls(folder, protocol, counts, dict(problems.counts), dict(problems.skipped))


@contextmanager
def staging_folder(out: Path, sources: Sequence[Path]) -> Iterator[tuple[Path, Problems]]:
    """The folder in the making; it takes an older prepared folder's place, and no other's."""
    used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used and not (out / "benchmark.json").is_file():
        raise DataError(f"{out} exists and is no prepared folder; give a new one")
    # What stands at `out` is replaced as a whole, so nothing that is read may lie inside it.
    if any(source.resolve().is_relative_to(out.resolve()) for source in sources):
        raise DataError(f"{out} holds the raw data itself; give a folder outside of it")
    with atomic_folder(out) as folder, Problems(folder / "problems.tsv") as problems:
        yield folder, problems


def write_pairs(folder: Path, pairs: Iterable[TaggedPhoto]) -> Counter[str]:
    counts: Counter[str] = Counter()
    with (folder / "auxiliary.tsv").open("w", **_TEXT) as file:
        file.write("id\timage\ttext\tlabels\n")
        for pair in pairs:
            image = str(pair.image.absolute())
            file.write(tsv_line((pair.id, image, pair.text, "|".join(pair.labels))))
            counts.update(("", *pair.labels))
    return counts


def write_images(folder: Path, pictures: Iterable[LabeledImage]) -> Counter[str]:
    counts: Counter[str] = Counter()
    with (folder / "images.tsv").open("w", **_TEXT) as file:
        file.write("id\timage\tlabels\n")
        for picture in pictures:
            file.write(tsv_line((picture.id, str(picture.image.absolute()), picture.label)))
            counts.update(("", picture.label))
    return counts


def write_texts(
    folder: Path,
    questions: Iterable[LabeledQuestion],
    per_category: int,
    seed: int,
    problems: Problems,
) -> Counter[str]:
    """All of them to a spool, then a seeded draw of its lines: memory holds only their offsets."""
    counts: Counter[str] = Counter()
    offsets: dict[str, array[int]] = {}
    spool = folder / "texts.spool"
    with spool.open("w+b") as file:
        for question in questions:
            offsets.setdefault(question.label, array("q")).append(file.tell())
            file.write(tsv_line(question).encode())
        kept: list[int] = []
        rng = np.random.default_rng([seed, 0x7E87])
        for label in sorted(offsets):
            places = np.array(offsets[label])
            if len(places) > per_category:
                problems.skipped["questions beyond the number a category"] += (
                    len(places) - per_category
                )
                places = rng.choice(places, per_category, replace=False)
            kept.extend(places.tolist())
            counts[label] = len(places)
        counts[""] = len(kept)
        with (folder / "texts.tsv").open("wb") as texts:
            texts.write(b"id\ttext\tlabels\n")
            for place in sorted(kept):
                file.seek(place)
                texts.write(file.readline())
    spool.unlink()
    return counts


def write_benchmark_json(
    folder: Path,
    protocol: str,
    categories: Sequence[str],
    sizes: Mapping[str, int],
    parts: Mapping[str, Counter[str]],
    problems: Problems,
    *,
    tags: Tags,
) -> None:
    """Write benchmark.json; a part with nothing in it is refused, a thin one is reported."""
    told = ", ".join(f"{n} x {kind}" for kind, n in (problems.counts + problems.skipped).items())
    for part, tally in parts.items():
        if not tally[""]:
            raise DataError(f"nothing was left for {part}.tsv; left out were {told or 'no rows'}")
        for name in categories:
            if not tally[name]:
                problems.add(f"{part}.tsv", 0, "empty category", name)
        needed = sizes.get("auxiliary" if part == "auxiliary" else "queries", sizes["queries"])
        if tally[""] <= needed:
            detail = f"{tally['']} rows, the paper's protocol draws {needed} and needs more"
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


# One ILSVRC synset holds at most 1,300 images and some categories have one synset, others 118: an
# equal number of each is what the paper's lowest scores (0.07 to 0.12, 16 classes) speak of.
IMAGES_PER_CATEGORY = 1300
TEXTS_PER_CATEGORY = 5000

SOURCES = """\
NUS-WIDE: the page "NUS-WIDE" of the Lab for Media Search, National University of Singapore.
  ImageList.zip     -> ImageList/Imagelist.txt
  Groundtruth.zip   -> Groundtruth/AllLabels/Labels_<concept>.txt
  NUS_WID_Tags.zip  -> NUS_WID_Tags/All_Tags.txt and Final_Tag_List.txt
                       (or AllTags1k.txt and TagList1k.txt)
  NUS-WIDE-urls.rar -> the photos' Flickr addresses; fetch them into Flickr/<word>/<name>.jpg,
                       many are gone: what is missing is counted and left out
ImageNet: the training images of ILSVRC-2012, from image-net.org after signing up (Kaggle has them
  as "ImageNet Object Localization Challenge"); unpack each nXXXXXXXX.tar into nXXXXXXXX/
Yahoo Answers: data set L6, "Yahoo! Answers Comprehensive Questions and Answers", from Yahoo's
  Webscope program after signing its agreement: FullOct2007.xml.part1.gz and .part2.gz as they are,
  or any csv, tsv or jsonl with a column text, or question and answer
Put them into ROOT/NUS-WIDE, ROOT/ImageNet and ROOT/YahooQA, or link them there."""

_NAMES = {
    "NUS-WIDE": ("nuswide",),
    "ImageNet": ("imagenet", "ilsvrc", "ilsvrc2012"),
    "YahooQA": ("yahooqa", "yahooanswers", "yahoo"),
}
_SIZES = {  # what a split draws
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
    """The three-part folder of one protocol, out of the raw data under `root`.

    `categories` are some of the shipped ones; all by default.
    """
    if protocol not in _SIZES:
        raise DataError(f"there is no protocol {protocol!r}; use nus-wide or imagenet-yahooqa")
    for number in (images_per_category, texts_per_category):
        if number < 1:
            raise DataError(f"the number of items a category must be 1 or more, not {number}")
    known = packaged_list("nuswide_categories.json")["categories"]
    names = list(dict.fromkeys(categories or known))
    for name in names:
        if name not in known:
            raise DataError(f"there is no category {name!r}; take some of {', '.join(known)}")
    # Everything that can be wrong at a glance is looked at before an hour of reading.
    layout = find_nuswide(_place(root, "NUS-WIDE"), names)
    sources = [Path(root), *layout.images]
    pairs_only = protocol == "nus-wide"
    if not pairs_only:
        photos, texts = _place(root, "ImageNet"), _place(root, "YahooQA")
        wnids, words = (
            {name: packaged_list(file)[key][name] for name in names}
            for file, key in (("imagenet_synsets.json", "synsets"), ("class_words.json", "words"))
        )
        find_imagenet(photos)
        find_yahooqa(texts)
        sources += [photos, texts]
    with staging_folder(Path(out), sources) as (folder, problems):
        parts = {}
        if not pairs_only:  # the quick ones first, so that their faults show first
            pictures = read_imagenet(
                photos, wnids, problems, per_category=images_per_category, seed=seed, track=track
            )
            parts["images"] = write_images(folder, pictures)
        parts["auxiliary"] = write_pairs(folder, read_nuswide(layout, problems, track))
        if not pairs_only:
            questions = read_yahooqa(texts, words, problems, track)
            parts["texts"] = write_texts(folder, questions, texts_per_category, seed, problems)
        write_benchmark_json(
            folder, protocol, names, _SIZES[protocol], parts, problems, tags=layout.kind
        )
        return PreparedBenchmark.of(Path(out), protocol, parts, problems)


def _place(root: str | Path, name: str) -> Path:
    """The sub-folder of `root` that bears the data set's name."""
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{name} is wanted and {root} is not a folder; --help says what it holds")
    for path in sorted(root.iterdir()):
        letters = "".join(letter for letter in path.name.lower() if letter.isalnum())
        # A prepared folder may stand there too, under a protocol's name.
        if path.is_dir() and letters in _NAMES[name] and not (path / "benchmark.json").exists():
            return path
    if name == "NUS-WIDE" and any(root.glob("ImageList*")):
        return root
    raise DataError(f"{root} has no folder {name}; see --help for where it comes from")
