"""Compare methods on a third-party collection.

    python benchmarks/third_party_photographs.py FOLDER          # or _clipart.py, _emoji.py
    python benchmarks/third_party.py FOLDER --text-features words all-MiniLM-L6-v2/
    python benchmarks/third_party.py FOLDER --queries benchmarks/third_party_queries.csv
    python benchmarks/third_party.py FOLDER --methods THN THN@THN --fine-tuning blocks=6
    python benchmarks/third_party.py FOLDER --methods THN --search codes keywords hybrid
    python benchmarks/third_party.py FOLDER --auxiliary captions concepts both --without-overlap
    python benchmarks/third_party.py FOLDER --methods THN --bits 128 --chance

A seed draws 80% of the auxiliary pairs for training, and three quarters of the images and of the
texts as databases, which transductive methods also train on, unlabeled. The other items are
queries. Labels are used for scoring only. Prints MAP of the full ranking and precision@10, ties in
expectation, mean and deviation over seeds, with two baselines: `random`, and `keyword`, tf-idf of
texts against image file names. Then differences in points of MAP with 95% intervals, corrected for
overlapping splits. METHOD@TEACHER uses a backbone that was fine-tuned on the training pairs and the
database images.

`--search` ranks images by codes, by keywords (names of the images as the product indexes them) or
by both, with weighted ranking. The names of the photographs are left out: their classes were read
off them. Image queries have no words and are ranked by codes.

`--auxiliary` names what methods learn from: the captions of the collection, the built-in concepts
of the image features, or both. With concepts, `ConSE` is a baseline without training: the mean text
vector of the classes that the classifier sees in an image. `--without-overlap` drops target texts
that contain the definition of a concept.

`--queries` trains on all pairs and all target items, searches images with the typed queries, and
prints the number of correct results in the top 10, mean over seeds.

`--chance` compares queries whose nearest item is as far as the nearest of as many random codes,
which search says, with the others: share of such queries, and precision@10 of both.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from common import DIRECTIONS, interval_cell, mean_cells
from fine_tune import parse_settings
from sklearn.feature_extraction.text import TfidfVectorizer

from transhash.codes import Codes, chance_distance
from transhash.data.collection import AuxiliaryCollection, Images, Texts, label_matrix
from transhash.data.feedback import append_auxiliary
from transhash.data.manifest import (
    manifest_images,
    manifest_texts,
    read_images,
    read_manifest,
    read_texts,
)
from transhash.data.training_set import TrainingSet
from transhash.evaluation import DistanceHistogram, Scores
from transhash.experiments.plan import MethodSpec
from transhash.features.backbone import FineTunedFeatures
from transhash.features.concepts import (
    ImageStatistics,
    load_concepts,
    require_class_weights,
)
from transhash.features.decode import Pixels
from transhash.features.efficientnet import lite_classifier
from transhash.features.embedders import TextEmbedder, embed_with_cache
from transhash.features.images import ImageFeatures, image_features, unit_rows
from transhash.features.stream import extract_readable
from transhash.features.texts import CombinedTextFeatures, TextFeatures, text_features
from transhash.hashers.base import Hasher, Scorer
from transhash.hashers.fine_tuning import fine_tune
from transhash.hashers.fine_tuning.batches import decode_all
from transhash.hashers.methods import make_method
from transhash.hashers.transductive import with_concept_settings
from transhash.index.weighted import RankingMode, query_weights
from transhash.progress import Track, no_progress, progress_bar
from transhash.scoring.directions import ScoredDirection, TieGroups, build_directions
from transhash.search.catalog import Catalog, NewItem
from transhash.search.keywords import SearchMode, query_words
from transhash.search.retrieval import fuse, rank_codes
from transhash.training.fine_tune import FineTuningRequest, require_backbone
from transhash.training.split_data import LabeledFeatures, LabelMatrix, TestSet

NAMES_ARE_LABELS = {"photographs"}  # collections whose classes were read off file names
TEST_RATIO = 1 / 3  # queries per other target item, see CollectionSplit.draw
Rows = npt.NDArray[np.int64]
Rankings = Mapping[str, TieGroups]  # by direction
Ranker = Callable[["CollectionSplit", int], Rankings]  # split and seed


@dataclass(frozen=True)
class ThirdPartyCollection:
    """Auxiliary pairs, and target images and texts with labels; image features are computed."""

    auxiliary_images: Images
    auxiliary_texts: Texts
    images: Images
    texts: Texts
    classes: list[str]
    image_labels: LabelMatrix
    text_labels: LabelMatrix
    image_features: ImageFeatures | None

    @classmethod
    def read(cls, folder: Path, features: ImageFeatures | None) -> ThirdPartyCollection:
        """Read a collection; without `features` the images have none."""
        auxiliary = read_manifest(folder / "auxiliary.csv")
        images, texts = read_images(folder / "images.csv"), read_texts(folder / "texts.csv")
        with (folder / "labels.csv").open(encoding="utf-8", newline="") as rows:
            label = {row["item"]: row["label"] for row in csv.DictReader(rows)}
        classes = sorted(set(label.values()))

        def labels(items: Images | Texts) -> LabelMatrix:
            return label_matrix([{label[name]} for name in items.ids], classes)

        def extract(images: Images) -> Images:
            if features is None:
                return images
            rows, readable, problems = extract_readable(features, images, progress_bar)
            if problems:
                raise SystemExit(f"{len(problems)} images cannot be read. Create the folder again.")
            return replace(readable, features=rows)

        return cls(
            extract(manifest_images(auxiliary)), manifest_texts(auxiliary), extract(images), texts,
            classes, labels(images), labels(texts), features,
        )  # fmt: skip

    def with_features(
        self, features: FineTunedFeatures, pixels: Sequence[Pixels]
    ) -> ThirdPartyCollection:
        auxiliary, target = map(features.extract, pixels)
        return replace(
            self,
            auxiliary_images=replace(self.auxiliary_images, features=auxiliary),
            images=replace(self.images, features=target),
            image_features=features,
        )


def drop_overlap(collection: ThirdPartyCollection) -> ThirdPartyCollection:
    """Drop the target texts that contain the definition of a built-in concept."""
    definitions = [text.lower() for text in load_concepts().definitions if len(text) > 20]
    rows = [
        row
        for row, text in enumerate(collection.texts.items)
        if not any(definition in text.lower() for definition in definitions)
    ]
    texts, labels = collection.texts.take(rows), collection.text_labels[rows]
    return replace(collection, texts=texts, text_labels=labels)


@dataclass(frozen=True)
class CollectionSplit:
    """Rows of a collection for training, databases and queries, and query texts."""

    collection: ThirdPartyCollection
    pairs: Rows
    database_images: Rows
    database_texts: Rows
    query_images: Rows
    query_texts: Sequence[str]
    query_text_labels: LabelMatrix

    @classmethod
    def draw(cls, collection: ThirdPartyCollection, seed: int) -> CollectionSplit:
        rng = np.random.default_rng(seed)
        count = len(collection.auxiliary_texts)
        pairs = rng.permutation(count)[: round(0.8 * count)]
        images = rng.permutation(len(collection.images))
        texts = rng.permutation(len(collection.texts))
        last_image, last_text = round(0.75 * len(images)), round(0.75 * len(texts))
        return cls(
            collection, np.sort(pairs), np.sort(images[:last_image]), np.sort(texts[:last_text]),
            np.sort(images[last_image:]), collection.texts.take(texts[last_text:]).items,
            collection.text_labels[texts[last_text:]],
        )  # fmt: skip

    @classmethod
    def with_queries(
        cls, collection: ThirdPartyCollection, queries: Sequence[str], labels: LabelMatrix
    ) -> CollectionSplit:
        """Use all rows for training and databases."""
        pairs, images = (
            np.arange(len(collection.auxiliary_texts)),
            np.arange(len(collection.images)),
        )
        texts = np.arange(len(collection.texts))
        return cls(collection, pairs, images, texts, images[:1], queries, labels)

    def image_vectors(self, rows: Rows) -> npt.NDArray[Any]:
        assert self.collection.images.features is not None
        return np.asarray(self.collection.images.features[rows])

    def test_set(self, query_texts: npt.NDArray[Any], texts: npt.NDArray[Any]) -> TestSet:
        def images(rows: Rows) -> LabeledFeatures:
            return LabeledFeatures(self.image_vectors(rows), self.collection.image_labels[rows])

        return TestSet(
            images(self.query_images),
            LabeledFeatures(query_texts, self.query_text_labels),
            images(self.database_images),
            LabeledFeatures(texts, self.collection.text_labels[self.database_texts]),
        )


class CachedEmbedder:
    """An embedding model that embeds every text once, also those that are not fitted on."""

    def __init__(self, embedder: TextEmbedder) -> None:
        self.embedder, self.name = embedder, embedder.name
        self.cache: dict[str, npt.NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str], track: Track = no_progress) -> npt.NDArray[np.float32]:
        new = list(dict.fromkeys(text for text in texts if text not in self.cache))
        self.cache.update(zip(new, embed_with_cache(self.embedder, new, track) if new else ()))
        return np.array([self.cache[text] for text in texts])

    def cache_key(self) -> None:
        return None


_EMBEDDERS: dict[str, Any] = {}  # by the name of the text features


def cached_text_features(name: str) -> TextFeatures:
    features = text_features(name)
    if isinstance(features, CombinedTextFeatures):
        features.embedder = _EMBEDDERS.setdefault(name, CachedEmbedder(features.embedder))
    return features


def training_set(
    split: CollectionSplit, method: Hasher | Scorer, text_name: str, source: str
) -> tuple[TrainingSet, TextFeatures]:
    """Return the training set that `transhash fit` would use, and fitted text features."""
    collection, concepts = split.collection, load_concepts()
    captions = collection.auxiliary_texts.take(split.pairs) if source != "concepts" else None
    texts = collection.texts.take(split.database_texts).items
    features = cached_text_features(text_name)
    corpora = [captions.items if captions else [], [] if source == "captions" else concepts.texts]
    corpora += [texts] if method.uses_target else []
    features.fit(*[corpus for corpus in corpora if corpus])
    target = split.image_vectors(split.database_images), features.transform(texts)
    pairs = None
    if source != "captions":
        weights = require_class_weights(collection.image_features, concepts)
        statistics = ImageStatistics.from_features(target[0])
        pairs = concepts.pairs(weights, statistics, features.transform(concepts.texts))
    if captions is None:
        assert pairs is not None
        return TrainingSet(pairs.images, pairs.texts, pairs.relation, *target), features
    images = collection.auxiliary_images.take(split.pairs)
    auxiliary = AuxiliaryCollection.from_collections(images, captions)
    assert images.features is not None
    training = TrainingSet(
        images.features, features.transform(captions.items), auxiliary.relation, *target
    )
    return training if pairs is None else append_auxiliary(training, pairs), features


def rank_with_method(
    split: CollectionSplit,
    method: Hasher | Scorer,
    text_name: str,
    ranking: RankingMode,
    source: str,
) -> Rankings:
    training, features = training_set(split, method, text_name, source)
    if source != "captions":
        method = with_concept_settings(method)
    method.fit(training)
    assert training.target_texts is not None
    test = split.test_set(features.transform(split.query_texts), training.target_texts)
    directions: Mapping[str, Any] = (
        build_directions(method, test, ranking)
        if isinstance(method, Hasher)
        else build_directions(method, test)
    )
    return {name: direction.tie_groups() for name, direction in directions.items()}


class FineTunedCollections:
    """The collection with features of fine-tuned backbones; methods share those of a teacher."""

    def __init__(
        self, collection: ThirdPartyCollection, features: ImageFeatures, settings: dict[str, Any]
    ) -> None:
        self.collection, self.features, self.settings = collection, features, settings
        self.cache: dict[tuple[str, str, int, int], ThirdPartyCollection] = {}

    @cached_property
    def pixels(self) -> list[Pixels]:
        size, device = self.features.size, self.features.device
        parts = (self.collection.auxiliary_images, self.collection.images)
        return [decode_all(images.items, size, device, progress_bar) for images in parts]

    def request(self, teacher: str, bits: int, seed: int) -> FineTuningRequest:
        settings = {"seed": seed, **self.settings}
        return FineTuningRequest.from_names(teacher, {"bits": bits, "seed": seed}, settings)

    def apply(
        self, split: CollectionSplit, teacher: str, bits: int, seed: int, text_name: str
    ) -> CollectionSplit:
        """Return the split with features of a backbone fine-tuned on its training items."""
        key = (teacher, text_name, bits, seed)  # a seed has one split
        if key not in self.cache:
            request, (images, target_images) = self.request(teacher, bits, seed), self.pixels
            training, _ = training_set(split, request.teacher, text_name, "captions")
            features = fine_tune(
                require_backbone(self.features), images[split.pairs],
                target_images[split.database_images], training, request.teacher.fit(training),
                request.settings, track=progress_bar,
            )  # fmt: skip
            self.cache[key] = self.collection.with_features(features, self.pixels)
        return replace(split, collection=self.cache[key])


def rank_with_search(
    split: CollectionSplit, method: Hasher, text_name: str, source: str, *, names: bool
) -> dict[SearchMode, Rankings]:
    """Rank images for texts by each search mode of the product, texts for images by codes."""
    training, features = training_set(split, method, text_name, source)
    if source != "captions":
        method = with_concept_settings(method)
    method.fit(training)
    assert training.target_texts is not None
    test = split.test_set(features.transform(split.query_texts), training.target_texts)
    projections = method.project_texts(test.query_texts.features)
    queries, weights = Codes.from_projections(projections), query_weights(projections, "weighted")
    assert weights is not None
    images = method.encode_images(test.database_images.features)
    image_ids = [split.collection.images.ids[row] for row in split.database_images]
    texts = split.collection.texts.take(split.database_texts)
    text_codes = method.encode_texts(test.database_texts.features)
    words: Any = getattr(features, "words", features)
    modes: tuple[SearchMode, ...] = get_args(SearchMode)
    # Items that are not found are tied.
    scores = {mode: np.zeros((len(queries), len(images))) for mode in modes}
    with TemporaryDirectory() as folder, Catalog(Path(folder) / "catalog.sqlite") as catalog:
        stored = catalog.add(
            "images",
            [
                NewItem(name, code.tobytes(), location=name if names else None)
                for name, code in zip(image_ids, images.packed)
            ],
        )
        catalog.add(
            "texts",
            [
                NewItem(name, code.tobytes(), text)
                for name, code, text in zip(texts.ids, text_codes.packed, texts.items)
            ],
        )
        numbers = np.array([item.number for item in stored])
        for i, text in enumerate(split.query_texts):
            query, own = queries[i : i + 1], weights[i : i + 1]
            nearest = rank_codes(query, own, numbers, images.packed)
            rarities = catalog.words.rarities(query_words(text, words.stop_words_))
            width = images.packed.shape[1]
            ranked = catalog.words.rank("images", rarities, width)
            matches = catalog.words.match("images", rarities, width, nearest=nearest.ids[0])
            found: dict[SearchMode, Rows] = {
                "codes": nearest.ids[0],
                "keywords": ranked.numbers,
                "hybrid": fuse(query, own, nearest, matches, len(numbers)).ids[0],
            }
            for mode, ids in found.items():
                scores[mode][i, np.searchsorted(numbers, ids)] = np.arange(len(ids), 0, -1)
    by_codes = build_directions(method, test, "weighted")["image_to_text"]
    no_scores = np.zeros((len(split.query_images), len(texts)))
    return {
        mode: {
            **rank_by_score(split, no_scores, scores[mode]),
            "image_to_text": by_codes.tie_groups(),
        }
        for mode in modes
    }


def score_chance(
    split: CollectionSplit, method: Hasher, text_name: str, source: str
) -> dict[str, list[float]]:
    """Return per direction the share of chance queries, and P@10 of these, others and chance."""
    training, features = training_set(split, method, text_name, source)
    if source != "captions":
        method = with_concept_settings(method)
    method.fit(training)
    assert training.target_texts is not None
    test = split.test_set(features.transform(split.query_texts), training.target_texts)
    results = {}
    for name, direction in build_directions(method, test).items():
        queries, items = direction.queries, direction.database
        is_chance = queries.hamming(items).min(axis=1) >= chance_distance(len(items), items.bits)
        groups = direction.tie_groups()
        blocks = [groups] if isinstance(groups, DistanceHistogram) else groups
        precision = np.concatenate([block.precision_at(10) for block in blocks])
        parts = precision[is_chance], precision[~is_chance]
        means = [float(part.mean()) if len(part) else float("nan") for part in parts]
        results[name] = [
            float(is_chance.mean()), *means, Scores.from_counts(direction.tie_groups()).chance,
        ]  # fmt: skip
    return results


def print_chance(collection: ThirdPartyCollection, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    print("| | chance queries | their P@10 | P@10 of the others | MAP of a random ranking |")
    print("|---|---|---|---|---|")
    for text_name, source, name in product(
        options.text_features, options.auxiliary, options.methods
    ):
        rows: dict[str, list[list[float]]] = {direction: [] for direction in DIRECTIONS}
        for seed in options.seeds:
            split = CollectionSplit.draw(collection, seed)
            method = make_method(name, bits=options.bits, seed=seed)
            if not isinstance(method, Hasher):
                raise SystemExit(f"{name} has no codes. Choose another method.")
            for direction, row in score_chance(split, method, text_name, source).items():
                rows[direction].append(row)
        for direction, values in rows.items():
            label = f"{name}, {Path(text_name).name}, {source}, {direction.replace('_', ' ')}"
            results[label] = values
            print(f"| {label} | {' | '.join(mean_cells(values))} |", flush=True)
    return results


def rank_by_score(
    split: CollectionSplit, image_scores: npt.NDArray[Any], text_scores: npt.NDArray[Any]
) -> Rankings:
    """Rank by scores of query images with texts, and of query texts with images."""
    test = split.test_set(np.zeros(0), np.zeros(0))
    parts = (
        (image_scores, test.query_images, test.database_texts),
        (text_scores, test.query_texts, test.database_images),
    )
    return {
        name: ScoredDirection(scores.__getitem__, queries.labels, database.labels).tie_groups()
        for name, (scores, queries, database) in zip(DIRECTIONS, parts)
    }


def rank_by_conse(split: CollectionSplit, seed: int, *, text_name: str) -> Rankings:
    """Rank by the mean text vector of an image's classes: ConSE (Norouzi et al., 2014).

    Classes are weighted by their probabilities at temperature 2, the 50 most probable only; both
    modalities are centered.
    """
    collection, concepts = split.collection, load_concepts()
    images = collection.image_features
    assert images is not None
    weights, bias = lite_classifier(images.name)
    texts = collection.texts.take(split.database_texts).items
    features = cached_text_features(text_name).fit(class_texts := concepts.texts[:1000], texts)

    def embed_images(rows: Rows) -> npt.NDArray[Any]:
        logits = (split.image_vectors(rows) @ weights.T + bias) / 2.0
        logits -= np.partition(logits, -50, axis=1)[:, -50, None]
        odds = np.where(logits >= 0, np.exp(np.minimum(logits, 80)), 0)
        return np.asarray(odds / odds.sum(axis=1, keepdims=True) @ class_vectors)

    class_vectors = features.transform(class_texts)
    database_x, database_y = embed_images(split.database_images), features.transform(texts)
    means = database_x.mean(axis=0), database_y.mean(axis=0)
    x, y = unit_rows(database_x - means[0]), unit_rows(database_y - means[1])
    query_x = unit_rows(embed_images(split.query_images) - means[0])
    query_y = unit_rows(features.transform(split.query_texts) - means[1])
    return rank_by_score(split, query_x @ y.T, query_y @ x.T)


def rank_randomly(split: CollectionSplit, seed: int) -> Rankings:
    rng = np.random.default_rng(seed)
    return rank_by_score(
        split,
        rng.random((len(split.query_images), len(split.database_texts))),
        rng.random((len(split.query_texts), len(split.database_images))),
    )


def rank_by_keyword(split: CollectionSplit, seed: int) -> Rankings:
    """Rank by tf-idf of texts against file names without their numbers."""

    def names(rows: Rows) -> list[str]:
        stems = [Path(split.collection.images.ids[row]).stem for row in rows]
        return [" ".join(re.findall("[a-z]+", stem.lower())) for stem in stems]

    texts = split.collection.texts.take(split.database_texts).items
    images = names(split.database_images)
    words = TfidfVectorizer(stop_words="english").fit([*images, *texts])
    return rank_by_score(
        split,
        (words.transform(names(split.query_images)) @ words.transform(texts).T).toarray(),
        (words.transform(split.query_texts) @ words.transform(images).T).toarray(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", default=["THN", "kNN", "ridge", "QCH", "CVH"])
    parser.add_argument("--text-features", nargs="+", default=["words"])
    parser.add_argument("--image-features", default="efficientnet-lite0")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--ranking", choices=get_args(RankingMode), default="hamming")
    parser.add_argument(
        "--fine-tuning", nargs="+", default=[], metavar="KEY=VALUE", help="settings for @TEACHER"
    )
    parser.add_argument(
        "--auxiliary", nargs="+", choices=("captions", "concepts", "both"), default=["captions"]
    )
    parser.add_argument("--without-overlap", action="store_true")
    parser.add_argument("--device", default="cpu", help="device of the backbone")
    parser.add_argument("--queries", type=Path, help="csv file: collection, query, labels")
    parser.add_argument("--search", nargs="+", choices=get_args(SearchMode), default=[])
    parser.add_argument("--chance", action="store_true", help="queries that nothing is near to")
    parser.add_argument("--json", type=Path, help="output file for the scores of every seed")
    options = parser.parse_args()
    if options.fine_tuning and not any("@" in method for method in options.methods):
        parser.error("--fine-tuning needs a method with a teacher, such as THN@THN.")
    features = image_features(options.image_features, options.device)
    collection = ThirdPartyCollection.read(options.folder, features)
    if options.without_overlap:
        collection = drop_overlap(collection)
    fine_tuned = FineTunedCollections(collection, features, parse_settings(options.fine_tuning))
    print(
        f"{len(collection.auxiliary_texts)} pairs, {len(collection.images)} images, "
        f"{len(collection.texts)} texts, {len(collection.classes)} classes; {options.bits} bits, "
        f"{options.ranking} ranking"
    )
    rankers: dict[str, Ranker] = {"random": rank_randomly, "keyword": rank_by_keyword}
    for text_name, source in product(options.text_features, options.auxiliary):
        for method in options.methods:
            name = f"{method}, {Path(text_name).name}"
            if source != "captions":
                name += f", {source}"
            if options.search:
                rankers |= make_searchers(method, name, text_name, source, options)
            else:
                rankers[name] = make_ranker(method, text_name, source, options, fine_tuned)
        if source != "captions":
            conse = partial(rank_by_conse, text_name=text_name)
            rankers[f"ConSE, {Path(text_name).name}"] = conse
    if options.chance:
        results = print_chance(collection, options)
    else:
        measure = score_queries if options.queries else score_splits
        results = measure(collection, options, rankers)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def make_ranker(
    name: str,
    text_name: str,
    source: str,
    options: argparse.Namespace,
    fine_tuned: FineTunedCollections,
) -> Ranker:
    spec = MethodSpec.parse(name)
    if spec.teacher:  # fail before the first fit
        require_backbone(fine_tuned.features)
        fine_tuned.request(spec.teacher, options.bits, 0)

    def rank(split: CollectionSplit, seed: int) -> Rankings:
        method = make_method(spec.method, bits=options.bits, seed=seed)
        if spec.teacher:
            split = fine_tuned.apply(split, spec.teacher, options.bits, seed, text_name)
        return rank_with_method(split, method, text_name, options.ranking, source)

    return rank


def make_searchers(
    method_name: str, label: str, text_name: str, source: str, options: argparse.Namespace
) -> dict[str, Ranker]:
    """Return a ranker per search mode; they share the fits."""
    names = options.folder.name not in NAMES_ARE_LABELS
    by_seed: dict[int, dict[SearchMode, Rankings]] = {}

    def rank(split: CollectionSplit, seed: int, mode: SearchMode) -> Rankings:
        if seed not in by_seed:
            method = make_method(method_name, bits=options.bits, seed=seed)
            if not isinstance(method, Hasher):
                raise SystemExit(f"{method_name} has no codes. Choose another method.")
            by_seed[seed] = rank_with_search(split, method, text_name, source, names=names)
        return by_seed[seed][mode]

    return {f"{mode}: {label}": partial(rank, mode=mode) for mode in options.search}


def score_splits(
    collection: ThirdPartyCollection, options: argparse.Namespace, rankers: dict[str, Ranker]
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    print("| | MAP image -> text | text -> image | P@10 image -> text | text -> image |")
    print("|---|---|---|---|---|")
    for name, rank in rankers.items():
        rows = []
        for seed in options.seeds:
            rankings = rank(CollectionSplit.draw(collection, seed), seed)
            scores = [Scores.from_counts(rankings[direction]) for direction in DIRECTIONS]
            rows.append([s.map for s in scores] + [s.precision_at[10] for s in scores])
        results[name] = rows
        print(f"| {name} | {' | '.join(mean_cells(rows))} |", flush=True)
        if options.json:  # an interrupted run has the rows so far
            options.json.write_text(json.dumps(results, indent=1))
    print_differences(results)
    return results


def print_differences(results: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Print THN minus every method of the same features and auxiliary set, in points of MAP."""
    print("\n| THN minus | image -> text | text -> image |\n|---|---|---|")
    for own, own_rows in results.items():
        if not own.startswith("THN, "):
            continue
        features = own.removeprefix("THN, ")
        for other, rows in results.items():
            method, _, other_features = other.partition(", ")
            same = other_features == features or (method == "ConSE" and other_features in features)
            if same and other != own:
                gains = 100 * (np.array(own_rows) - np.array(rows))[:, :2]
                cells = " | ".join(interval_cell(column, TEST_RATIO) for column in gains.T)
                print(f"| {method}, {features} | {cells} |")


def score_queries(
    collection: ThirdPartyCollection, options: argparse.Namespace, rankers: dict[str, Ranker]
) -> dict[str, Any]:
    with options.queries.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["collection"] == options.folder.name]
    queries = [row["query"] for row in rows]
    labels = label_matrix([row["labels"].split("|") for row in rows], collection.classes)
    split = CollectionSplit.with_queries(collection, queries, labels)
    results = {}
    for name, rank in rankers.items():
        correct = []
        for seed in options.seeds:
            groups = rank(split, seed)["text_to_image"]
            blocks = [groups] if isinstance(groups, DistanceHistogram) else groups
            correct.append(np.concatenate([10 * block.precision_at(10) for block in blocks]))
        results[name] = np.mean(correct, axis=0).tolist()
    print(f"| query | correct labels | {' | '.join(results)} |\n|---|---|{'---|' * len(results)}")
    for row, values in zip(rows, zip(*results.values())):
        cells = " | ".join(f"{value:.1f}" for value in values)
        print(f"| {row['query']} | {row['labels'].replace('|', ', ')} | {cells} |")
    print(f"| mean | | {' | '.join(f'{np.mean(values):.1f}' for values in results.values())} |")
    return {"queries": queries, **results}


if __name__ == "__main__":
    main()
