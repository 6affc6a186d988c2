"""What votes are worth: P@10 before and after a second fit with them, on the drawn set.

python benchmarks/feedback.py [SEEDS]

The bridge loses three of the twelve kinds. A run is fitted; somebody types six texts of each of the
three and says of the first ten pictures whether they are right; the same is fitted again with those
votes. Asked are all other texts, and all pictures nobody voted on, so no voted pair is scored.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

import transhash
from transhash.data.collection import AuxiliaryCollection, Images, Texts
from transhash.data.manifest import (
    manifest_images,
    manifest_texts,
    read_images,
    read_manifest,
    read_texts,
)
from transhash.datasets.synthetic import make_synthetic
from transhash.evaluation import DistanceHistogram, Scores
from transhash.search.engine import SearchEngine

NEW = frozenset({"cup", "fish", "umbrella"})
ASKED, FIRST, PER_CLASS = 6, 10, 24
_Names = npt.NDArray[np.str_]


def bridge(data: Path, kind: str) -> AuxiliaryCollection:
    """Posters with captions, none of the new kinds."""
    manifest = read_manifest(data / "auxiliary.tsv")
    images, texts = (
        manifest_images(manifest, labelled=True),
        manifest_texts(manifest, labelled=True),
    )
    rows = [row for row, labels in enumerate(images.labels or ()) if not labels & NEW]
    images, texts = images.take(rows), texts.take(rows)
    if kind == "pairs":
        return AuxiliaryCollection.from_collections(images.without_labels(), texts.without_labels())
    return AuxiliaryCollection.from_collections(images, texts)


def kinds(items: Images | Texts) -> _Names:
    return np.array([next(iter(labels)) for labels in items.labels or ()])


def precision(
    engine: SearchEngine, images: Images, texts: Texts, typed: set[int], voted: set[int]
) -> dict[str, float]:
    codes = engine.encoder.encode_images(images)[0], engine.encoder.encode_texts(texts)
    names = kinds(images), kinds(texts)
    found = {}
    for way, encode_queries, answering, left_out in (
        ("image to text", 0, 1, voted),
        ("text to image", 1, 0, typed),
    ):
        free = ~np.isin(np.arange(len(names[encode_queries])), list(left_out))
        new = np.isin(names[encode_queries], list(NEW))
        for group, rows in (("voted kinds", free & new), ("other kinds", free & ~new)):
            at = np.flatnonzero(rows)
            classes = sorted(set(names[0]))
            asked, there = (
                (part[:, None] == np.array(classes))
                for part in (names[encode_queries][at], names[answering])
            )
            counted = DistanceHistogram.of(
                codes[encode_queries][at], codes[answering], asked, there
            )
            found[f"{way}, {group}"] = Scores.of(counted).to_dict()["precision_at"]["10"]
    return found


def second_fit(data: Path, kind: str, seed: int) -> tuple[dict[str, float], dict[str, float], int]:
    images, texts = read_images(data / "images.tsv"), read_texts(data / "texts.tsv")
    of_image, of_text = kinds(images), kinds(texts)
    typed = {int(row) for name in NEW for row in np.flatnonzero(of_text == name)[:ASKED]}
    with transhash.fit(bridge(data, kind), images, texts, seed=seed) as engine:
        place = {name: row for row, name in enumerate(images.ids)}
        votes = {}
        for text in sorted(typed):
            for hit in engine.similar_to_text(texts.items[text], FIRST):
                row = place[hit.item.id]
                votes[row, text] = int(of_image[row] == of_text[text])
        voted = {row for row, _ in votes}
        before = precision(engine, images, texts, typed, voted)
    given = [(images.items[row], texts.items[text], vote) for (row, text), vote in votes.items()]
    with transhash.fit(bridge(data, kind), images, texts, votes=given, seed=seed) as engine:
        return before, precision(engine, images, texts, typed, voted), sum(votes.values())


def main(seeds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = make_synthetic(Path(folder) / "drawn", per_class=PER_CLASS)
        for kind in ("labels and pairs", "pairs"):
            runs = [second_fit(data, kind, seed) for seed in range(seeds)]
            print(json.dumps({"bridge": kind, "ups": [ups for *_, ups in runs], "of": 180}))
            for name in runs[0][0]:
                values = np.array([(before[name], after[name]) for before, after, _ in runs])
                mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
                print(
                    f"{name}: {mean[0]:.2f} ± {spread[0]:.2f} -> {mean[1]:.2f} ± {spread[1]:.2f}"
                    f" (chance {1 / 12:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
