"""Shared by the scripts that create third-party collections: packages, WordNet, images.

The folder of a collection, as `third_party.py` reads it:

    auxiliary.csv     image, text       auxiliary pairs: images with captions
    images.csv        image             target images, in images/
    texts.csv         id, text          target texts, from another source
    labels.csv        item, label       class of each target item, for scoring only
"""

from __future__ import annotations

import csv
import hashlib
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

Image.MAX_IMAGE_PIXELS = None  # some drawings of openclipart have 169 million
MAX_SIDE = 256  # pixels of the longer side of a saved image
MIN_ITEMS = 8  # classes with fewer images or texts are dropped
ClassSenses = Mapping[str, Sequence[str]]  # class -> WordNet senses such as "bird.1"


class Package(NamedTuple):
    """One version of a Debian or npm package, identified by its digest."""

    name: str
    version: str
    sha256: str
    registry: Literal["debian", "npm"] = "debian"

    def download(self, folder: Path) -> Path:
        """Download the archive and return its path."""
        if self.registry == "debian":
            command = ["apt-get", "download", f"{self.name}={self.version}"]
            subprocess.run(command, cwd=folder, check=True)
            return next(folder.glob(f"{self.name}_*.deb"))
        command = ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        result = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        return folder / result.stdout.split()[-1]


class LabeledImage(NamedTuple):
    """An image with its file name and class."""

    name: str
    image: Image.Image
    label: str


class LabeledText(NamedTuple):
    name: str
    text: str
    label: str


def unpack(package: Package, downloads: Path) -> Path:
    """Download and unpack a package, without installing it, and return the folder of its files."""
    name = package.name.replace("/", "-")
    suffix = "deb" if package.registry == "debian" else "tgz"
    files, archive = downloads / name, downloads / f"{name}.{suffix}"
    downloads.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        package.download(downloads).rename(archive)
    if hashlib.sha256(archive.read_bytes()).hexdigest() != package.sha256:
        raise SystemExit(f"{archive} is not version {package.version}. Delete it and retry.")
    if not files.exists():
        draft = downloads / f"{name}.draft"
        if package.registry == "debian":
            subprocess.run(["dpkg-deb", "-x", archive, draft], check=True)
        else:
            with tarfile.open(archive) as members:
                members.extractall(draft, filter="data")
        draft.rename(files)
    return files


WORDNET = Package(
    "wordnet-base",
    "1:3.0-37",
    "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
)


