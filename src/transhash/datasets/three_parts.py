"""The three-part folder as it is written: auxiliary.tsv, images.tsv, texts.tsv, benchmark.json."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transhash.datasets.imagenet import Picture
from transhash.datasets.nuswide import Pair, Tags
from transhash.datasets.raw import Problems, tsv_line
from transhash.datasets.yahooqa import Question
from transhash.errors import DataError
from transhash.storage import whole_folder, write_json

_FORMAT = 1
# A file name that is no UTF-8 is written as the bytes it has.
_TEXT: Any = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
# In the counters below the key "" counts rows, which are fewer than labels.


@dataclass(frozen=True)
class Prepared:
    """What was written, and what was left out."""

    folder: Path
    protocol: str
    counts: Mapping[str, int]  # rows of auxiliary, images, texts
    problems: Mapping[str, int]  # kind -> how many, each listed in problems.tsv
    skipped: Mapping[str, int]  # sound items that the protocol has no use for

    @classmethod
    def of(
        cls, folder: Path, protocol: str, parts: Mapping[str, Counter[str]], problems: Problems
    ) -> Prepared:
        counts = {part: tally[""] for part, tally in parts.items()}
        return cls(folder, protocol, counts, dict(problems.counts), dict(problems.skipped))


@contextmanager
def folder_for(out: Path, sources: Sequence[Path]) -> Iterator[tuple[Path, Problems]]:
    """The folder in the making; it takes an older prepared folder's place, and no other's."""
    used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used and not (out / "benchmark.json").is_file():
        raise DataError(f"{out} exists and is no prepared folder; give a new one")
    # What stands at `out` is replaced as a whole, so nothing that is read may lie inside it.
    if any(source.resolve().is_relative_to(out.resolve()) for source in sources):
        raise DataError(f"{out} holds the raw data itself; give a folder outside of it")
    with whole_folder(out) as folder, Problems(folder / "problems.tsv") as problems:
        yield folder, problems


def write_pairs(folder: Path, pairs: Iterable[Pair]) -> Counter[str]:
    counts: Counter[str] = Counter()
    with (folder / "auxiliary.tsv").open("w", **_TEXT) as file:
        file.write("id\timage\ttext\tlabels\n")
        for pair in pairs:
            image = str(pair.image.absolute())
            file.write(tsv_line((pair.id, image, pair.text, "|".join(pair.labels))))
            counts.update(("", *pair.labels))
    return counts


def write_images(folder: Path, pictures: Iterable[Picture]) -> Counter[str]:
    counts: Counter[str] = Counter()
    with (folder / "images.tsv").open("w", **_TEXT) as file:
        file.write("id\timage\tlabels\n")
        for picture in pictures:
            file.write(tsv_line((picture.id, str(picture.image.absolute()), picture.label)))
            counts.update(("", picture.label))
    return counts


def write_texts(
    folder: Path,
    questions: Iterable[Question],
    per_category: int,
    seed: int,
    problems: Problems,
) -> Counter[str]:
    """All of them to a spool, then a seeded draw of its lines: memory holds only their offsets."""
    counts: Counter[str] = Counter()
    offsets: dict[str, array[int]] = {}
    spool = folder / "texts.spool"
    with spool.open("w+b") as file:
        for question in questions:
            offsets.setdefault(question.label, array("q")).append(file.tell())
            file.write(tsv_line(question).encode())
        kept: list[int] = []
        rng = np.random.default_rng([seed, 0x7E87])
        for label in sorted(offsets):
            places = np.array(offsets[label])
            if len(places) > per_category:
                problems.skipped["questions beyond the number a category"] += (
                    len(places) - per_category
                )
                places = rng.choice(places, per_category, replace=False)
            kept.extend(places.tolist())
            counts[label] = len(places)
        counts[""] = len(kept)
        with (folder / "texts.tsv").open("wb") as texts:
            texts.write(b"id\ttext\tlabels\n")
            for place in sorted(kept):
                file.seek(place)
                texts.write(file.readline())
    spool.unlink()
    return counts


def finish(
    folder: Path,
    protocol: str,
    categories: Sequence[str],
    sizes: Mapping[str, int],
    parts: Mapping[str, Counter[str]],
    problems: Problems,
    *,
    tags: Tags,
) -> None:
    """Write benchmark.json; a part with nothing in it is refused, a thin one is reported."""
    told = ", ".join(f"{n} x {kind}" for kind, n in (problems.counts + problems.skipped).items())
    for part, tally in parts.items():
        if not tally[""]:
            raise DataError(f"nothing was left for {part}.tsv; left out were {told or 'no rows'}")
        for name in categories:
            if not tally[name]:
                problems.add(f"{part}.tsv", 0, "empty category", name)
        needed = sizes.get("auxiliary" if part == "auxiliary" else "queries", sizes["queries"])
        if tally[""] <= needed:
            detail = f"{tally['']} rows, the paper's protocol draws {needed} and needs more"
            problems.add(f"{part}.tsv", 0, "too few rows", detail)
    write_json(
        folder / "benchmark.json",
        {
            "format": _FORMAT,
            "protocol": protocol,
            "categories": list(categories),
            "sizes": dict(sizes),
            "counts": {part: tally[""] for part, tally in parts.items()},
            "per_category": {
                part: {name: tally[name] for name in categories} for part, tally in parts.items()
            },
            "tags": tags,
            "problems": dict(problems.counts.most_common()),
            "skipped": dict(problems.skipped.most_common()),
        },
    )
