"""Compare learning from labels or pairs, from the built-in concepts, and from both.

    python benchmarks/concepts.py FOLDER --methods THN kNN ridge --text-features words
    python benchmarks/concepts.py FOLDER --fit --text-features words all-MiniLM-L6-v2
    python benchmarks/concepts.py FOLDER COLLECTIONS --rule --text-features words all-MiniLM-L6-v2
    python benchmarks/concepts.py FOLDER --sources concepts --target-images 300 --target-texts 1000

FOLDER is a benchmark folder (docs/benchmarks.md), COLLECTIONS are folders of third_party.py. Pairs
are the auxiliary images of a split with their captions. MAP of the target, image -> text / text ->
image, mean and deviation over splits, and chance. Nothing is chosen on these numbers. `--fit` calls
`transhash.fit` with the pairs and the target items of a split, without and with concepts, and says
in how many splits it used them. `--rule` prints the two coverages that `transhash.fit` compares,
and where it leaves concepts out. `--target-images` and `--target-texts` let a method learn from a
random part of the target items, as `transhash open` does; all of them are searched.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import chances, maps, mean_cell, row_pairs
from third_party import CollectionSplit, ThirdPartyCollection, training_set

import transhash
from transhash.data.benchmark import Benchmark
from transhash.data.feedback import UnionRelation, append_auxiliary
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.evaluation import Scores
from transhash.features.concepts import ImageStatistics, load_concepts, require_class_weights
from transhash.features.images import ImageFeatures, image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import text_features
from transhash.hashers.methods import make_method
from transhash.hashers.transductive import with_concept_settings
from transhash.progress import progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.storage import read_json
from transhash.training.split_data import TestSet, build_test_set, load_benchmark_features
from transhash.training.validation import covers_better, measure_coverage

SOURCES = ("labels", "pairs", "concepts", "labels and concepts", "pairs and concepts")


def read_split(
    benchmark: Benchmark,
    seed: int,
    source: str,
    text_name: str,
    features: ImageFeatures,
    image_count: int | None = None,
    text_count: int | None = None,
) -> tuple[TrainingSet, TestSet]:
    """Return the training set of a source, with text features fitted on its texts."""
    rows, concepts = benchmark.split(seed), load_concepts()
    rng = np.random.default_rng(seed)
    target_image_rows = rng.permutation(rows.target_images)[:image_count]
    target_text_rows = rng.permutation(rows.target_texts)[:text_count]
    has_concepts = source.endswith("concepts")
    columns = rows.auxiliary_images if source.startswith("pairs") else rows.auxiliary_texts
    auxiliary = benchmark.auxiliary(rows.auxiliary_images, columns)
    captions = [] if source == "concepts" else auxiliary.texts.items
    target_texts = benchmark.texts.take(target_text_rows).items
    texts = text_features(text_name)
    corpora = [captions, concepts.texts if has_concepts else [], target_texts]
    texts.fit(*[corpus for corpus in corpora if corpus])
    target = extract_readable(None, benchmark.images.take(target_image_rows))[0]
    target_y, test = texts.transform(target_texts), build_test_set(benchmark, rows, texts)
    pairs = None
    if has_concepts:
        weights = require_class_weights(features, concepts)
        statistics = ImageStatistics.from_features(target)
        pairs = concepts.pairs(weights, statistics, texts.transform(concepts.texts))
        if source == "concepts":
            training = TrainingSet(pairs.images, pairs.texts, pairs.relation, target, target_y)
            return training, test
    relation = row_pairs(len(columns)) if source.startswith("pairs") else auxiliary.relation
    training = TrainingSet(
        extract_readable(None, auxiliary.images)[0], texts.transform(captions), relation,
        target, target_y,
    )  # fmt: skip
    return training if pairs is None else append_auxiliary(training, pairs), test


def fit_as_users_do(
    benchmark: Benchmark, seed: int, text_name: str, bits: int, concepts: bool
) -> tuple[Mapping[str, Scores], bool]:
    """Return the scores of `transhash.fit` on pairs, and whether it learned from concepts."""
    rows = benchmark.split(seed)
    images = benchmark.auxiliary_images.take(rows.auxiliary_images).items
    captions = benchmark.auxiliary_texts.take(rows.auxiliary_images).items
    with transhash.fit(
        list(zip(images, captions, strict=True)),
        list(benchmark.images.take(rows.target_images).items),
        benchmark.texts.take(rows.target_texts).items,
        concepts=concepts, bits=bits, seed=seed, text_features=text_name, progress=False,
    ) as engine:  # fmt: skip
        encoder = engine.encoder
        assert encoder.text_features is not None
        test = build_test_set(benchmark, rows, encoder.text_features)
        used = read_json(engine.run / "report.json")["auxiliary"]["concepts"] > 0
        return score_directions(build_directions(encoder.hasher, test)), used


def compare_fits(benchmark: Benchmark, options: argparse.Namespace) -> None:
    print("| text features | captions | captions and concepts | difference | concepts used |")
    print("|---|---|---|---|---|")
    for text_name in options.text_features:
        by_source: list[list[list[float]]] = [[], []]
        count = 0
        for seed in options.splits:
            for rows, concepts in zip(by_source, (False, True)):
                scores, used = fit_as_users_do(benchmark, seed, text_name, options.bits, concepts)
                rows.append(maps(scores))
                count += used
        difference = np.subtract(by_source[1], by_source[0]).tolist()
        cells = " | ".join(mean_cell(rows) for rows in (*by_source, difference))
        splits = f"{count} of {len(options.splits)} splits"
        print(f"| {text_name} | {cells} | {splits} |", flush=True)


def separate(union: TrainingSet) -> tuple[TrainingSet, AuxiliarySet]:
    """Return the captions and the concepts of a training set that has both."""
    relation = union.relation
    assert isinstance(relation, UnionRelation)
    n, m = relation.first.shape
    captions = replace(
        union, images=union.images[:n], texts=union.texts[:m], relation=relation.first
    )
    return captions, AuxiliarySet(union.images[n:], union.texts[m:], relation.appended)


def print_rule(options: argparse.Namespace, features: ImageFeatures) -> None:
    """Print the coverage of target images and texts by captions and by concepts."""
    print(
        "| set | text features | by captions | by concepts | concepts used |\n|---|---|---|---|---|"
    )
    for folder in options.folders:
        is_collection = (folder / "auxiliary.csv").exists()
        collection = ThirdPartyCollection.read(folder, features) if is_collection else None
        benchmark = None if collection else load_benchmark_features(folder, features)[0]
        for text_name in options.text_features:
            rows: list[list[list[float]]] = [[], []]
            used = 0
            for seed in options.splits:
                if collection:
                    method = make_method("THN", bits=options.bits)
                    split = CollectionSplit.draw(collection, seed)
                    union, _ = training_set(split, method, text_name, "both")
                else:
                    assert benchmark is not None
                    union, _ = read_split(
                        benchmark, seed, "pairs and concepts", text_name, features
                    )
                captions, concepts = separate(union)
                alone = replace(
                    captions, images=concepts.images, texts=concepts.texts,
                    relation=concepts.relation,
                )  # fmt: skip
                for part, values in zip((captions, alone), rows):
                    coverage = measure_coverage(part, None, None)
                    values.append([coverage[name]["coverage"] for name in ("images", "texts")])
                used += not covers_better(captions, concepts)
            cells = " | ".join(map(mean_cell, rows))
            count = f"{used} of {len(options.splits)} splits"
            print(f"| {folder.name} | {text_name} | {cells} | {count} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    parser.add_argument("--methods", nargs="+", default=["THN", "kNN", "ridge"])
    parser.add_argument("--fit", action="store_true", help="as `transhash.fit` does it")
    parser.add_argument("--rule", action="store_true", help="the coverages it compares")
    parser.add_argument("--text-features", nargs="+", default=["words"])
    parser.add_argument("--image-features", default="efficientnet-lite0")
    parser.add_argument("--target-images", type=int, help="target images learned from: all")
    parser.add_argument("--target-texts", type=int, help="target texts learned from: all")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    features = image_features(options.image_features)
    if options.rule:
        print_rule(options, features)
        return
    [folder] = options.folders
    benchmark, _ = load_benchmark_features(folder, features, progress_bar)
    if options.fit:
        compare_fits(benchmark, options)
        return
    [text_name] = options.text_features
    chance = []
    print(
        f"| learned from | {' | '.join(options.methods)} |\n{'|---' * (len(options.methods) + 1)}|"
    )
    for source in options.sources:
        results: dict[str, list[list[float]]] = {name: [] for name in options.methods}
        for seed in options.splits:
            training, test = read_split(
                benchmark, seed, source, text_name, features,
                options.target_images, options.target_texts,
            )  # fmt: skip
            for name, rows in results.items():
                method = make_method(name, bits=options.bits, seed=seed)
                if source.endswith("concepts"):
                    method = with_concept_settings(method)
                method.fit(training)
                scores = score_directions(build_directions(method, test))
                rows.append(maps(scores))
                chance.append(chances(scores))
        print(f"| {source} | {' | '.join(map(mean_cell, results.values()))} |", flush=True)
    print("chance " + " / ".join(f"{value:.3f}" for value in np.mean(chance, axis=0)))


if __name__ == "__main__":
    main()
