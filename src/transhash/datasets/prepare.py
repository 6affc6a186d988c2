"""Raw public data -> a three-part folder by one of the paper's two protocols (docs/data.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transhash.datasets.imagenet import find_imagenet, read_imagenet
from transhash.datasets.nuswide import find_nuswide, read_nuswide
from transhash.datasets.raw import shipped
from transhash.datasets.three_parts import (
    Prepared,
    finish,
    folder_for,
    write_images,
    write_pairs,
    write_texts,
)
from transhash.datasets.yahooqa import find_yahooqa, read_yahooqa
from transhash.errors import DataError
from transhash.progress import Track, silent

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
    track: Track = silent,
) -> Prepared:
    """The three-part folder of one protocol, out of the raw data under `root`.

    `categories` are some of the shipped ones; all by default.
    """
    if protocol not in _SIZES:
        raise DataError(f"there is no protocol {protocol!r}; use nus-wide or imagenet-yahooqa")
    for number in (images_per_category, texts_per_category):
        if number < 1:
            raise DataError(f"the number of items a category must be 1 or more, not {number}")
    known = shipped("nuswide_categories.json")["categories"]
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
            {name: shipped(file)[key][name] for name in names}
            for file, key in (("imagenet_synsets.json", "synsets"), ("class_words.json", "words"))
        )
        find_imagenet(photos)
        find_yahooqa(texts)
        sources += [photos, texts]
    with folder_for(Path(out), sources) as (folder, problems):
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
        finish(folder, protocol, names, _SIZES[protocol], parts, problems, tags=layout.kind)
        return Prepared.of(Path(out), protocol, parts, problems)


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
