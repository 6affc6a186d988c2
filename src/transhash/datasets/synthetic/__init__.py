"""Generates the synthetic data set: twelve everyday objects in two styles, no download.

The auxiliary set has poster scenes with captions. The target set has crayon drawings, and riddles
and notes, unpaired. Captions and riddles are built from different phrases (phrases.json). They
share single words only: mostly the name of the object, else its parts (roof, sails, petals).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from PIL import Image

from transhash.datasets.raw import packaged_list
from transhash.datasets.synthetic import objects
from transhash.datasets.synthetic.shapes import Drawing
from transhash.datasets.synthetic.styles import draw_crayon, draw_poster
from transhash.errors import DataError
from transhash.storage import atomic_folder, read_json, write_json

__all__ = ["CLASSES", "SYNTHETIC_VERSION", "make_synthetic"]

SYNTHETIC_VERSION = 1  # increase it when the same seed gives other files


class Lexicon(NamedTuple):
    """The phrases about one object."""

    names: Sequence[str]  # in captions, the usual one first
    plural: str
    features: Sequence[str]  # in captions: "with ..."
    actions: Sequence[str]  # in captions
    clues: Sequence[str]  # in riddles: "it ..."
    settings: Sequence[str]  # of posters


_PHRASES = packaged_list("synthetic/phrases.json")
_RIDDLES = _PHRASES["riddles"]
LEXICONS = {name: Lexicon(**phrases) for name, phrases in _PHRASES["classes"].items()}
CLASSES = tuple(LEXICONS)
_DRAW: dict[str, Callable[[Random], Drawing]] = {name: getattr(objects, name) for name in CLASSES}
_PLAIN_FRACTION = 0.5  # of posters have a plain background, where all objects can meet
_PAIR_FRACTION = 0.3  # of posters show a second object
_NAMED_FRACTION = 0.66  # of riddles name their object
_ASIDE_FRACTION = 0.25  # of riddles mention another object

_README = """# Synthetic data set

Synthetic: all images are drawn and all texts written by code (`transhash.datasets.synthetic`,
version {version}, seed {seed}, {per_class} items per class in each part).

Classes: {classes}.

- `auxiliary.tsv` (image, text, labels), {n} paired and labeled items: bright posters with captions;
  one or two labels, joined by `|`
- `images.tsv` (image, labels), {n} unpaired items: wax crayon on rough paper, one object each
- `texts.tsv` (id, text, labels), {n} unpaired items: riddles, questions and notes; about two in
  three name their object, some also name another one

