"""Choose how THN learns from built-in concepts, on auxiliary sets alone.

    python benchmarks/concept_selection.py photographs clipart COCO-FOLDER

Each argument is a collection of third_party.py or a benchmark folder. Only their auxiliary pairs
are read: the pairs of one set are the captions, those of another, with the pairing removed, are the
target. So no label or item of a target that results are reported on decides. Prints the mean
reciprocal rank of an item's own partner, image -> text / text -> image, 128 bits, for each number
of matching rounds, learned from captions, from concepts and from both.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from common import row_pairs

from transhash.data.feedback import append_auxiliary
from transhash.data.manifest import manifest_images, manifest_texts, read_manifest
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.features.concepts import ImageStatistics, load_concepts, require_class_weights
from transhash.features.images import image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import text_features
from transhash.hashers import make_hasher
from transhash.progress import progress_bar

_MAX_TARGET = 1200  # items, drawn once
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
    captions: Pairs | None, use_concepts: bool, target: Pairs, text_name: str, rounds: int
) -> tuple[float, float]:
    """Fit THN on the given sources and return the reciprocal rank in both directions."""
    concepts, texts = load_concepts(), text_features(text_name)
    corpora = [captions.captions if captions else [], concepts.texts if use_concepts else []]
    texts.fit(*[corpus for corpus in (*corpora, target.captions) if corpus])
    target_y = texts.transform(target.captions)
    parts: list[AuxiliarySet] = []
    if captions is not None:
        y = texts.transform(captions.captions)
        parts.append(AuxiliarySet(captions.images, y, row_pairs(len(y))))
    if use_concepts:
        weights = require_class_weights(_FEATURES, concepts)
        statistics = ImageStatistics.from_features(target.images)
        parts.append(concepts.pairs(weights, statistics, texts.transform(concepts.texts)))
    first, *others = parts
    training = TrainingSet(first.images, first.texts, first.relation, target.images, target_y)
    for other in others:
        training = append_auxiliary(training, other)
    hasher = make_hasher("THN", bits=128, matching_rounds=rounds).fit(training)
    x, y = hasher.project_images(target.images), hasher.project_texts(target_y)
    ranks = []
    for queries, items in ((x, y), (y, x)):
        scores = np.tanh(queries.astype(np.float64)) @ np.where(items > 0, 1.0, -1.0).T
        ranks.append(reciprocal_rank(np.round(scores, 9)))
    return ranks[0], ranks[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--text-features", default="all-MiniLM-L6-v2")
    options = parser.parse_args()
    sets = [read_pairs(folder) for folder in options.folders]
    rng = np.random.default_rng(0)
    print("| captions | target | rounds | captions | concepts | both |\n|---|---|---|---|---|---|")
    for captions, whole in product(sets, sets):
        if captions is whole:
            continue
        rows = np.sort(rng.permutation(len(whole.captions))[:_MAX_TARGET])
        target = Pairs(whole.name, whole.images[rows], [whole.captions[row] for row in rows])
        for rounds in options.rounds:
            cells = [
                "{:.3f} / {:.3f}".format(
                    *measure(source, use_concepts, target, options.text_features, rounds)
                )
                for source, use_concepts in ((captions, False), (None, True), (captions, True))
            ]
            line = " | ".join([captions.name, target.name, str(rounds), *cells])
            print(f"| {line} |", flush=True)


if __name__ == "__main__":
    main()
