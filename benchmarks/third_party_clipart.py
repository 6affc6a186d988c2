"""Trial "clipart": emoji with their names -> clip art <- WordNet's entries.

    python benchmarks/third_party_clipart.py FOLDER --downloads PLACE

Needs Debian's apt-get and dpkg-deb, Pillow, fonttools, and 700 MB.

- Bridge: the emoji of Noto that show animals, plants, food, places, activities and objects, one
  code point each, with Unicode's English name and keywords ("owl; bird, wise").
- Target pictures: drawings of openclipart, known by their file names alone, in folders of kinds.
- Target texts: WordNet 3.0: words of a sense and what it says of it, 6 words or more. Taken are
  senses whose first word is a single one in small letters of which it is the first sense; at most
  80 a kind.
- Kinds: of a picture by its folder, of a text by what it lies below in WordNet (KINDS has both).
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
    Package,
    Picture,
    Text,
    WordNet,
    clip_art,
    drawn,
    opened_wordnet,
    unpacked,
    write_trial,
)

EMOJI = Package(
    "fonts-noto-color-emoji",
    "2.042-0+deb12u1",
    "a5ab0f69c7938423862320d9aca5dd187b3fd879d6a9a57dd52e17c3fa8d2751",
)
GROUPS = Package(
    "unicode-data",
    "15.0.0-1",
    "5efef23bbb1c6a133ecbdd63a2cfa07159ccacf5466a49e2426101c5ecd691fc",
)
NAMES = Package(
    "unicode-cldr-core",
    "41-0.1",
    "35d30d5d3bee4d8244e95236259c4c2a0db06e21bad696515751fcfeee4d0260",
)
SHOWN = {"Animals & Nature", "Food & Drink", "Travel & Places", "Activities", "Objects"}
# Kind -> folders of openclipart, and senses of WordNet; a sense is of the first kind that has it.
KINDS: dict[str, tuple[list[str], list[str]]] = {
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


def bridge(downloads: Path) -> Iterator[tuple[str, Image.Image, str]]:
    emoji = unpacked(EMOJI, downloads) / "usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
    font = TTFont(emoji)
    glyphs, pixels = font.getBestCmap(), font["CBDT"].strikeData[0]
    told = unpacked(NAMES, downloads) / "usr/share/unicode/cldr/common/annotations/en.xml"
    names: dict[str | None, str] = {}
    keywords: dict[str | None, str] = {}
    for one in ElementTree.parse(told).iter("annotation"):
        (names if one.get("type") == "tts" else keywords)[one.get("cp")] = one.text or ""
    for character in shown_emoji(downloads):
        glyph = pixels.get(glyphs.get(ord(character), ""))
        if glyph is None or character not in names:
            continue
        name = names[character]
        words = [word.strip() for word in keywords.get(character, "").split("|")]
        caption = "; ".join((name, ", ".join(word for word in words if word not in ("", name))))
        yield name, Image.open(BytesIO(glyph.imageData)), caption.removesuffix("; ")


def shown_emoji(downloads: Path) -> Iterator[str]:
    """Single characters of the groups that show things."""
    group = ""
    listed = unpacked(GROUPS, downloads) / "usr/share/unicode/emoji/emoji-test.txt"
    for line in listed.read_text("utf-8").splitlines():
        if line.startswith("# group: "):
            group = line.removeprefix("# group: ")
        elif "; fully-qualified" in line and group in SHOWN:
            points = [point for point in line.partition(";")[0].split() if point != "FE0F"]
            if len(points) == 1:
                yield chr(int(points[0], 16))


def pictures(downloads: Path) -> Iterator[Picture]:
    kind_of = {folder: kind for kind, (folders, _) in KINDS.items() for folder in folders}
    for place, image in clip_art(downloads, re.compile("|".join(kind_of))):
        above = [folder for folder in kind_of if place.startswith(f"{folder}/")]
        if above:
            yield Picture(Path(place).name, image, kind_of[max(above, key=len)])


def texts(wordnet: WordNet) -> Iterator[Text]:
    kinds = {kind: senses for kind, (_, senses) in KINDS.items()}
    for sense, kind in wordnet.kinds_of_senses(kinds).items():
        words, gloss = wordnet.words(sense), wordnet.glosses[sense]
        first = words[0]
        if not re.fullmatch("[a-z]+", first) or wordnet.senses[first][0] != sense:
            continue
        if len(gloss.split()) >= 6:
            yield Text(first, f"{', '.join(words)}: {gloss}", kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--downloads", type=Path, default=Path("downloads"))
    arguments = parser.parse_args()
    downloads = arguments.downloads.resolve()
    wordnet = opened_wordnet(downloads)
    write_trial(
        arguments.folder,
        bridge(downloads),
        pictures(downloads),
        drawn(texts(wordnet), most=80),
    )


if __name__ == "__main__":
    main()