Both styles draw the same shapes. Palette, paper, line, framing and wording differ.
"""


def make_caption(
    rng: Random, setting: str, first: tuple[str, str], count: int, second: tuple[str, str] | None
) -> str:
    """Write a caption of a poster; objects are (name, color)."""
    lexicon = LEXICONS[first[0]]
    place = rng.choice(_PHRASES["places"][setting])
    size = rng.choice(_PHRASES["sizes"]) + " " if rng.random() < 0.3 else ""
    if count > 1:
        return f"{_PHRASES['numbers'][str(count)]} {size}{first[1]} {lexicon.plural} {place}."
    subject = _with_article(f"{size}{first[1]} {_choose_name(rng, first[0])}")
    if second:
        detail = f" with {rng.choice(lexicon.features)}" if rng.random() < 0.5 else ""
        companion = _with_article(f"{second[1]} {_choose_name(rng, second[0])}")
        return _sentence(f"{subject}{detail} {rng.choice(_PHRASES['beside'])} {companion} {place}")
    feature, action = rng.choice(lexicon.features), rng.choice(lexicon.actions)
    form = rng.choice(
        (
            f"{subject} with {feature}, {action} {place}",
            f"{subject} {action} {place}",
            f"{subject} with {feature} {place}",
            f"a picture of {subject} with {feature}",
        )
    )
    return _sentence(form)


def make_riddle(rng: Random, name: str) -> str:
    """Write a riddle, question, note or diary line about an object."""
    lexicon = LEXICONS[name]
    named = rng.random() < _NAMED_FRACTION
    # Without the name, some word must still occur in captions, or the riddle has no solution.
    clue = rng.choice(lexicon.clues if named else _caption_clues(name))
    more = rng.choice([other for other in lexicon.clues if other != clue])
    wrong = rng.choice([other for other in CLASSES if other != name])
    form = rng.choice(_RIDDLES["named" if named else "unnamed"])
    if rng.random() < _ASIDE_FRACTION:
        form += " " + rng.choice(_RIDDLES["asides"])
    text: str = form.format(
        name=name, clue=clue, more=more, wrong=wrong, stray=rng.choice(LEXICONS[wrong].clues),
        person=rng.choice(_RIDDLES["people"]), time=rng.choice(_RIDDLES["times"]),
    )  # fmt: skip
    return text.replace(" a umbrella", " an umbrella")


@cache
def _caption_clues(name: str) -> list[str]:
    """Return the clues that share a word of more than three letters with the captions."""
    lexicon = LEXICONS[name]
    known = {word for phrase in (*lexicon.features, *lexicon.actions) for word in phrase.split()}
    return [clue for clue in lexicon.clues if any(len(w) > 3 and w in known for w in clue.split())]


def _choose_name(rng: Random, name: str) -> str:
    names = LEXICONS[name].names
    return names[0] if rng.random() < 0.85 else rng.choice(names)


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def make_synthetic(
    folder: Path,
    seed: int = 0,
    per_class: int = 100,
    track: Callable[..., Iterable[tuple[str, int]]] | None = None,
) -> Path:
    """Generate the data set in a folder unless it is already there, and return the folder.

    track(iterable, description, total) wraps the loops, for a progress bar.
    """
    folder = Path(folder)
    description = {"version": SYNTHETIC_VERSION, "seed": seed, "per_class": per_class}
    path = folder / "dataset.json"
    if path.is_file() and read_json(path) == description:
        return folder
    if folder.exists() and not path.is_file() and any(folder.iterdir()):
        raise DataError(f"{folder} contains other files. Choose an empty folder.")
    with atomic_folder(folder) as draft:
        _write_parts(draft, seed, per_class, track or (lambda items, *_: items))
        write_json(draft / "dataset.json", description)
    return folder


def _write_parts(
    folder: Path, seed: int, per_class: int, track: Callable[..., Iterable[tuple[str, int]]]
) -> None:
    jobs = [(name, i) for i in range(per_class) for name in CLASSES]
    (folder / "auxiliary").mkdir()
    (folder / "images").mkdir()
    rows: list[tuple[str, ...]] = []
    for name, i in track(jobs, "posters", len(jobs)):
        image, text, labels = _make_scene(Random(f"{seed}/poster/{name}/{i}"), name)
        file = _save(image, folder, f"auxiliary/{name}-{i:03d}.jpg")
        rows.append((file, text, "|".join(labels)))
    _write_tsv(folder / "auxiliary.tsv", ("image", "text", "labels"), rows)
    rows = []
    for name, i in track(jobs, "crayon drawings", len(jobs)):
        rng = Random(f"{seed}/crayon/{name}/{i}")
        image = draw_crayon(rng, _DRAW[name](rng))
        rows.append((_save(image, folder, f"images/{name}-{i:03d}.jpg"), name))
    _write_tsv(folder / "images.tsv", ("image", "labels"), rows)
    rows = [
        (f"{name}-{i:03d}", make_riddle(Random(f"{seed}/text/{name}/{i}"), name), name)
        for name, i in jobs
    ]
    _write_tsv(folder / "texts.tsv", ("id", "text", "labels"), rows)
    readme = _README.format(
        version=SYNTHETIC_VERSION,
        seed=seed,
        per_class=per_class,
        classes=", ".join(CLASSES),
        n=len(jobs),
    )
    (folder / "README.md").write_text(readme, "utf-8")


def _make_scene(rng: Random, name: str) -> tuple[Image.Image, str, list[str]]:
    """Return a poster of one object, several of it, or two objects, with caption and labels."""
    settings = LEXICONS[name].settings
    setting = "plain" if rng.random() < _PLAIN_FRACTION else rng.choice(settings)
    first = _DRAW[name](rng)
    chance = rng.random()
    others = [
        other
        for other in CLASSES
        if other != name and (setting == "plain" or setting in LEXICONS[other].settings)
    ]
    if others and chance < _PAIR_FRACTION:
        other = rng.choice(others)
        second = _DRAW[other](rng)
        image = draw_poster(rng, setting, [(name, first), (other, second)])
        text = make_caption(rng, setting, (name, first.color), 1, (other, second.color))
        return image, text, [name, other]
    count = 1 if chance < 0.8 or name == "sun" else rng.choice((2, 3))
    image = draw_poster(rng, setting, [(name, first)] * count)
    return image, make_caption(rng, setting, (name, first.color), count, None), [name]


def _save(image: Image.Image, folder: Path, name: str) -> str:
    image.save(folder / name, quality=88)
    return name


def _write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
