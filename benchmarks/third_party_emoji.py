"""Create the third-party collection "emoji": captioned stamps, emoji and thesaurus entries.

    python benchmarks/third_party_emoji.py FOLDER --downloads DOWNLOADS

Needs Debian's apt-get and dpkg-deb, npm, Pillow, and 1 GB.

- Auxiliary pairs: PNG stamps of Tux Paint (photographs and cartoons) with the sentences that the
  program shows ("A cardinal."), without symbols.
- Target images: emoji of one code point as Microsoft renders them in three dimensions (Fluent) and
  as Twitter draws them (Twemoji).
- Target texts: Moby Thesaurus: a headword and its first 60 related words, which are in
  alphabetical order and mix all senses. Only headwords with at most 120 related words, because
  words of many senses have hundreds.
- Classes: of an image by its Unicode subgroup, of a text by the first sense of its headword in
  WordNet (see CLASSES).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from third_party_sources import (
    STAMPS,
    UNICODE_DATA,
    LabeledImage,
    LabeledText,
    Package,
    WordNet,
    open_wordnet,
    sample_texts,
    unpack,
    write_collection,
)

FLUENT = Package(
    "@lobehub/fluent-emoji-3d",
    "1.1.0",
    "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
    "npm",
)
TWEMOJI = Package(
    "emoji-datasource-twitter",
    "16.0.0",
    "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
    "npm",
)
THESAURUS = Package(
    "moby",
    "1.1.2",
    "68f8b3074d088efe33c1ef8064b76bece39f7774f1718fd7b48125386100b083",
    "npm",
)
# Subgroups of emoji and senses of WordNet; a sense belongs to the first class that has it.
CLASSES: dict[str, tuple[list[str], list[str]]] = {
    "sea animal": (
        ["animal-marine", "food-marine"],
        ["fish.1", "aquatic mammal.1", "crustacean.1", "mollusk.1"],
    ),
    "bird": (["animal-bird"], ["bird.1"]),
    "mammal": (["animal-mammal"], ["mammal.1"]),
    "insect": (["animal-bug"], ["insect.1", "arachnid.1"]),
    "reptile": (["animal-reptile", "animal-amphibian"], ["reptile.1", "amphibian.3"]),
    "fruit": (["food-fruit"], ["edible fruit.1"]),
    "vegetable": (["food-vegetable"], ["vegetable.1"]),
    "dessert": (["food-sweet"], ["dessert.1", "cake.3", "confection.1", "pastry.2"]),
    "drink": (["drink"], ["beverage.1"]),
    "dish": (["food-prepared", "food-asian"], ["dish.2", "bread.1", "meat.1", "pasta.1"]),
    "flower": (["plant-flower"], ["flower.1", "flower.2"]),
    "plant": (["plant-other"], ["woody plant.1", "herb.1"]),
    "building": (["place-building", "place-religious"], ["building.1", "place of worship.1"]),
    "boat": (["transport-water"], ["vessel.2"]),
    "aircraft": (["transport-air"], ["aircraft.1"]),
    "vehicle": (["transport-ground"], ["wheeled vehicle.1", "vehicle.1"]),
    "sky": (["sky & weather"], ["celestial body.1", "weather.1", "cloud.2"]),
    "clock": (["time"], ["timepiece.1"]),
    "sport": (["sport"], ["sport.1", "sports equipment.1"]),
    "toy": (["game"], ["plaything.1", "game.1"]),
    "musical instrument": (["musical-instrument"], ["musical instrument.1"]),
    "clothing": (["clothing"], ["clothing.1", "footwear.2", "jewelry.1"]),
    "computer": (["computer"], ["computer.1", "hardware.3", "peripheral.1"]),
    "book": (["book-paper"], ["publication.1"]),
    "money": (["money"], ["money.1", "currency.1"]),
    "tool": (["tool"], ["tool.1", "weapon.1"]),
    "household": (["household"], ["furniture.1", "home appliance.1", "plumbing fixture.1"]),
    "body part": (["body-parts"], ["external body part.1", "sense organ.1"]),
}


def auxiliary_pairs(downloads: Path) -> Iterator[tuple[str, Image.Image, str]]:
    """Yield name, image and English caption of each stamp."""
    top = unpack(STAMPS, downloads) / "usr/share/tuxpaint/stamps"
    for path in sorted(top.rglob("*.png")):
        caption = path.with_suffix(".txt")
        if path.relative_to(top).parts[0] == "symbols" or not caption.exists():
            continue
        text = caption.read_text("utf-8", "replace").partition("\n")[0].strip()
        if text:
            yield path.stem, Image.open(path), text


def target_images(downloads: Path) -> Iterator[LabeledImage]:
    label_of = {group: label for label, (groups, _) in CLASSES.items() for group in groups}
    fluent = unpack(FLUENT, downloads) / "package/assets"
    twemoji = unpack(TWEMOJI, downloads) / "package/img/twitter/64"
    for code, name, subgroup in emoji(downloads):
        for folder, suffix in ((fluent, "webp"), (twemoji, "png")):
            files = [folder / f"{code}{variant}.{suffix}" for variant in ("", "-fe0f")]
            image = next((path for path in files if path.exists()), None)
            if image and subgroup in label_of:
                yield LabeledImage(name, Image.open(image), label_of[subgroup])


def emoji(downloads: Path) -> Iterator[tuple[str, str, str]]:
    """Yield code point, name and subgroup of the emoji that are single characters."""
    subgroup = ""
    path = unpack(UNICODE_DATA, downloads) / "usr/share/unicode/emoji/emoji-test.txt"
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# subgroup: "):
            subgroup = line.removeprefix("# subgroup: ")
        elif "; fully-qualified" in line:
            points = [point for point in line.partition(";")[0].split() if point != "FE0F"]
            if len(points) == 1:
                name = re.sub(r"^.*? E[\d.]+ ", "", line.partition("# ")[2])
                yield points[0].lower(), name, subgroup


def target_texts(downloads: Path, wordnet: WordNet) -> Iterator[LabeledText]:
    classes = {label: senses for label, (_, senses) in CLASSES.items()}
    label_of_sense = wordnet.classes_of_senses(classes)
    words = set()
    entries = unpack(THESAURUS, downloads) / "package/words.txt"
    for line in entries.read_text("utf-8", "replace").splitlines():
        word, *related = (part.strip() for part in line.split(","))
        senses = wordnet.senses.get(word.lower(), [])
        label = label_of_sense.get(senses[0]) if senses else None
        if label and word.isalpha() and len(related) <= 120 and word.lower() not in words:
            words.add(word.lower())
            yield LabeledText(word.lower(), f"{word}: {', '.join(related[:60])}", label)


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
        sample_texts(target_texts(downloads, open_wordnet(downloads)), limit=100),
    )


if __name__ == "__main__":
    main()
