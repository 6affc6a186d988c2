"""Choose how THN learns from built-in concepts, on auxiliary sets alone.

    python benchmarks/concept_selection.py photographs clipart COCO-FOLDER

Each argument is a collection of third_party.py or a benchmark folder. Only their auxiliary pairs
are read: up to 1,000 pairs of one set are the captions, 600 of another, with the pairing removed,
are the target. So no label or item of a target that results are reported on decides. Prints the
mean reciprocal rank of an item's own partner, mean of image -> text and text -> image, 64 bits, for
each number of matching rounds and for each weight of all concepts against all captions.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from common import row_pairs

from transhash.data.feedback import UnionRelation, append_auxiliary
from transhash.data.manifest import manifest_images, manifest_texts, read_manifest
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.features.concepts import ImageStatistics, load_concepts, require_class_weights
from transhash.features.images import image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import text_features
from transhash.hashers import make_hasher
from transhash.progress import progress_bar

_MAX_PAIRS, _MAX_TARGET = 1000, 600  # drawn once
_FEATURES = image_features("efficientnet-lite0")


class Pairs(NamedTuple):
    name: str
    images: Features
    captions: list[str]


def read_pairs(folder: Path) -> Pairs:
    file = next(path for path in folder.iterdir() if path.stem == "auxiliary" and path.is_file())
    manifest = read_manifest(file)
    images, readable, _ = extract_readable(_FEATURES, manifest_images(manifest), progress_bar)
    texts = manifest_texts(manifest)
    captions = dict(zip(texts.ids, texts.items, strict=True))
    return Pairs(folder.name, images, [captions[name] for name in readable.ids])


def reciprocal_rank(scores: npt.NDArray[np.float64]) -> float:
    """Return the mean reciprocal rank of the diagonal; equal scores share their mean rank."""
    own = np.diag(scores)[:, None]
    rank = (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) + 1) / 2
    return float(np.mean(1 / rank))


def measure(
    captions: Pairs | None,
    target: Pairs,
    text_name: str,
    rounds: int,
    weight: float | None = None,
) -> float:
    """Fit THN on captions, and on concepts if they have a weight; return the reciprocal rank."""
    concepts, texts = load_concepts(), text_features(text_name)
    corpora = [captions.captions if captions else [], concepts.texts if weight else []]
    texts.fit(*[corpus for corpus in (*corpora, target.captions) if corpus])
    target_y = texts.transform(target.captions)
    parts: list[AuxiliarySet] = []
    if captions is not None:
        y = texts.transform(captions.captions)
        parts.append(AuxiliarySet(captions.images, y, row_pairs(len(y))))
    if weight:
        weights = require_class_weights(_FEATURES, concepts)
        statistics = ImageStatistics.from_features(target.images)
        parts.append(concepts.pairs(weights, statistics, texts.transform(concepts.texts)))
    first, *others = parts
    training = TrainingSet(first.images, first.texts, first.relation, target.images, target_y)
    for other in others:
        training = append_auxiliary(training, other)
        relation = training.relation
        assert isinstance(relation, UnionRelation)
        known, appended = relation.terms
        appended = replace(appended, weight=(weight or 1.0) * appended.weight)
        relation.terms = (known, appended)
    hasher = make_hasher("THN", bits=64, matching_rounds=rounds).fit(training)
    x, y = hasher.project_images(target.images), hasher.project_texts(target_y)
    ranks = []
    for queries, items in ((x, y), (y, x)):
        scores = np.tanh(queries.astype(np.float64)) @ np.where(items > 0, 1.0, -1.0).T
        ranks.append(reciprocal_rank(np.round(scores, 9)))
    return fmean(ranks)


def draw(pairs: Pairs, size: int) -> Pairs:
    rows = np.sort(np.random.default_rng(0).permutation(len(pairs.captions))[:size])
    return Pairs(pairs.name, pairs.images[rows], [pairs.captions[row] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 0.3, 3.0])
    parser.add_argument("--text-features", default="all-MiniLM-L6-v2")
    options = parser.parse_args()
    first, *others = options.rounds
    columns = list(product([None, *options.weights], [first])) + list(
        product([None, options.weights[0]], others)
    )
    names = [
        f"{'captions' if weight is None else f'both, weight {weight:g}'}, rounds {rounds}"
        for weight, rounds in columns
    ] + [f"concepts, rounds {rounds}" for rounds in options.rounds]
    print(f"| captions | target | {' | '.join(names)} |\n{'|---' * (len(names) + 2)}|")
    sets = [read_pairs(folder) for folder in options.folders]
    rows = []
    for whole in sets:
        target = draw(whole, _MAX_TARGET)
        alone = [
            measure(None, target, options.text_features, rounds, 1.0) for rounds in options.rounds
        ]
        for other in sets:
            if other is whole:
                continue
            captions = draw(other, _MAX_PAIRS)
            values = [
                measure(captions, target, options.text_features, rounds, weight)
                for weight, rounds in columns
            ]
            rows.append(values + alone)
            cells = " | ".join(f"{value:.3f}" for value in rows[-1])
            print(f"| {other.name} | {whole.name} | {cells} |", flush=True)
    print(f"| mean | | {' | '.join(f'{value:.3f}' for value in np.mean(rows, axis=0))} |")


if __name__ == "__main__":
    main()
