"""Measure precision@10 before and after training on votes, on the synthetic data set.

    python benchmarks/feedback.py [SEEDS]

The auxiliary set lacks three of the twelve classes. A run is fitted, six texts of each of the three
are searched, and the first ten images are voted correct or wrong. Then the run is fitted again with
the votes. Queries are all other texts, and all images without votes.
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
QUERIES, RESULTS, PER_CLASS = 6, 10, 24
_Names = npt.NDArray[np.str_]


def auxiliary_set(data: Path, supervision: str) -> AuxiliaryCollection:
    """Return posters with captions, without the new classes."""
    manifest = read_manifest(data / "auxiliary.tsv")
    images = manifest_images(manifest, labeled=True)
    texts = manifest_texts(manifest, labeled=True)
    rows = [row for row, labels in enumerate(images.labels or ()) if not labels & NEW]
    images, texts = images.take(rows), texts.take(rows)
    if supervision == "pairs":
        return AuxiliaryCollection.from_collections(images.without_labels(), texts.without_labels())
    return AuxiliaryCollection.from_collections(images, texts)


def class_names(items: Images | Texts) -> _Names:
    return np.array([next(iter(labels)) for labels in items.labels or ()])


def precision(
    engine: SearchEngine, images: Images, texts: Texts, queried: set[int], voted: set[int]
) -> dict[str, float]:
    """Return precision@10 of queries without votes, by direction and group of classes."""
    codes = engine.encoder.encode_images(images)[0], engine.encoder.encode_texts(texts)
    names = class_names(images), class_names(texts)
    classes = np.array(sorted(set(names[0])))
    result = {}
    for direction, query, database, excluded in (
        ("image to text", 0, 1, voted),
        ("text to image", 1, 0, queried),
    ):
        allowed = ~np.isin(np.arange(len(names[query])), list(excluded))
        new = np.isin(names[query], list(NEW))
        for group, mask in (("classes with votes", new), ("other classes", ~new)):
            rows = np.flatnonzero(allowed & mask)
            histogram = DistanceHistogram.from_codes(
                codes[query][rows], codes[database],
                names[query][rows][:, None] == classes, names[database][:, None] == classes,
            )  # fmt: skip
            scores = Scores.from_counts(histogram).to_dict()
            result[f"{direction}, {group}"] = scores["precision_at"]["10"]
    return result


def fit_twice(
    data: Path, supervision: str, seed: int
) -> tuple[dict[str, float], dict[str, float], int]:
    """Return precision before and after the votes, and the number of up votes."""
    images, texts = read_images(data / "images.tsv"), read_texts(data / "texts.tsv")
    image_names, text_names = class_names(images), class_names(texts)
    queried = {int(row) for name in NEW for row in np.flatnonzero(text_names == name)[:QUERIES]}
    auxiliary = auxiliary_set(data, supervision)
    with transhash.fit(auxiliary, images, texts, seed=seed) as engine:
        position = {name: row for row, name in enumerate(images.ids)}
        votes = {}
        for text in sorted(queried):
            for hit in engine.similar_to_text(texts.items[text], RESULTS):
                row = position[hit.item.id]
                votes[row, text] = int(image_names[row] == text_names[text])
        voted = {row for row, _ in votes}
        before = precision(engine, images, texts, queried, voted)
    triples = [(images.items[row], texts.items[text], vote) for (row, text), vote in votes.items()]
    with transhash.fit(auxiliary, images, texts, votes=triples, seed=seed) as engine:
        after = precision(engine, images, texts, queried, voted)
    return before, after, sum(votes.values())


def main(seeds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = make_synthetic(Path(folder) / "synthetic", per_class=PER_CLASS)
        for supervision in ("labels and pairs", "pairs"):
            runs = [fit_twice(data, supervision, seed) for seed in range(seeds)]
            up_votes = [up for *_, up in runs]
            votes = len(NEW) * QUERIES * RESULTS
            print(json.dumps({"auxiliary set": supervision, "up votes": up_votes, "of": votes}))
            for name in runs[0][0]:
                values = np.array([(before[name], after[name]) for before, after, _ in runs])
                mean = values.mean(axis=0)
                deviation = values.std(axis=0, ddof=1) if seeds > 1 else np.zeros(2)
                print(
                    f"{name}: {mean[0]:.2f} ± {deviation[0]:.2f} -> "
                    f"{mean[1]:.2f} ± {deviation[1]:.2f} (chance {1 / 12:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
