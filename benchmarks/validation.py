"""What the verdict of a fit rests on: are its figures honest, and do they tell good from bad?

python benchmarks/validation.py FOLDER [--seeds 3] [--pairs 1000] [--quick]

FOLDER is a three-part folder (docs/data.md). Its auxiliary rows are taken as pairs, without labels.
1. Held-out captions found, with text features fitted on all captions and on the rest only.
2. How well the bridge explains targets: the folder's own, the drawn set's, noise with a licence
   text; beside it, unless --quick, the target MAP of THN and of the baselines.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from transhash.data.benchmark import Benchmark
from transhash.data.collection import Images, Texts
from transhash.data.manifest import read_images
from transhash.data.relation import SparseRelation
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.evaluation import DEFINITIONS
from transhash.evaluation.scores import tie_groups
from transhash.experiments import make_synthetic_cached
from transhash.features.images import ImageFeatures, image_features
from transhash.features.texts import text_features
from transhash.hashers import make_hasher
from transhash.hashers.baselines import NearestNeighbors, RidgeRegression
from transhash.model.encoder import extract_readable
from transhash.progress import no_progress
from transhash.training.split_data import label_matrix_for, load_benchmark_features
from transhash.training.validation import (
    THE_METHOD,
    ValidationSplit,
    measure_coverage,
    score_validation,
    split_validation,
)

TARGET, QUERIES = 500, 800


def pairs(images: np.ndarray, captions: list[str], target: list[str]) -> TrainingSet:
    words = text_features(None).fit(captions, target)
    ids = [str(row) for row in range(len(images))]
    relation = SparseRelation.from_pairs(ids, ids)
    return TrainingSet(images, words.transform(captions), relation)


def held_out_features(bench: Benchmark, count: int, seed: int) -> None:
    """The same captions asked twice: known and unknown to the text features."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(bench.auxiliary_images))[:count]
    assert bench.auxiliary_images.features is not None
    images = bench.auxiliary_images.features[rows]
    captions = [bench.auxiliary_texts.items[row] for row in rows]
    target = [bench.texts.items[row] for row in rng.permutation(len(bench.texts))[:TARGET]]
    question = split_validation(pairs(images, captions, target), seed)
    assert isinstance(question, ValidationSplit)
    place = {row.tobytes(): number for number, row in enumerate(images)}
    rest = [place[row.tobytes()] for row in question.rest.images]
    aside = [place[row.tobytes()] for row in question.held_out.images]
    words = text_features(None).fit([captions[row] for row in rest], target)
    unknown = ValidationSplit.of(
        TrainingSet(
            images[rest], words.transform([captions[row] for row in rest]), question.rest.relation
        ),
        AuxiliarySet(
            images[aside],
            words.transform([captions[row] for row in aside]),
            question.held_out.relation,
        ),
    )
    found = []
    for one in (question, unknown):
        scores = score_validation(one, make_hasher("THN").fit(one.rest), no_progress)
        found.append([scores[way][THE_METHOD] for way in ("text_to_image", "image_to_text")])
    print(
        f"seed {seed}, found with words of all / of the rest: {found[0]} / {found[1]}", flush=True
    )


def explained(
    name: str, bench: Benchmark, pictures: Images, said: Texts, count: int, seed: int, quick: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(bench.auxiliary_images))[:count]
    images = pictures.take(rng.permutation(len(pictures))[: TARGET + QUERIES])
    texts = said.take(rng.permutation(len(said))[: TARGET + QUERIES])
    captions = [bench.auxiliary_texts.items[row] for row in rows]
    words = text_features(None).fit(captions, texts.items[:TARGET])
    ids = [str(row) for row in range(len(rows))]
    x, y = images.features, words.transform(texts.items)
    assert x is not None
    assert bench.auxiliary_images.features is not None
    training = TrainingSet(
        bench.auxiliary_images.features[rows], words.transform(captions),
        SparseRelation.from_pairs(ids, ids), x[:TARGET], y[:TARGET],
    )  # fmt: skip
    covered = measure_coverage(training, None, None)
    shares = [covered[part]["explained"] for part in ("pictures", "texts")]
    line = f"{name}, seed {seed}: explained {shares}"
    if not quick and images.labels is not None and texts.labels is not None:
        classes = sorted(set().union(*images.labels) & set().union(*texts.labels))
        related = label_matrix_for(images, classes).astype(int)
        related = (related @ label_matrix_for(texts, classes).T.astype(int)) > 0
        thn = make_hasher("THN").fit(training)
        tables = {"THN": -thn.encode_images(x).hamming(thn.encode_texts(y)).astype(float)}
        for kind in (NearestNeighbors, RidgeRegression):
            tables[kind.name] = kind().fit(training).score(x, y)
        for method, table in tables.items():
            both = (table, related), (table.T, related.T)
            maps = [DEFINITIONS["all"].score(tie_groups(t, r.astype(float))) for t, r in both]
            line += f", {method} {maps[0]:.3f} / {maps[1]:.3f}"
        line += f", chance {fmean(related.mean(axis=1)):.3f}"
    print(line, flush=True)


def unrelated(folder: Path, features: ImageFeatures) -> tuple[Images, Texts]:
    """Pictures of noise, coarse and fine, and the paragraphs of this project's licence."""
    rng = np.random.default_rng(0)
    for number in range(150):
        size = (96, 12, 4)[number % 3]
        noise = rng.integers(0, 256, (size, size, 3)).astype(np.uint8)
        Image.fromarray(noise).resize((96, 96), 0).save(folder / f"{number:03}.png")
    rows, kept, _ = extract_readable(features, read_images(folder))
    licence = (Path(__file__).parents[1] / "LICENSE").read_text().split("\n\n")
    texts = [" ".join(part.split()) for part in licence if part.strip()]
    return replace(kept, features=rows), Texts([str(n) for n in range(len(texts))], texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="what the bridge explains, no fit")
    options = parser.parse_args()
    features = image_features("efficientnet-lite0")
    bench, _ = load_benchmark_features(options.folder, features)
    drawn, _ = load_benchmark_features(make_synthetic_cached(60), features)
    with TemporaryDirectory() as folder:
        noise = unrelated(Path(folder), features)
    for seed in range(0 if options.quick else options.seeds):
        held_out_features(bench, options.pairs, seed)
    for seed in range(options.seeds):
        own, other = (bench, options.pairs), (drawn, 700)
        for name, (bridge, count), pictures, texts in (
            ("own target", own, bench.images, bench.texts),
            ("posters for drawings and riddles", other, drawn.images, drawn.texts),
            ("own bridge for drawings and riddles", own, drawn.images, drawn.texts),
            ("posters for own target", other, bench.images, bench.texts),
            ("own bridge for noise and a licence", own, *noise),
            ("posters for noise and a licence", other, *noise),
        ):
            explained(name, bridge, pictures, texts, count, seed, options.quick)


if __name__ == "__main__":
    main()
