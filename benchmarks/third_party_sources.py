"""What the recipes of the trials share: Debian packages, WordNet, pictures, and the folder.

A trial's folder, as `trial.py` reads it:

    bridge.csv        image, text       pictures with their captions; nothing else relates them
    pictures.csv      image             the target's pictures, in pictures/
    texts.csv         id, text          the target's texts, from a third source
    kinds.csv         item, kind        of pictures and texts: for scoring, no method sees it
"""

from __future__ import annotations

import csv
import hashlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

Image.MAX_IMAGE_PIXELS = None  # some drawings of openclipart have 169 million
LONGEST = 256  # pixels of a picture's longer side, as it is written
FEWEST = 8  # pictures, or texts: a kind with fewer is left out
Kinds = Mapping[str, Sequence[str]]  # kind -> WordNet senses it stands for, such as "bird.1"


class Package(NamedTuple):
    """A Debian package of one version, known by its digest."""

    name: str
    version: str
    sha256: str


class Picture(NamedTuple):
    """A picture by the name its author gave it."""

    name: str
    image: Image.Image
    kind: str


class Text(NamedTuple):
    name: str
    text: str
    kind: str


def unpacked(package: Package, downloads: Path) -> Path:
    """The folder of the package's files; fetched with `apt-get download`, never installed."""
    files, kept = downloads / package.name, downloads / f"{package.name}.deb"
    downloads.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        named = f"{package.name}={package.version}"
        subprocess.run(["apt-get", "download", named], cwd=downloads, check=True)
        next(downloads.glob(f"{package.name}_*.deb")).rename(kept)
    if hashlib.sha256(kept.read_bytes()).hexdigest() != package.sha256:
        raise SystemExit(f"{kept} is not version {package.version}; remove it and start again")
    if not files.exists():
        draft = downloads / f"{package.name}.draft"
        subprocess.run(["dpkg-deb", "-x", kept, draft], check=True)
        draft.rename(files)
    return files


WORDNET = Package(
    "wordnet-base",
    "1:3.0-37",
    "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
)


