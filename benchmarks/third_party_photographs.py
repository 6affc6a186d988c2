"""Create the third-party collection "photographs": clip art, photographs and a dictionary.

    python benchmarks/third_party_photographs.py FOLDER --downloads DOWNLOADS

Needs Debian's apt-get and dpkg-deb, Pillow, and 1 GB.

- Auxiliary pairs: drawings of openclipart with title and keywords by their authors (many in
  Italian, some meaningless), from folders that show objects.
- Target images: photographs, most of them cut out: PNG stamps of Tux Paint that are not in a
  folder of cartoons, and photographs of GCompris. Their captions are not used.
- Target texts: GCIDE (Webster 1913 and later): the first definition of a noun, 12 to 60 words,
  at most 100 per class.
- Classes: of an image by its folder (IMAGE_FOLDERS), else by the first sense of its file name in
  WordNet; of a text by the first sense of its headword.
"""

from __future__ import annotations

import argparse
import gzip
import re
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image
from third_party_sources import (
    STAMPS,
    ClassSenses,
    LabeledImage,
    LabeledText,
    Package,
    WordNet,
    clip_art,
    open_wordnet,
    sample_texts,
    unpack,
    write_collection,
)

CAPTIONS = Package(
    "openclipart-svg",
    "1:0.18+dfsg-19",
    "989712d90d57dfa3230049f553bb43b76c30ee4d4b8c5f6e106e33f7db5cbdc5",
)
GCOMPRIS = Package(
    "gcompris-qt-data",
    "3.1-2",
    "e9cf06ab2105529068df73085784e835d2ff03f870d2a8091f09125d40abac9f",
)
DICTIONARY = Package(
    "dict-gcide",
    "0.48.5+nmu2",
    "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
)
CLASSES: ClassSenses = {
    "sea animal": ["fish.1", "aquatic mammal.1", "crustacean.1", "mollusk.1"],
    "bird": ["bird.1"],
    "mammal": ["mammal.1"],
    "insect": ["insect.1", "arachnid.1"],
    "reptile": ["reptile.1", "amphibian.3"],
    "fruit": ["edible fruit.1"],
    "vegetable": ["vegetable.1"],
    "flower": ["flower.1", "flower.2"],
    "tree": ["tree.1"],
    "clothing": ["clothing.1", "footwear.2"],
    "kitchenware": ["tableware.1", "kitchen utensil.1"],
    "musical instrument": ["musical instrument.1"],
    "sports equipment": ["sports equipment.1", "ball.1"],
    "weapon": ["weapon.1"],
    "vehicle": ["vehicle.1"],
    "building": ["building.1", "memorial.3", "tower.1"],
    "furniture": ["furniture.1"],
    "tool": ["tool.1"],
    "heavenly body": ["celestial body.1"],
    "body part": ["external body part.1", "sense organ.1"],
}
IMAGE_FOLDERS = {  # class of the images in and below a folder; the longest name wins
    "animals/birds": "bird",
    "animals/fish": "sea animal",
    "animals/shellfish": "sea animal",
    "animals/mammals": "mammal",
    "animals/mammals/aquatic": "sea animal",
    "animals/marsupials": "mammal",
    "animals/insects": "insect",
    "animals/amphibians": "reptile",
    "animals/lizards": "reptile",
    "clothes": "clothing",
    "food/fruit": "fruit",
    "food/vegetables": "vegetable",
    "hobbies/music": "musical instrument",
    "household/dishes": "kitchenware",
    "household/tools": "tool",
    "military/vehicles": "vehicle",
    "plants/flowers": "flower",
    "plants/trees": "tree",
    "space": "heavenly body",
    "sports": "sports equipment",
    "town/monuments": "building",
    "vehicles": "vehicle",
    "categorization/resource/images/fishes": "sea animal",
    "categorization/resource/images/tools": "tool",
    "categorization/resource/images/monuments": "building",
    "explore_monuments/resource": "building",
    "solar_system/resource": "heavenly body",
}
# Files of GCompris with photographs, and the folders in them.
PHOTOGRAPHS = {
    "categorization": ["images/fishes", "images/tools", "images/monuments", "images/others"],
    "erase": [""],
    "explore_farm_animals": ["animals"],
    "explore_monuments": [""],
    "explore_world_animals": ["animals"],
    "lang": ["words_sample"],
    "solar_system": [""],
}
# Folders of openclipart that show objects: no icons, signs, flags, shapes, cards, maps.
AUXILIARY_FOLDERS = re.compile(
    r"animals|buildings|containers|education|electronics|food|geography/astronomy|office|people"
    r"|plants|recreation/(?!games)|science|tools|transportation/(vehicles|boating)|unsorted"
)
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # base 64 of dictd


