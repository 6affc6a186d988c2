"""Check the validation and coverage figures of `transhash fit`.

    python benchmarks/validation.py FOLDER [--seeds 3] [--pairs 1000] [--quick]

FOLDER is a benchmark folder (docs/benchmarks.md), whose auxiliary rows are used as pairs.

1. Validation with text features fitted on all captions, as `fit` does, and on the training captions
   only.
2. Coverage of several targets: of the folder, of the synthetic data set, and noise images with a
   license text; and, unless --quick, the target MAP of THN and the baselines.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
from common import DIRECTIONS, row_pairs
from PIL import Image

from transhash.data.benchmark import Benchmark
from transhash.data.collection import Images, Texts
from transhash.data.manifest import read_images
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.evaluation import DEFINITIONS
from transhash.evaluation.scores import tie_groups
from transhash.experiments import make_synthetic_cached
from transhash.features.images import ImageFeatures, image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import text_features
from transhash.hashers import make_hasher
from transhash.hashers.baselines import NearestNeighbors, RidgeRegression
from transhash.training.split_data import label_matrix_for, load_benchmark_features
from transhash.training.validation import (
    METHOD_KEY,
    ValidationSplit,
    measure_coverage,
    score_validation,
    split_validation,
)

TARGET, QUERIES = 500, 800


def compare_text_features(benchmark: Benchmark, count: int, seed: int) -> None:
    """Validate with text features that were, and were not, fitted on the held-out captions."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(benchmark.auxiliary_images))[:count]
    assert benchmark.auxiliary_images.features is not None
    images = benchmark.auxiliary_images.features[rows]
    captions = [benchmark.auxiliary_texts.items[row] for row in rows]
    target = [benchmark.texts.items[row] for row in rng.permutation(len(benchmark.texts))[:TARGET]]
    features = text_features(None).fit(captions, target)
    training = TrainingSet(images, features.transform(captions), row_pairs(len(images)))
    split = split_validation(training, seed)
    position = {row.tobytes(): number for number, row in enumerate(images)}
    rest = [position[row.tobytes()] for row in split.rest.images]
    held_out = [position[row.tobytes()] for row in split.held_out.images]
    features = text_features(None).fit([captions[row] for row in rest], target)
    texts = features.transform(captions)
    without = ValidationSplit.from_parts(
        TrainingSet(images[rest], texts[rest], split.rest.relation),
        AuxiliarySet(images[held_out], texts[held_out], split.held_out.relation),
    )
    results = []
    for part in (split, without):
        scores = score_validation(part, make_hasher("THN").fit(part.rest))
        results.append([scores[direction][METHOD_KEY] for direction in DIRECTIONS])
    print(f"seed {seed}, words of all / of the training captions: {results[0]} / {results[1]}",
          flush=True)  # fmt: skip


def compare_coverage(
    name: str,
    benchmark: Benchmark,
    target: tuple[Images, Texts],
    count: int,
    seed: int,
    quick: bool,
) -> None:
    """Print the coverage of a target and, unless `quick`, MAP of THN and the baselines."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(benchmark.auxiliary_images))[:count]
    images = target[0].take(rng.permutation(len(target[0]))[: TARGET + QUERIES])
    texts = target[1].take(rng.permutation(len(target[1]))[: TARGET + QUERIES])
    captions = [benchmark.auxiliary_texts.items[row] for row in rows]
    features = text_features(None).fit(captions, texts.items[:TARGET])
    x, y = images.features, features.transform(texts.items)
    assert x is not None
    assert benchmark.auxiliary_images.features is not None
    training = TrainingSet(
        benchmark.auxiliary_images.features[rows], features.transform(captions),
        row_pairs(len(rows)), x[:TARGET], y[:TARGET],
    )  # fmt: skip
    coverage = measure_coverage(training, None, None)
    values = [coverage[part]["coverage"] for part in ("images", "texts")]
    line = f"{name}, seed {seed}: coverage {values}"
    if not quick and images.labels is not None and texts.labels is not None:
        classes = sorted(set().union(*images.labels) & set().union(*texts.labels))
        image_labels, text_labels = (
            label_matrix_for(part, classes).astype(int) for part in (images, texts)
        )
        related = image_labels @ text_labels.T > 0
        thn = make_hasher("THN").fit(training)
        tables = {"THN": -thn.encode_images(x).hamming(thn.encode_texts(y)).astype(float)}
        for baseline in (NearestNeighbors, RidgeRegression):
            tables[baseline.name] = baseline().fit(training).score(x, y)
        for method, table in tables.items():
            both = (table, related), (table.T, related.T)
            maps = [DEFINITIONS["all"].score(tie_groups(t, r.astype(float))) for t, r in both]
            line += f", {method} {maps[0]:.3f} / {maps[1]:.3f}"
        line += f", chance {fmean(related.mean(axis=1)):.3f}"
    print(line, flush=True)


def unrelated_target(folder: Path, features: ImageFeatures) -> tuple[Images, Texts]:
    """Return coarse and fine noise images, and the paragraphs of this project's license."""
    rng = np.random.default_rng(0)
    for number in range(150):
        size = (96, 12, 4)[number % 3]
        noise = rng.integers(0, 256, (size, size, 3)).astype(np.uint8)
        Image.fromarray(noise).resize((96, 96), 0).save(folder / f"{number:03}.png")
    vectors, images, _ = extract_readable(features, read_images(folder))
    paragraphs = (Path(__file__).parents[1] / "LICENSE").read_text().split("\n\n")
    texts = [" ".join(part.split()) for part in paragraphs if part.strip()]
    return replace(images, features=vectors), Texts([str(n) for n in range(len(texts))], texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="only measure coverage, without fits")
    options = parser.parse_args()
    features = image_features("efficientnet-lite0")
    benchmark, _ = load_benchmark_features(options.folder, features)
    synthetic, _ = load_benchmark_features(make_synthetic_cached(60), features)
    with TemporaryDirectory() as folder:
        unrelated = unrelated_target(Path(folder), features)
    for seed in range(0 if options.quick else options.seeds):
        compare_text_features(benchmark, options.pairs, seed)
    auxiliary_sets = {"folder": (benchmark, options.pairs), "posters": (synthetic, 700)}
    targets = {
        "folder": (benchmark.images, benchmark.texts),
        "drawings and riddles": (synthetic.images, synthetic.texts),
        "noise and a license": unrelated,
    }
    for seed in range(options.seeds):
        for target_name, target in targets.items():
            for name, (auxiliary, count) in auxiliary_sets.items():
                label = f"{name} for {target_name}"
                compare_coverage(label, auxiliary, target, count, seed, options.quick)


if __name__ == "__main__":
    main()
