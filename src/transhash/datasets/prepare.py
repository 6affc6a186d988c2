"""Raw public data -> a three-part folder by one of the paper's two protocols (docs/data.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transhash.datasets.imagenet import find_imagenet, read_imagenet
from transhash.datasets.nuswide import Tags, find_nuswide, read_nuswide
from transhash.datasets.raw import shipped
from transhash.datasets.three_parts import (
    Prepared,
    finish,
    folder_for,
    write_images,
    write_pairs,
    write_texts,
)
from transhash.datasets.yahooqa import ClassWords, find_yahooqa, read_yahooqa
from transhash.errors import DataError
from transhash.progress import Track, silent
from transhash.storage import read_json

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
Put them into ROOT/NUS-WIDE, ROOT/ImageNet and ROOT/YahooQA, or name each place by itself."""

_NAMES = {
    "NUS-WIDE": ("nuswide",),
    "ImageNet": ("imagenet", "ilsvrc", "ilsvrc2012"),
    "YahooQA": ("yahooqa", "yahooanswers", "yahoo"),
}


def prepare(
    protocol: str,
    *,
    out: str | Path,
    root: str | Path | None = None,
    nuswide: str | Path | None = None,
    imagenet: str | Path | None = None,
    yahoo: str | Path | None = None,
    images: str | Path | None = None,
    categories: str | Path | None = None,
    synsets: str | Path | None = None,
    class_words: str | Path | None = None,
    tags: Tags | None = None,
    images_per_category: int | None = IMAGES_PER_CATEGORY,
    texts_per_category: int | None = TEXTS_PER_CATEGORY,
    seed: int = 0,
    track: Track = silent,
) -> Prepared:
    """Either protocol by name, from one `root` or from places named one by one.

    `categories`, `synsets` and `class_words` are JSON files in the form of the shipped ones.
    """
    if tags not in (None, "5018", "1k"):
        raise DataError(f"tags must be 5018 or 1k, not {tags!r}")
    for number in (images_per_category, texts_per_category):
        if number is not None and number < 1:
            raise DataError(f"the number of items a category must be 1 or more, not {number}")
    chosen = None if categories is None else _override(categories, "categories", list)
    photos = None if images is None else Path(images)
    if protocol == "nus-wide":
        place = _place(root, nuswide, "NUS-WIDE")
        return prepare_nuswide(place, out, images=photos, categories=chosen, tags=tags, track=track)
    if protocol != "imagenet-yahooqa":
        raise DataError(f"there is no protocol {protocol!r}; use nus-wide or imagenet-yahooqa")
    return prepare_imagenet_yahooqa(
        _place(root, nuswide, "NUS-WIDE"),
        _place(root, imagenet, "ImageNet"),
        _place(root, yahoo, "YahooQA"),
        out,
        images=photos,
        categories=chosen,
        synsets=None if synsets is None else _override(synsets, "synsets", dict),
        class_words=None if class_words is None else _override(class_words, "words", dict),
        tags=tags,
        images_per_category=images_per_category,
        texts_per_category=texts_per_category,
        seed=seed,
        track=track,
    )


def prepare_nuswide(
    root: str | Path,
    out: str | Path,
    *,
    images: Path | None = None,
    categories: Sequence[str] | None = None,
    tags: Tags | None = None,
    track: Track = silent,
) -> Prepared:
    """NUS-WIDE's pairs of the categories; queries, database and training set come out of them."""
    names = _checked(categories or shipped("nuswide_categories.json")["categories"])
    layout = find_nuswide(Path(root), names, images=images, tags=tags)
    with folder_for(Path(out), (Path(root), *layout.images)) as (folder, problems):
        parts = {"auxiliary": write_pairs(folder, read_nuswide(layout, problems, track))}
        sizes = {"queries": 2000, "per_class": 30, "target": 0}
        finish(folder, "nus-wide", names, sizes, parts, problems, tags=layout.kind)
        return Prepared.of(Path(out), "nus-wide", parts, problems)


