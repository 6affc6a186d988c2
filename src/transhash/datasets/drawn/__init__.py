"""The embedded default data set, drawn and written by code: synthetic, no download.

Twelve everyday things in two styles. Auxiliary: poster scenes with captions. Target: crayon
drawings, and riddles and notes, unpaired. See README.md in a drawn folder.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from PIL import Image

from transhash.datasets.drawn import nature, things
from transhash.datasets.drawn.crayons import crayon
from transhash.datasets.drawn.posters import poster
from transhash.datasets.drawn.shapes import Drawing
from transhash.datasets.drawn.words import THINGS, caption, target_text
from transhash.errors import DataError
from transhash.storage import read_json, whole_folder, write_json

__all__ = ["DRAWN_VERSION", "THINGS", "draw_dataset"]

DRAWN_VERSION = 1  # raise it whenever the same seed would give other files

DRAW: dict[str, Callable[[Random], Drawing]] = {
    thing: getattr(things, thing, None) or getattr(nature, thing) for thing in THINGS
}
# Where a thing may be met. Plain posters come first and often: all things meet there.
HOMES = {
    "house": ("meadow", "street", "snow", "night"),
    "tree": ("meadow", "street", "snow", "night"),
    "fish": ("deep", "sea"),
    "boat": ("sea",),
    "sun": ("sky", "meadow", "sea", "street"),
    "flower": ("meadow", "table"),
    "car": ("street", "meadow", "snow", "night"),
    "bird": ("sky", "meadow", "snow", "sea"),
    "cup": ("table",),
    "cat": ("table", "meadow", "street", "snow", "night"),
    "star": ("night", "sky"),
    "umbrella": ("street", "meadow", "snow"),
}
PLAIN_SHARE = 0.5
PAIR_SHARE = 0.3  # of the scenes show a second thing

README = """# Drawn things

Synthetic: every picture was drawn and every text written by code (`transhash.datasets.drawn`,
version {version}, seed {seed}, {per_class} items a class in each part). No photo, no download.

Classes: {things}.

- `auxiliary.tsv` (image, text, labels), {n} items, paired and labelled: bright posters with
  captions; one or two labels, joined by `|`
- `images.tsv` (image, labels), {n} items, unpaired: wax crayon on rough paper, one thing each
- `texts.tsv` (id, text, labels), {n} items, unpaired: riddles, questions and notes; about two in
  three name their thing, some name another one too

Both hands draw the same shapes; palette, paper, line, framing and wording differ.
"""


def draw_dataset(
    folder: Path,
    seed: int = 0,
    per_class: int = 100,
    track: Callable[..., Iterable[tuple[str, int]]] | None = None,
) -> Path:
    """The folder, holding the whole data set; drawn first unless it is there already.

    track(iterable, description, total) wraps the loops, for a progress bar.
    """
    folder = Path(folder)
    made_of = {"version": DRAWN_VERSION, "seed": seed, "per_class": per_class}
    record = folder / "dataset.json"
    if record.is_file() and read_json(record) == made_of:
        return folder
    if folder.exists() and not record.is_file() and any(folder.iterdir()):
        raise DataError(f"{folder} holds files that are not a drawn data set; name another folder")
    with whole_folder(folder) as draft:
        _draw(draft, seed, per_class, track or (lambda items, *_: items))
        write_json(draft / "dataset.json", made_of)
    return folder


def _draw(
    draft: Path, seed: int, per_class: int, track: Callable[..., Iterable[tuple[str, int]]]
) -> None:
    jobs = [(thing, i) for i in range(per_class) for thing in THINGS]
    (draft / "auxiliary").mkdir()
    (draft / "images").mkdir()
    rows: list[tuple[str, ...]] = []
    for thing, i in track(jobs, "posters", len(jobs)):
        image, text, labels = _scene(Random(f"{seed}/poster/{thing}/{i}"), thing)
        rows.append((_save(image, draft, f"auxiliary/{thing}-{i:03d}.jpg"), text, "|".join(labels)))
    _write(draft / "auxiliary.tsv", ("image", "text", "labels"), rows)
    rows = []
    for thing, i in track(jobs, "crayon drawings", len(jobs)):
        rng = Random(f"{seed}/crayon/{thing}/{i}")
        image = crayon(rng, DRAW[thing](rng))
        rows.append((_save(image, draft, f"images/{thing}-{i:03d}.jpg"), thing))
    _write(draft / "images.tsv", ("image", "labels"), rows)
    rows = [
        (f"{thing}-{i:03d}", target_text(Random(f"{seed}/text/{thing}/{i}"), thing), thing)
        for thing, i in jobs
    ]
    _write(draft / "texts.tsv", ("id", "text", "labels"), rows)
    readme = README.format(
        version=DRAWN_VERSION, seed=seed, per_class=per_class, things=", ".join(THINGS), n=len(jobs)
    )
    (draft / "README.md").write_text(readme, "utf-8")


def _scene(rng: Random, thing: str) -> tuple[Image.Image, str, list[str]]:
    """One poster, its caption and labels: a thing alone, several of it, or with another thing."""
    setting = "plain" if rng.random() < PLAIN_SHARE else rng.choice(HOMES[thing])
    first = DRAW[thing](rng)
    chance = rng.random()
    fits = [t for t in THINGS if t != thing and (setting == "plain" or setting in HOMES[t])]
    if fits and chance < PAIR_SHARE:
        other = rng.choice(fits)
        second = DRAW[other](rng)
        image = poster(rng, setting, [(thing, first), (other, second)])
        text = caption(rng, setting, (thing, first.colour), 1, (other, second.colour))
        return image, text, [thing, other]
    count = 1 if chance < 0.8 or thing == "sun" else rng.choice((2, 3))
    image = poster(rng, setting, [(thing, first)] * count)
    return image, caption(rng, setting, (thing, first.colour), count, None), [thing]


def _save(image: Image.Image, draft: Path, name: str) -> str:
    image.save(draft / name, quality=88)
    return name


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
