"""Create the third-party collection "clipart": emoji, clip art and WordNet entries.

    python benchmarks/third_party_clipart.py FOLDER --downloads DOWNLOADS

Needs Debian's apt-get and dpkg-deb, Pillow, fonttools, and 700 MB.

- Auxiliary pairs: Noto emoji of animals, plants, food, places, activities and objects, one code
  point each, with Unicode's English name and keywords ("owl; bird, wise").
- Target images: drawings of openclipart.
- Target texts: WordNet 3.0 senses: their words and a gloss of 6 words or more. Only senses whose
  first word is a single lower-case word with this as its first sense, at most 80 per class.
- Classes: of an image by its folder, of a text by the senses above it in WordNet (see CLASSES).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

from fontTools.ttLib import TTFont
from PIL import Image
from third_party_sources import (
    UNICODE_DATA,
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

EMOJI = Package(
    "fonts-noto-color-emoji",
    "2.042-0+deb12u1",
    "a5ab0f69c7938423862320d9aca5dd187b3fd879d6a9a57dd52e17c3fa8d2751",
)
NAMES = Package(
    "unicode-cldr-core",
    "41-0.1",
    "35d30d5d3bee4d8244e95236259c4c2a0db06e21bad696515751fcfeee4d0260",
)
EMOJI_GROUPS = {"Animals & Nature", "Food & Drink", "Travel & Places", "Activities", "Objects"}
# Folders of openclipart and senses of WordNet; a sense belongs to the first class that has it.
CLASSES: dict[str, tuple[list[str], list[str]]] = {
    "bird": (["animals/birds"], ["bird.1"]),
    "mammal": (["animals/mammals"], ["mammal.1"]),
    "insect": (["animals/bugs"], ["insect.1", "arachnid.1"]),
    "fish": (["animals/fish"], ["fish.1"]),
    "reptile": (["animals/dinosaurs", "animals/amphibian"], ["reptile.1", "amphibian.3"]),
    "fruit": (["food/fruit"], ["edible fruit.1"]),
    "vegetable": (["food/vegetables"], ["vegetable.1"]),
    "dessert": (["food/desserts"], ["dessert.1", "cake.3", "confection.1", "pastry.2"]),
    "bread": (["food/breads_and_carbs"], ["bread.1", "pasta.1", "pasta.2"]),
    "meat": (["food/meats_and_eggs"], ["meat.1", "egg.2"]),
    "drink": (["food/beverages"], ["beverage.1"]),
    "flower": (["plants/flowers"], ["flower.1", "flower.2"]),
    "tree": (["plants/trees"], ["tree.1"]),
    "clothing": (["people/clothing"], ["clothing.1", "footwear.2", "jewelry.1"]),
    "body part": (["people/bodypart"], ["external body part.1", "sense organ.1"]),
    "musical instrument": (["recreation/music"], ["musical instrument.1"]),
    "sport": (["recreation/sports"], ["sport.1", "sports equipment.1"]),
    "toy": (["recreation/toys"], ["plaything.1"]),
    "weapon": (["tools/weapons"], ["weapon.1"]),
    "boat": (["transportation/boating"], ["vessel.2"]),
    "vehicle": (["transportation/vehicles"], ["vehicle.1"]),
    "furniture": (["buildings/furniture"], ["furniture.1"]),
    "building": (["buildings"], ["building.1"]),
    "book": (["education/books"], ["book.1", "book.2"]),
    "telephone": (["office/telephone"], ["telephone.1"]),
    "computer": (["computer/hardware"], ["computer.1", "hardware.3", "peripheral.1"]),
    "clock": (["signs_and_symbols/clocks"], ["timepiece.1"]),
    "weather": (["signs_and_symbols/weather"], ["weather.1", "cloud.2"]),
    "heavenly body": (["geography/astronomy", "science/astronomy"], ["celestial body.1"]),
}


def auxiliary_pairs(downloads: Path) -> Iterator[tuple[str, Image.Image, str]]:
    """Yield name, image and caption of each emoji."""
    emoji = unpack(EMOJI, downloads) / "usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
    font = TTFont(emoji)
    glyphs, pixels = font.getBestCmap(), font["CBDT"].strikeData[0]
    annotations = unpack(NAMES, downloads) / "usr/share/unicode/cldr/common/annotations/en.xml"
    names: dict[str | None, str] = {}
    keywords: dict[str | None, str] = {}
    for entry in ElementTree.parse(annotations).iter("annotation"):
        (names if entry.get("type") == "tts" else keywords)[entry.get("cp")] = entry.text or ""
    for character in emoji_characters(downloads):
        glyph = pixels.get(glyphs.get(ord(character), ""))
        if glyph is None or character not in names:
            continue
        name = names[character]
        words = [word.strip() for word in keywords.get(character, "").split("|")]
        caption = "; ".join((name, ", ".join(word for word in words if word not in ("", name))))
        yield name, Image.open(BytesIO(glyph.imageData)), caption.removesuffix("; ")


def emoji_characters(downloads: Path) -> Iterator[str]:
    """Yield the emoji of EMOJI_GROUPS that are single characters."""
    group = ""
    path = unpack(UNICODE_DATA, downloads) / "usr/share/unicode/emoji/emoji-test.txt"
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# group: "):
            group = line.removeprefix("# group: ")
        elif "; fully-qualified" in line and group in EMOJI_GROUPS:
            points = [point for point in line.partition(";")[0].split() if point != "FE0F"]
            if len(points) == 1:
                yield chr(int(points[0], 16))


def target_images(downloads: Path) -> Iterator[LabeledImage]:
    label_of = {folder: label for label, (folders, _) in CLASSES.items() for folder in folders}
    for path, image in clip_art(downloads, re.compile("|".join(label_of))):
        parents = [folder for folder in label_of if path.startswith(f"{folder}/")]
        if parents:
            yield LabeledImage(Path(path).name, image, label_of[max(parents, key=len)])


def target_texts(wordnet: WordNet) -> Iterator[LabeledText]:
    classes = {label: senses for label, (_, senses) in CLASSES.items()}
    for sense, label in wordnet.classes_of_senses(classes).items():
        words, gloss = wordnet.words(sense), wordnet.glosses[sense]
        first = words[0]
        if not re.fullmatch("[a-z]+", first) or wordnet.senses[first][0] != sense:
            continue
        if len(gloss.split()) >= 6:
            yield LabeledText(first, f"{', '.join(words)}: {gloss}", label)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--downloads", type=Path, default=Path("downloads"))
    options = parser.parse_args()
    downloads = options.downloads.resolve()
    write_collection(
        options.folder,
        auxiliary_pairs(downloads),
        target_images(downloads),
        sample_texts(target_texts(open_wordnet(downloads)), limit=80),
    )


if __name__ == "__main__":
    main()