def auxiliary_pairs(downloads: Path) -> Iterator[tuple[str, Image.Image, str]]:
    """Yield name, image and caption: title and keywords, except automatic ones."""
    dc, rdf = "{http://purl.org/dc/elements/1.1/}", "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
    top = unpack(CAPTIONS, downloads) / "usr/share/openclipart/svg"
    for path, image in clip_art(downloads, AUXILIARY_FOLDERS):
        try:
            root = ElementTree.parse(top / f"{path}.svg").getroot()
        except (ElementTree.ParseError, FileNotFoundError):
            continue
        title = next((node.text for node in root.iter(f"{dc}title") if node.text), "")
        nodes = [node for bag in root.iter(f"{dc}subject") for node in bag.iter(f"{rdf}li")]
        keywords = [(node.text or "").strip() for node in nodes]
        keywords = [word for word in keywords if word not in ("", "hash", "unsorted")]
        caption = "; ".join(part for part in (title.strip(), ", ".join(keywords)) if part)
        if caption:
            yield Path(path).name, image, " ".join(caption.split())


def target_images(downloads: Path, wordnet: WordNet) -> Iterator[LabeledImage]:
    label_of_sense = wordnet.classes_of_senses(CLASSES)
    files = {**stamps(downloads), **gcompris(downloads)}
    for path, content in sorted(files.items()):
        folder, _, name = path.rpartition("/")
        parents = [top for top in IMAGE_FOLDERS if f"{folder}/".startswith(f"{top}/")]
        label = (
            IMAGE_FOLDERS[max(parents, key=len)]
            if parents
            else label_of_name(name, wordnet, label_of_sense)
        )
        if label:
            yield LabeledImage(name, Image.open(BytesIO(content)), label)


def label_of_name(name: str, wordnet: WordNet, label_of_sense: dict[str, str]) -> str | None:
    """Look up the full name, then its last word, each also without a plural s."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", " ", name).lower().split()
    for phrase in (" ".join(words), *words[-1:]):
        for word in (phrase, phrase.removesuffix("s")):
            if word in wordnet.senses:
                return label_of_sense.get(wordnet.senses[word][0])
    return None


def stamps(downloads: Path) -> dict[str, bytes]:
    top = unpack(STAMPS, downloads) / "usr/share/tuxpaint/stamps"
    paths = [
        path.relative_to(top)
        for path in top.rglob("*.png")
        if path.relative_to(top).parts[0] != "symbols" and "cartoon" not in path.parts
    ]
    return {path.with_suffix("").as_posix(): (top / path).read_bytes() for path in paths}


def gcompris(downloads: Path) -> dict[str, bytes]:
    top = unpack(GCOMPRIS, downloads) / "usr/share/gcompris-qt/rcc"
    files = {}
    for stem, folders in PHOTOGRAPHS.items():
        for path, content in resources((top / f"{stem}.rcc").read_bytes()):
            name = path.removeprefix("gcompris/src/activities/")
            inside = [f"{stem}/resource/{folder}".rstrip("/") for folder in folders]
            if name.endswith(".webp") and name.startswith(tuple(f"{top}/" for top in inside)):
                files[name.removesuffix(".webp")] = content
    return files


def resources(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the uncompressed files in a Qt resource file."""
    _, version, tree, contents, names = struct.unpack(">4sIIII", data[:20])
    size = 14 if version < 2 else 22

    def walk(number: int, parent: str) -> Iterator[tuple[str, bytes]]:
        at = tree + number * size
        name_at, flags = struct.unpack(">IH", data[at : at + 6])
        name_at += names
        length = 2 * struct.unpack(">H", data[name_at : name_at + 2])[0]
        own = data[name_at + 6 : name_at + 6 + length].decode("utf-16-be") if number else ""
        path = f"{parent}/{own}".strip("/")
        if flags & 2:  # a folder
            count, first = struct.unpack(">II", data[at + 6 : at + 14])
            for child in range(first, first + count):
                yield from walk(child, path)
        elif not flags & 5:  # neither zlib nor zstd
            start = contents + struct.unpack(">I", data[at + 10 : at + 14])[0]
            length = struct.unpack(">I", data[start : start + 4])[0]
            yield path, data[start + 4 : start + 4 + length]

    yield from walk(0, "")