def prepare_imagenet_yahooqa(
    nuswide_root: str | Path,
    imagenet_root: str | Path,
    yahoo_file: str | Path,
    out: str | Path,
    *,
    images: Path | None = None,
    categories: Sequence[str] | None = None,
    synsets: Mapping[str, Sequence[str]] | None = None,
    class_words: Mapping[str, Sequence[str]] | None = None,
    tags: Tags | None = None,
    images_per_category: int | None = IMAGES_PER_CATEGORY,
    texts_per_category: int | None = TEXTS_PER_CATEGORY,
    seed: int = 0,
    track: Track = silent,
) -> Prepared:
    """NUS-WIDE's pairs as the bridge, ImageNet's images and Yahoo's questions as the target."""
    names = _checked(categories or shipped("nuswide_categories.json")["categories"])
    wnids = _chosen(names, synsets or shipped("imagenet_synsets.json")["synsets"], "synsets")
    words = _chosen(names, class_words or shipped("class_words.json")["words"], "class words")
    # Everything that can be wrong at a glance is looked at before an hour of reading.
    layout = find_nuswide(Path(nuswide_root), names, images=images, tags=tags)
    find_imagenet(Path(imagenet_root))
    find_yahooqa(Path(yahoo_file))
    ClassWords(words)
    sources = (Path(nuswide_root), *layout.images, Path(imagenet_root), Path(yahoo_file))
    with folder_for(Path(out), sources) as (folder, problems):
        pictures = read_imagenet(
            Path(imagenet_root),
            wnids,
            problems,
            per_category=images_per_category,
            seed=seed,
            track=track,
        )
        pairs = read_nuswide(layout, problems, track)
        questions = read_yahooqa(Path(yahoo_file), words, problems, track)
        parts = {  # the quick ones first, so that their faults show first
            "images": write_images(folder, pictures),
            "auxiliary": write_pairs(folder, pairs),
            "texts": write_texts(folder, questions, texts_per_category, seed, problems),
        }
        sizes = {"queries": 2000, "auxiliary": 2000, "target": 500}
        finish(folder, "imagenet-yahooqa", names, sizes, parts, problems, tags=layout.kind)
        return Prepared.of(Path(out), "imagenet-yahooqa", parts, problems)


def _place(root: str | Path | None, given: str | Path | None, name: str) -> Path:
    """The place named by itself, or the sub-folder of `root` that bears the data set's name."""
    if given is not None:
        return Path(given)
    if root is None or not Path(root).is_dir():
        where = "no --root was given" if root is None else f"{root} is not a folder"
        raise DataError(f"{name} is wanted and {where}; see --help for where it comes from")
    for path in sorted(Path(root).iterdir()):
        plain = "".join(letter for letter in path.name.lower() if letter.isalnum())
        # A prepared folder may stand there too, under a protocol's name.
        if path.is_dir() and plain in _NAMES[name] and not (path / "benchmark.json").exists():
            return path
    if name == "NUS-WIDE" and any(Path(root).glob("ImageList*")):
        return Path(root)
    raise DataError(f"{root} has no folder {name}; see --help for where it comes from")


def _override(path: str | Path, key: str, kind: type) -> Any:
    content = read_json(Path(path)) if Path(path).is_file() else None
    content = content.get(key) if isinstance(content, dict) and key in content else content
    if not isinstance(content, kind) or not content:
        shape = '["dog", ...]' if kind is list else '{"dog": ["...", ...], ...}'
        raise DataError(f'{path} must be a JSON file of {{"{key}": {shape}}}')
    return content


def _checked(names: Sequence[str]) -> list[str]:
    bad = [name for name in names if not isinstance(name, str) or "|" in name or not name.strip()]
    if bad or len(set(names)) != len(names):
        raise DataError(f"categories must be different words without '|', got {json.dumps(names)}")
    return list(names)


def _chosen(
    names: Sequence[str], lists: Mapping[str, Iterable[str]], what: str
) -> dict[str, list[str]]:
    missing = [n for n in names if not lists.get(n) or isinstance(lists[n], str)]
    if missing:
        raise DataError(f"category {missing[0]!r} has no {what}; give a list of {what} that has it")
    return {name: [str(item) for item in lists[name]] for name in names}