class WordNet:
    """Nouns of WordNet 3.0, by `word.N`: the word's N-th sense, most frequent first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def senses(self) -> dict[str, list[str]]:
        """Word -> its senses (offsets in data.noun), most frequent first."""
        found = {}
        for fields in self._lines("index.noun"):
            count = int(fields[2])
            found[fields[0].replace("_", " ")] = fields[-count:]
        return found

    @cached_property
    def lines(self) -> dict[str, list[str]]:
        """Sense -> the fields of its line before the gloss."""
        return {fields[0]: fields for fields in self._lines("data.noun")}

    @cached_property
    def glosses(self) -> dict[str, str]:
        text = (self.folder / "data.noun").read_text("utf-8")
        rows = (line.partition(" | ") for line in text.splitlines() if line[:2] != "  ")
        return {head[:8]: gloss.strip() for head, _, gloss in rows}

    @cached_property
    def tag_counts(self) -> dict[str, int]:
        """Sense key -> how often the sense was met in the texts that WordNet's makers tagged."""
        rows = (line.split() for line in (self.folder / "cntlist.rev").open(encoding="utf-8"))
        return {key: int(count) for key, _, count in rows}

    @cached_property
    def narrower(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for sense in self.lines:
            for wider in self.wider(sense):
                found.setdefault(wider, []).append(sense)
        return found

    def sense(self, name: str) -> str:
        word, _, number = name.rpartition(".")
        return self.senses[word][int(number) - 1]

    def words(self, sense: str) -> list[str]:
        fields = self.lines[sense]
        return [fields[4 + 2 * k].replace("_", " ") for k in range(int(fields[3], 16))]

    def tag_count(self, sense: str, word: str) -> int:
        fields, place = self.lines[sense], self.words(sense).index(word)
        lemma, number = fields[4 + 2 * place].lower(), int(fields[5 + 2 * place], 16)
        return self.tag_counts.get(f"{lemma}%1:{fields[1]}:{number:02}::", 0)

    def wider(self, sense: str) -> list[str]:
        fields = self.lines[sense]
        rest = fields[5 + 2 * int(fields[3], 16) :]
        return [to for mark, to in zip(rest[::4], rest[1::4]) if mark in ("@", "@i")]

    def below(self, sense: str) -> set[str]:
        """The sense and all narrower ones."""
        found, left = set(), [sense]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self.narrower.get(one, [])
        return found

    def kinds_of_senses(self, kinds: Kinds) -> dict[str, str]:
        """Sense -> its kind; the first kind of the list that has it."""
        found: dict[str, str] = {}
        for kind, names in kinds.items():
            for name in names:
                for sense in self.below(self.sense(name)):
                    found.setdefault(sense, kind)
        return found

    def _lines(self, name: str) -> Iterator[list[str]]:
        with (self.folder / name).open(encoding="utf-8") as lines:
            for line in lines:
                if not line.startswith("  "):  # the licence
                    yield line.partition(" | ")[0].split()


def opened_wordnet(downloads: Path) -> WordNet:
    return WordNet(unpacked(WORDNET, downloads) / "usr/share/wordnet")


CLIP_ART = Package(
    "openclipart-png",
    "1:0.18+dfsg-19",
    "f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02",
)


def clip_art(downloads: Path, folders: re.Pattern[str]) -> Iterator[tuple[str, Image.Image]]:
    """Drawings and their places, such as animals/birds/crow_01; those that show nothing go."""
    top = unpacked(CLIP_ART, downloads) / "usr/share/openclipart/png"
    for place in sorted(path.relative_to(top).as_posix() for path in top.rglob("*.png")):
        if folders.match(place):
            image = on_white(Image.open(top / place))
            if np.asarray(image.convert("L")).min() < 250:
                yield place.removesuffix(".png"), image


def drawn(texts: Iterable[Text], most: int) -> list[Text]:
    """At most so many of each kind, in the order of their names' digests."""
    by_digest = sorted(texts, key=lambda one: hashlib.sha256(one.name.encode()).digest())
    seen: Counter[str] = Counter()
    kept = []
    for one in by_digest:
        seen[one.kind] += 1
        if seen[one.kind] <= most:
            kept.append(one)
    return sorted(kept)


def on_white(image: Image.Image) -> Image.Image:
    """Small enough to keep, and without transparency."""
    image = image.convert("RGBA")
    image.thumbnail((LONGEST, LONGEST))
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    return white.convert("RGB")


def write_trial(
    folder: Path,
    bridge: Iterable[tuple[str, Image.Image, str]],
    pictures: Iterable[Picture],
    texts: Iterable[Text],
) -> None:
    """Write the folder; `bridge` has name, picture and caption."""
    pictures, texts = list(pictures), list(texts)
    shown, told = Counter(p.kind for p in pictures), Counter(t.kind for t in texts)
    kinds = {kind for kind in shown if min(shown[kind], told[kind]) >= FEWEST}
    rows: list[tuple[str, str]] = []
    seen: set[bytes] = set()
    for name, image, caption in bridge:
        image = on_white(image)
        content = hashlib.sha256(image.tobytes()).digest()
        if content not in seen:  # the same drawing under two names is one pair
            seen.add(content)
            rows.append((_save(folder, "bridge", len(rows), name, image), caption))
    shown_rows: list[tuple[str]] = []
    kind_rows: list[tuple[str, str]] = []
    for picture in pictures:
        image = on_white(picture.image)
        content = hashlib.sha256(image.tobytes()).digest()
        if picture.kind in kinds and content not in seen:
            seen.add(content)
            path = _save(folder, "pictures", len(shown_rows), picture.name, image)
            shown_rows.append((path,))
            kind_rows.append((path, picture.kind))
    kept = [text for text in texts if text.kind in kinds]
    kind_rows += [(text.name, text.kind) for text in kept]
    _write(folder / "bridge.csv", ("image", "text"), rows)
    _write(folder / "pictures.csv", ("image",), shown_rows)
    _write(folder / "texts.csv", ("id", "text"), [(text.name, text.text) for text in kept])
    _write(folder / "kinds.csv", ("item", "kind"), kind_rows)
    print(f"{len(rows)} pairs, {len(shown_rows)} pictures, {len(kept)} texts in {folder}")
    counts = Counter(kind for _, kind in kind_rows[: len(shown_rows)])
    for kind in sorted(kinds):
        print(f"  {kind:<20} {counts[kind]:4} pictures {told[kind]:4} texts")


def _save(folder: Path, part: str, number: int, name: str, image: Image.Image) -> str:
    """Its path in the folder: its own name, which keyword search reads, and a number."""
    plain = re.sub(r"[^\w-]+", "_", name, flags=re.ASCII)
    path = f"{part}/{plain}-{number:04}.png"
    (folder / part).mkdir(parents=True, exist_ok=True)
    image.save(folder / path)
    return path


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([header, *rows])