def target_texts(downloads: Path, wordnet: WordNet) -> Iterator[LabeledText]:
    """Yield the first noun entry of each headword whose first sense has a class."""
    label_of_sense = wordnet.classes_of_senses(CLASSES)
    top = unpack(DICTIONARY, downloads) / "usr/share/dictd"
    entries = gzip.decompress((top / "gcide.dict.dz").read_bytes())
    words = set()
    for line in (top / "gcide.index").read_text("utf-8").splitlines():
        word, start, length = line.split("\t")[:3]
        senses = wordnet.senses.get(word.lower(), [])
        label = label_of_sense.get(senses[0]) if senses else None
        if label is None or word in words or not word.isalpha():
            continue
        first = parse_number(start)
        entry = entries[first : first + parse_number(length)].decode("utf-8", "replace")
        text = definition(entry)
        if entry.startswith(word) and text:
            words.add(word)
            yield LabeledText(word.lower(), f"{word}: {text}", label)


def definition(entry: str) -> str:
    """Return the first sense without pronunciation, origin, source and labels."""
    head = re.match(r"[^\n]*\\(\s*\([^)]*\))?,\s+n\.", entry[:200])
    if not head or re.search(r", (v|a|adv|prep|p)\. ", head[0]):
        return ""
    body = entry[head.end() :]
    body = re.sub(r"\[[\"'`^~=:*,-]*([A-Za-z]{1,2})[\"'`^~=:*,-]*\]", r"\1", body)  # p[^e]che
    for _ in range(2):  # also nested: [1913 Webster], [F. ... [See ...]]
        body = re.sub(r"\[[^\[\]]*\]", " ", body)
    body = re.split(r"\n {3}2\. |\n {3}\{|\n {3}Syn:", body)[0]
    body = re.sub(r"\(([A-Z][a-z]*\.,?\s*(&\s*)?)+\)", " ", body)  # (Zool.)
    body = re.sub(r"\s--[A-Z][^\n]*", " ", body)  # who is quoted
    body = re.sub(r"[{}]|^\s*;?\s*pl\.[^.]*\.|\s1\.\s|\bNote:", " ", body)
    words = body.split()
    return " ".join(words[:60]) if len(words) >= 12 else ""


def parse_number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = 64 * value + DIGITS.index(digit)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--downloads", type=Path, default=Path("downloads"))
    options = parser.parse_args()
    downloads = options.downloads.resolve()
    wordnet = open_wordnet(downloads)
    write_collection(
        options.folder,
        auxiliary_pairs(downloads),
        target_images(downloads, wordnet),
        sample_texts(target_texts(downloads, wordnet), limit=100),
    )


if __name__ == "__main__":
    main()