class WordNet:
    """Nouns of WordNet 3.0. `word.N` is the N-th sense of a word, most frequent first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def senses(self) -> dict[str, list[str]]:
        """Map a word to its senses (offsets in data.noun), most frequent first."""
        senses = {}
        for fields in self._lines("index.noun"):
            count = int(fields[2])
            senses[fields[0].replace("_", " ")] = fields[-count:]
        return senses

    @cached_property
    def lines(self) -> dict[str, list[str]]:
        """Map a sense to the fields of its line before the gloss."""
        return {fields[0]: fields for fields in self._lines("data.noun")}

    @cached_property
    def glosses(self) -> dict[str, str]:
        text = (self.folder / "data.noun").read_text("utf-8")
        rows = (line.partition(" | ") for line in text.splitlines() if line[:2] != "  ")
        return {head[:8]: gloss.strip() for head, _, gloss in rows}

    @cached_property
    def tag_counts(self) -> dict[str, int]:
        """Map a sense key to its count in the tagged texts of WordNet."""
        rows = (line.split() for line in (self.folder / "cntlist.rev").open(encoding="utf-8"))
        return {key: int(count) for key, _, count in rows}

    @cached_property
    def narrower(self) -> dict[str, list[str]]:
        result: dict[str, list[str]] = {}
        for sense in self.lines:
            for wider in self.wider(sense):
                result.setdefault(wider, []).append(sense)
        return result

    def sense(self, name: str) -> str:
        word, _, number = name.rpartition(".")
        return self.senses[word][int(number) - 1]

    def words(self, sense: str) -> list[str]:
        fields = self.lines[sense]
        return [fields[4 + 2 * k].replace("_", " ") for k in range(int(fields[3], 16))]

    def tag_count(self, sense: str, word: str) -> int:
        fields, i = self.lines[sense], self.words(sense).index(word)
        lemma, number = fields[4 + 2 * i].lower(), int(fields[5 + 2 * i], 16)
        return self.tag_counts.get(f"{lemma}%1:{fields[1]}:{number:02}::", 0)

    def wider(self, sense: str) -> list[str]:
        fields = self.lines[sense]
        rest = fields[5 + 2 * int(fields[3], 16) :]
        return [to for mark, to in zip(rest[::4], rest[1::4]) if mark in ("@", "@i")]

    def below(self, sense: str) -> set[str]:
        """Return the sense and all narrower ones."""
        result, queue = set(), [sense]
        while queue:
            next_sense = queue.pop()
            if next_sense not in result:
                result.add(next_sense)
                queue += self.narrower.get(next_sense, [])
        return result

    def classes_of_senses(self, classes: ClassSenses) -> dict[str, str]:
        """Map each sense to the first class that contains it."""
        result: dict[str, str] = {}
        for label, names in classes.items():
            for name in names:
                for sense in self.below(self.sense(name)):
                    result.setdefault(sense, label)
        return result

    def _lines(self, name: str) -> Iterator[list[str]]:
        with (self.folder / name).open(encoding="utf-8") as lines:
            for line in lines:
                if not line.startswith("  "):  # the license
                    yield line.partition(" | ")[0].split()


def open_wordnet(downloads: Path) -> WordNet:
    return WordNet(unpack(WORDNET, downloads) / "usr/share/wordnet")


STAMPS = Package(
    "tuxpaint-stamps-default",
    "2022.06.04-1",
    "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
)
UNICODE_DATA = Package(
    "unicode-data",
    "15.0.0-1",
    "5efef23bbb1c6a133ecbdd63a2cfa07159ccacf5466a49e2426101c5ecd691fc",
)
CLIP_ART = Package(
    "openclipart-png",
    "1:0.18+dfsg-19",
    "f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02",
)


def clip_art(downloads: Path, folders: re.Pattern[str]) -> Iterator[tuple[str, Image.Image]]:
    """Yield paths such as animals/birds/crow_01 and drawings that are not blank."""
    top = unpack(CLIP_ART, downloads) / "usr/share/openclipart/png"
    for path in sorted(path.relative_to(top).as_posix() for path in top.rglob("*.png")):
        if folders.match(path):
            image = on_white(Image.open(top / path))
            if np.asarray(image.convert("L")).min() < 250:
                yield path.removesuffix(".png"), image


def sample_texts(texts: Iterable[LabeledText], limit: int) -> list[LabeledText]:
    """Return at most `limit` texts per class, chosen by the digests of their names."""
    by_digest = sorted(texts, key=lambda text: hashlib.sha256(text.name.encode()).digest())
    counts: Counter[str] = Counter()
    sample = []
    for text in by_digest:
        counts[text.label] += 1
        if counts[text.label] <= limit:
            sample.append(text)
    return sorted(sample)


def on_white(image: Image.Image) -> Image.Image:
    """Return a small copy without transparency."""
    image = image.convert("RGBA")
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    return white.convert("RGB")


def write_collection(
    folder: Path,
    auxiliary: Iterable[tuple[str, Image.Image, str]],
    images: Iterable[LabeledImage],
    texts: Iterable[LabeledText],
) -> None:
    """Write the folder; `auxiliary` yields name, image and caption."""
    images, texts = list(images), list(texts)
    image_counts = Counter(image.label for image in images)
    text_counts = Counter(text.label for text in texts)
    classes = {c for c in image_counts if min(image_counts[c], text_counts[c]) >= MIN_ITEMS}
    digests: set[bytes] = set()

    def is_new(image: Image.Image) -> bool:  # some drawings have two names
        digest = hashlib.sha256(image.tobytes()).digest()
        new = digest not in digests
        digests.add(digest)
        return new

    pairs: list[tuple[str, str]] = []
    for name, original, caption in auxiliary:
        image = on_white(original)
        if is_new(image):
            pairs.append((_save(folder, "auxiliary", len(pairs), name, image), caption))
    labels: list[tuple[str, str]] = []
    for target in images:
        image = on_white(target.image)
        if target.label in classes and is_new(image):
            labels.append((_save(folder, "images", len(labels), target.name, image), target.label))
    image_rows = [(path,) for path, _ in labels]
    texts = [text for text in texts if text.label in classes]
    labels += [(text.name, text.label) for text in texts]
    _write(folder / "auxiliary.csv", ("image", "text"), pairs)
    _write(folder / "images.csv", ("image",), image_rows)
    _write(folder / "texts.csv", ("id", "text"), [(text.name, text.text) for text in texts])
    _write(folder / "labels.csv", ("item", "label"), labels)
    print(f"{len(pairs)} pairs, {len(image_rows)} images, {len(texts)} texts in {folder}")
    counts = Counter(label for _, label in labels[: len(image_rows)])
    for label in sorted(classes):
        print(f"  {label:<20} {counts[label]:4} images {text_counts[label]:4} texts")


def _save(folder: Path, part: str, number: int, name: str, image: Image.Image) -> str:
    """Save under its own name, which keyword search uses, and a number; return the path."""
    plain = re.sub(r"[^\w-]+", "_", name, flags=re.ASCII)
    path = f"{part}/{plain}-{number:04}.png"
    (folder / part).mkdir(parents=True, exist_ok=True)
    image.save(folder / path)
    return path


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([header, *rows])
