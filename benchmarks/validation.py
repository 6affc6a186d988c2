"""Compare numbers that need no labels of the target with the MAP of the target.

    python benchmarks/validation.py labels:FOLDER pairs:FOLDER in-domain:FOLDER \\
        collection:photographs collection:clipart pairs:synthetic --out runs/validation
    python benchmarks/validation.py coverage:FOLDER

FOLDER is a benchmark folder (docs/benchmarks.md) and `synthetic` the set that the package draws;
`labels` and `pairs` say what is learned from. `in-domain` learns from a half of the auxiliary pairs
and searches the other half. `collection` is a folder of third_party.py.

A seed draws up to 1,000 auxiliary and 400 + 400 target items; 400 more are searched as well. Each
configuration is fitted once, without the held-out pairs of the training check, and all numbers are
of that fit. Prints Spearman's rank correlation of each number with MAP, over configurations that
differ in the method, in the text features or in the auxiliary set, and how many points of MAP are
lost by choosing the configuration with the highest number. Both are computed per set and seed.
Then the reliability of the relevance labels: how many results with a label are related.

`coverage` prints the coverage of targets that the auxiliary set does and does not represent.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from common import row_pairs
from PIL import Image
from scipy.stats import spearmanr
from third_party import ThirdPartyCollection, cached_text_features

from transhash.data.benchmark import load_benchmark
from transhash.data.collection import Images, Texts
from transhash.data.feedback import append_auxiliary
from transhash.data.manifest import read_images
from transhash.data.relation import LabelRelation, Relation, Rows
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.evaluation import DEFINITIONS
from transhash.evaluation.scores import tie_groups
from transhash.experiments import make_synthetic_cached
from transhash.features.concepts import ImageStatistics, load_concepts, require_class_weights
from transhash.features.images import ImageFeatures, image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import text_features
from transhash.hashers.base import Hasher, Scorer
from transhash.hashers.methods import make_method
from transhash.hashers.transductive import with_concept_settings
from transhash.progress import progress_bar
from transhash.training.calibration import RelevanceLabel, relevance_label
from transhash.training.split_data import label_matrix_for
from transhash.training.validation import (
    ValidationSplit,
    measure_coverage,
    score_at_k,
    score_validation,
    split_validation,
)

_PAIRS, _TARGET, _SEARCHED = 1000, 400, 800
_FEATURES = image_features("efficientnet-lite0")
_Table = npt.NDArray[np.float64]  # (images, texts)
_Labels = npt.NDArray[np.bool_]
MINILM = "all-MiniLM-L6-v2"

GROUPS: dict[str, list[tuple[str, str, str]]] = {  # method, text features, auxiliary set
    "methods": [
        (method, "words", "captions")
        for method in ("THN", "CCA+target", "CVH", "QCH", "kNN", "ridge")
    ],
    "text features": [("CCA+target", name, "captions") for name in ("words", MINILM)],
    "auxiliary sets": [
        ("CCA+target", "words", source) for source in ("captions", "foreign", "both", "concepts")
    ],
    "features and sets": [
        ("CCA+target", name, source)
        for name, source in product(("words", MINILM), ("captions", "both", "concepts"))
    ],
}
# Whose relevance labels are compared with the truth.
LABELED: list[tuple[str, str, str]] = [
    ("THN", "words", "captions"),
    ("THN", MINILM, "captions"),
    ("THN", MINILM, "concepts"),
]


@dataclass(frozen=True)
class DataSet:
    """Auxiliary and target items; auxiliary labels only if they are learned from."""

    name: str
    images: Images
    captions: Sequence[str]
    labels: _Labels | None
    target_images: Images
    target_image_labels: _Labels
    target_texts: Sequence[str]
    target_text_labels: _Labels

    @classmethod
    def read(cls, name: str) -> DataSet:
        """Read a set without its image features, of which few are used."""
        kind, _, path = name.partition(":")
        if kind == "collection":
            it = ThirdPartyCollection.read(Path(path), None)
            return cls(
                name, it.auxiliary_images, it.auxiliary_texts.items, None,
                it.images, it.image_labels, it.texts.items, it.text_labels,
            )  # fmt: skip
        benchmark = load_benchmark(make_synthetic_cached(60) if path == "synthetic" else Path(path))
        images, texts, classes = (
            benchmark.auxiliary_images, benchmark.auxiliary_texts, benchmark.classes
        )  # fmt: skip
        labels = label_matrix_for(images, classes)
        if kind == "in-domain":
            rows = np.random.default_rng(0).permutation(len(images))
            own, other = np.array_split(rows, 2)
            return cls(
                name, images.take(own), texts.take(own).items, None, images.take(other),
                labels[other], texts.take(other).items, labels[other],
            )  # fmt: skip
        return cls(
            name, images, texts.items, labels if kind == "labels" else None,
            benchmark.images, label_matrix_for(benchmark.images, classes),
            benchmark.texts.items, label_matrix_for(benchmark.texts, classes),
        )  # fmt: skip

    def draw(self, seed: int) -> DataSet:
        """Return the items of a seed; the first 400 of each modality are trained on."""
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(self.captions))[:_PAIRS]
        images = rng.permutation(len(self.target_images))[:_SEARCHED]
        texts = rng.permutation(len(self.target_texts))[:_SEARCHED]
        return DataSet(
            self.name, _extract(self.images, rows), [self.captions[row] for row in rows],
            None if self.labels is None else self.labels[rows],
            _extract(self.target_images, images), self.target_image_labels[images],
            [self.target_texts[row] for row in texts], self.target_text_labels[texts],
        )  # fmt: skip

    def taught_by(self, other: DataSet) -> DataSet:
        return replace(self, images=other.images, captions=other.captions, labels=None)

    @property
    def relation(self) -> Relation:
        if self.labels is None:
            return row_pairs(len(self.captions))
        return LabelRelation(self.labels, self.labels)


def _extract(images: Images, rows: Rows) -> Images:
    features, readable, problems = extract_readable(_FEATURES, images.take(rows))
    if problems:
        raise SystemExit(f"{len(problems)} images cannot be read. Replace them.")
    return replace(readable, features=features)


def features_of(images: Images) -> Features:
    assert images.features is not None
    return images.features


class Scores(NamedTuple):
    """Scores of (images, texts), by the domains of both."""

    target: _Table
    held_out: _Table
    from_held_out: _Table  # held-out images and target texts
    to_held_out: _Table  # target images and held-out texts


@dataclass(frozen=True)
class Prepared:
    """Features and splits of one choice of text features and auxiliary set."""

    training: TrainingSet  # with captions, or concepts where there are none
    split: ValidationSplit
    rest: TrainingSet
    texts: Features  # of all target texts
    uses_concepts: bool
    coverage: dict[str, Any]

    @classmethod
    def from_data(cls, data: DataSet, text_name: str, source: str, seed: int) -> Prepared:
        concepts = load_concepts()
        captions = [] if source == "concepts" else data.captions
        corpora = [captions, concepts.texts if source in ("concepts", "both") else []]
        target = data.target_texts[:_TARGET]
        features = cached_text_features(text_name)
        features.fit(*[corpus for corpus in (*corpora, target) if corpus])
        texts, x = features.transform(data.target_texts), features_of(data.target_images)[:_TARGET]
        pairs = None
        if corpora[1]:
            weights = require_class_weights(_FEATURES, concepts)
            statistics = ImageStatistics.from_features(x)
            pairs = concepts.pairs(weights, statistics, features.transform(concepts.texts))
        if captions:
            own = AuxiliarySet(
                features_of(data.images), features.transform(captions), data.relation
            )
        else:
            assert pairs is not None
            own, pairs = pairs, None
        training = TrainingSet(own.images, own.texts, own.relation, x, texts[:_TARGET])
        split = split_validation(training, seed)
        whole, rest = training, split.rest
        if pairs is not None:
            whole, rest = append_auxiliary(whole, pairs), append_auxiliary(rest, pairs)
        coverage = measure_coverage(whole, [*captions, *corpora[1]], target)
        return cls(training, split, rest, texts, bool(corpora[1]), coverage)


def measure(data: DataSet, prepared: Prepared, method_name: str, seed: int) -> dict[str, Any]:
    """Fit one configuration; return MAP, the numbers without labels, and distances."""
    training, split, texts = prepared.training, prepared.split, prepared.texts
    method = make_method(method_name, bits=64, seed=seed)
    if prepared.uses_concepts:
        method = with_concept_settings(method)
    method.fit(prepared.rest)
    table = _scorer(method, split.held_out)
    scores = table(features_of(data.target_images), texts)
    related = data.target_image_labels.astype(int) @ data.target_text_labels.T.astype(int) > 0
    both = (scores.target, related), (scores.target.T, related.T)
    seen = table(features_of(data.target_images)[:_TARGET], texts[:_TARGET])
    maps = [DEFINITIONS["all"].score(tie_groups(t, r.astype(float))) for t, r in both]
    coverage = prepared.coverage
    result: dict[str, Any] = {
        "map": maps,
        "chance": float(related.mean()),
        "numbers": {
            "training check": _training_check(split, method, scores),
            "coverage": fmean(coverage[name]["coverage"] or 0 for name in ("images", "texts")),
            "coverage of images": coverage["images"]["coverage"] or 0,
            "coverage of texts": coverage["texts"]["coverage"] or 0,
            "known words": coverage["words"]["weighted"],
            **_label_free(seen, split, training),
        },
    }
    if isinstance(method, Hasher):
        result["distances"] = _distances(method, split, training, scores.target, related)
    return result


def _scorer(
    method: Hasher | Scorer, held_out: AuxiliarySet
) -> Callable[[Features, Features], Scores]:
    if isinstance(method, Scorer):
        scorer = method

        def score(images: Features, texts: Features) -> Scores:
            own = held_out.images, held_out.texts
            pairs = (images, texts), own, (own[0], texts), (images, own[1])
            return Scores(*[np.round(scorer.score(*pair).astype(float), 9) for pair in pairs])

        return score
    hasher = method

    def compare(images: Features, texts: Features) -> Scores:
        x, y = _signs(hasher.project_images(images)), _signs(hasher.project_texts(texts))
        own = [_signs(z) for z in hasher.project_auxiliary(held_out.images, held_out.texts)]
        return Scores(x @ y.T, own[0] @ own[1].T, own[0] @ y.T, x @ own[1].T)

    return compare


def _signs(projections: npt.NDArray[Any]) -> _Table:
    return np.where(projections > 0, 1.0, -1.0)


def _training_check(split: ValidationSplit, method: Hasher | Scorer, scores: Scores) -> float:
    if isinstance(method, Hasher):
        values = score_validation(split, method)
        return fmean(values[name]["method"] for name in ("image_to_text", "text_to_image"))
    related = _related(split.held_out)
    k = 10 if split.has_classes else min(10, max(1, len(related) // 20))
    both = (scores.held_out, related), (scores.held_out.T, related.T)
    return fmean(float(score_at_k(t, r, k, split.has_classes).mean()) for t, r in both)


def _related(held_out: AuxiliarySet) -> _Labels:
    n, m = held_out.relation.shape
    return np.asarray(held_out.relation.block(np.arange(n), np.arange(m))[0] > 0)


def _match(table: _Table) -> _Table:
    """Return probabilities over the columns: a softmax of twice the standardized scores."""
    z = (table - table.mean(axis=1, keepdims=True)) / max(float(table.std()), 1e-9)
    odds = np.exp(2 * (z - z.max(axis=1, keepdims=True)))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _label_free(scores: Scores, split: ValidationSplit, training: TrainingSet) -> dict[str, float]:
    """Return numbers of the scores of target items, which any method has."""
    forward, back = _match(scores.target), _match(scores.target.T)
    assert training.target_images is not None
    assert training.target_texts is not None
    there = _match(scores.from_held_out) @ back @ _match(scores.to_held_out)
    related = _related(split.held_out)
    k = 10 if split.has_classes else min(10, max(1, len(related) // 20))
    neighbors = [
        _neighbor_correlation(scores.target, training.target_images),
        _neighbor_correlation(scores.target.T, training.target_texts),
    ]
    return {
        "agreement": float((forward * back.T).sum(axis=1).mean() * len(back)),
        "information": fmean(_entropy(p.mean(axis=0)) - _entropy(p) for p in (forward, back)),
        "round trip": float(score_at_k(there, related, k, split.has_classes).mean()),
        "neighbors": fmean(neighbors),
        "variety": fmean(_variety(table) for table in (scores.target, scores.target.T)),
    }


def _entropy(probabilities: _Table) -> float:
    logs = np.log(np.maximum(probabilities, 1e-12))
    return float(-(probabilities * logs).sum(axis=-1).mean())


def _neighbor_correlation(table: _Table, features: Features) -> float:
    """Return how similar the scores of neighbors are: an item and the ten nearest by features."""
    rows = features - features.mean(axis=0)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    cosine = rows @ rows.T
    np.fill_diagonal(cosine, -np.inf)
    nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :10]
    z = table - table.mean(axis=1, keepdims=True)
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-9)
    similar = z @ z.T
    n = len(z)
    random = (similar.sum() - n) / (n * (n - 1))
    return float(np.take_along_axis(similar, nearest, 1).mean()) - float(random)


def _variety(table: _Table) -> float:
    """Return the share of items that are among the ten best of any query."""
    ties = np.random.default_rng(0).random(table.shape) * 1e-6
    best = np.argsort(-(table + ties), axis=1)[:, :10]
    return float(len(np.unique(best)) / table.shape[1])


def _distances(
    hasher: Hasher, split: ValidationSplit, training: TrainingSet, table: _Table, related: _Labels
) -> dict[str, Any]:
    """Return what the relevance labels follow from, and what they are compared with."""
    bits = hasher.project_images(split.held_out.images[:1]).shape[1]
    curve = score_validation(split, hasher)["calibration"]
    counts: dict[str, Any] = {"bits": bits, "curve": curve}
    x, y = hasher.project_auxiliary(split.held_out.images, split.held_out.texts)
    own, own_related = (bits - _signs(x) @ _signs(y).T) / 2, _related(split.held_out)
    counts["has_classes"] = split.has_classes
    for name, values in (("related", own[own_related]), ("others", own[~own_related])):
        counts[name] = np.bincount(values.astype(int), minlength=bits + 1).tolist()
    distances = ((bits - table) / 2).astype(int)
    seen = distances[:_TARGET, :_TARGET]
    counts["target"] = np.bincount(seen.ravel(), minlength=bits + 1).tolist()
    ties = np.random.default_rng(0).random(table.shape)
    for name, d, r in (("i2t", distances, related), ("t2i", distances.T, related.T)):
        best = np.argsort(d + ties.reshape(d.shape) * 0.5, axis=1)[:, :10]
        d, r = np.take_along_axis(d, best, 1), np.take_along_axis(r, best, 1)
        counts[f"{name} results"] = np.bincount(d.ravel(), minlength=bits + 1).tolist()
        counts[f"{name} related"] = np.bincount(d[r], minlength=bits + 1).tolist()
    return counts


@cache
def draw_set(name: str, names: tuple[str, ...], seed: int) -> tuple[DataSet, DataSet]:
    """Return the items of a seed, and the same with the captions of the next other set."""
    number = names.index(name)
    others = map(DataSet.read, (*names[number + 1 :], *names[:number]))
    whole = DataSet.read(name)
    other = next(it for it in others if it.captions[0] not in whole.captions)
    data = whole.draw(seed)
    return data, data.taught_by(other.draw(seed))


def measure_methods(
    name: str, names: tuple[str, ...], seed: int, text_name: str, source: str, methods: list[str]
) -> dict[str, Any]:
    """Measure methods that learn from the same features."""
    own, foreign = draw_set(name, names, seed)
    data = foreign if source == "foreign" else own
    prepared = Prepared.from_data(data, text_name, source, seed)
    return {
        _key(name, seed, method, text_name, source): measure(data, prepared, method, seed)
        for method in methods
    }


def _key(name: str, seed: int, *configuration: str) -> str:
    return "|".join([name, str(seed), *configuration])


def run(names: Sequence[str], seeds: Sequence[int], path: Path, jobs: int) -> dict[str, Any]:
    """Measure every configuration; an interrupted run resumes from the file."""
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    groups: dict[tuple[str, str], list[str]] = {}
    configurations = [c for group in (*GROUPS.values(), LABELED) for c in group]
    for method, text_name, source in dict.fromkeys(configurations):
        groups.setdefault((text_name, source), []).append(method)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn) as pool:
        tasks = []
        for seed, name, (inputs, methods) in product(seeds, names, groups.items()):
            new = [method for method in methods if _key(name, seed, method, *inputs) not in results]
            if new:
                task = pool.submit(measure_methods, name, tuple(names), seed, *inputs, new)
                tasks.append(task)
        for done in progress_bar(as_completed(tasks), "features and sets", total=len(tasks)):
            results |= done.result()
            path.write_text(json.dumps(results))
    return results


def print_correlations(results: dict[str, Any], names: Sequence[str], seeds: Sequence[int]) -> None:
    numbers = next(iter(results.values()))["numbers"]
    print(f"| number | {' | '.join(GROUPS)} |\n|{'---|' * (len(GROUPS) + 1)}")
    for number in numbers:
        cells = []
        for group in GROUPS.values():
            by_set, losses = [], []
            for name in names:
                values = []
                for seed in seeds:
                    rows = [results[_key(name, seed, *c)] for c in group]
                    maps = [fmean(row["map"]) for row in rows]
                    criterion = [row["numbers"][number] for row in rows]
                    if np.ptp(criterion) > 1e-12:
                        values.append(float(spearmanr(criterion, maps).statistic))
                        losses.append(100 * (max(maps) - maps[int(np.argmax(criterion))]))
                if values:
                    by_set.append(fmean(values))
            deviation = np.std(by_set, ddof=1) if len(by_set) > 1 else 0.0
            cells.append(
                f"{fmean(by_set):.2f} ± {deviation:.2f}, {fmean(losses):.1f}" if by_set else "–"
            )
        print(f"| {number} | {' | '.join(cells)} |")


def print_reliability(results: dict[str, Any], names: Sequence[str], seeds: Sequence[int]) -> None:
    """Print how many of the ten best results have a label, and how many of these are related."""
    labels = get_args(RelevanceLabel)
    print(f"\n| results of THN | {' | '.join(labels)} |\n{'|---' * (len(labels) + 1)}|")
    for (method, text_name, source), name in product(LABELED, names):
        counts = {label: np.zeros(3) for label in labels}  # results, stated and actually related
        for seed in seeds:
            row = results[_key(name, seed, method, text_name, source)]["distances"]
            for distance, probability in enumerate(row["curve"] or ()):
                for direction in ("i2t", "t2i"):
                    total = row[f"{direction} results"][distance]
                    related = row[f"{direction} related"][distance]
                    counts[relevance_label(probability)] += total, total * probability, related
        whole = max(1, sum(total for total, _, _ in counts.values()))
        cells = [
            f"{total / whole:.0%}: {stated / total:.2f} stated, {related / total:.2f} measured"
            if total >= 20
            else "–"
            for total, stated, related in counts.values()
        ]
        print(f"| {name}, {text_name}, {source} | {' | '.join(cells)} |")


def compare_coverage(folder: Path, seeds: Sequence[int]) -> None:
    """Print the coverage of targets by two auxiliary sets."""
    synthetic = DataSet.read("pairs:synthetic")
    auxiliary_sets = {"folder": DataSet.read(f"pairs:{folder}"), "posters": synthetic}
    sizes = {"folder": _PAIRS, "posters": 700}
    targets: dict[str, tuple[Images, Sequence[str]]] = {
        name: (data.target_images, data.target_texts)
        for name, data in (("folder", auxiliary_sets["folder"]), ("drawings", synthetic))
    }
    with TemporaryDirectory() as temporary:
        noise, paragraphs = unrelated_target(Path(temporary), _FEATURES)
    targets["noise and a license"] = noise, paragraphs.items
    for target, (images, texts) in targets.items():
        for name, data in auxiliary_sets.items():
            values: dict[str, list[float]] = {"images": [], "texts": []}
            for seed in seeds:
                rng = np.random.default_rng(seed)
                rows = rng.permutation(len(data.captions))[: sizes[name]]
                x = _extract(images, rng.permutation(len(images))[:500])
                own = [texts[row] for row in rng.permutation(len(texts))[:500]]
                captions = [data.captions[row] for row in rows]
                features = text_features(None).fit(captions, own)
                training = TrainingSet(
                    features_of(_extract(data.images, rows)), features.transform(captions),
                    row_pairs(len(rows)), features_of(x), features.transform(own),
                )  # fmt: skip
                for part, coverage in measure_coverage(training, None, None).items():
                    values[part].append(coverage["coverage"])
            cells = " | ".join(
                f"{np.mean(v):.2f} ± {np.std(v, ddof=1):.2f}" for v in values.values()
            )
            print(f"| {name} for {target} | {cells} |", flush=True)


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
    parser.add_argument("sets", nargs="+", help="KIND:FOLDER, see above")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/validation"))
    options = parser.parse_args()
    for name in [name for name in options.sets if name.startswith("coverage:")]:
        compare_coverage(Path(name.partition(":")[2]), options.seeds)
        options.sets.remove(name)
    if options.sets:
        options.out.mkdir(parents=True, exist_ok=True)
        results = run(options.sets, options.seeds, options.out / "results.json", options.jobs)
        print_correlations(results, options.sets, options.seeds)
        print_reliability(results, options.sets, options.seeds)


if __name__ == "__main__":
    main()
