"""A stranger's files, scored: what `third_party_photographs.py` or `third_party_clipart.py` wrote.

    python benchmarks/third_party.py FOLDER --text-features words all-MiniLM-L6-v2/
    python benchmarks/third_party.py FOLDER --queries benchmarks/third_party_queries.csv
    python benchmarks/third_party.py FOLDER --beside 2163542=CHECKOUT
    python benchmarks/third_party.py FOLDER --methods THN THN@THN kNN@THN --tuning blocks=6 --device cuda

A seed draws 80% of the bridge's pairs, three quarters of the pictures and of the texts as
databases, which methods that use target items are given unlabelled, and the others as queries,
which nothing is fitted on. Kinds are read for scoring only. MAP over the whole list and precision
of the first ten, ties in expectation, mean and deviation over seeds. Beside the methods, all with
their defaults: `random`; `keyword`, tf-idf of texts against the pictures' file names; and THN as
another checkout of this repository has it, with its own text features. METHOD@TEACHER
sees pictures through a backbone fine-tuned on those of the pairs and of the database, not on
queries, by a teacher that learned from the same part, with the same bits and text features.

`--queries` fits on the whole bridge, with all pictures and texts as target, asks for pictures with
the typed queries of the trial that the folder is named after, and counts right ones of the first
ten (mean over seeds).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from fine_tune import variant_of
from sklearn.feature_extraction.text import TfidfVectorizer

from transhash.codes import Codes
from transhash.data.collection import AuxiliaryCollection, Images, Texts, label_matrix
from transhash.data.manifest import (
    manifest_images,
    manifest_texts,
    read_images,
    read_manifest,
    read_texts,
)
from transhash.data.training_set import TrainingSet
from transhash.evaluation import DistanceHistogram, Scores
from transhash.experiments.plan import Cell
from transhash.features.backbone import FineTunedFeatures
from transhash.features.decode import Pixels
from transhash.features.images import ImageFeatures, image_features
from transhash.features.texts import CombinedTextFeatures, TextEmbedder, TextFeatures, text_features
from transhash.hashers.base import Hasher, Scorer
from transhash.hashers.fine_tuning import fine_tune
from transhash.hashers.fine_tuning.batches import decode_all
from transhash.hashers.methods import make_method
from transhash.index.weighted import RankingMode
from transhash.model.encoder import extract_readable
from transhash.progress import progress_bar
from transhash.scoring.directions import (
    LabeledCodes,
    ScoredDirection,
    both_directions,
    directions_of,
)
from transhash.training.fine_tune import FineTuningRequest, require_backbone
from transhash.training.split_data import LabeledFeatures, LabelMatrix, TestSet

WAYS = ("image_to_text", "text_to_image")
Rows = npt.NDArray[np.int64]
CountedRankings = Mapping[str, DistanceHistogram | Iterable[DistanceHistogram]]


@dataclass(frozen=True)
class Trial:
    """The files of a folder: pairs, and a target that nothing pairs; image features computed."""

    images: Images  # of the bridge, row by row with
    captions: Texts
    pictures: Images
    texts: Texts
    kinds: list[str]
    picture_kinds: LabelMatrix
    text_kinds: LabelMatrix

    @classmethod
    def read(cls, folder: Path, features: ImageFeatures) -> Trial:
        bridge = read_manifest(folder / "bridge.csv")
        pictures, texts = read_images(folder / "pictures.csv"), read_texts(folder / "texts.csv")
        with (folder / "kinds.csv").open(encoding="utf-8", newline="") as rows:
            kind_of = {row["item"]: row["kind"] for row in csv.DictReader(rows)}
        kinds = sorted(set(kind_of.values()))

        def of(items: Images | Texts) -> LabelMatrix:
            return label_matrix([{kind_of[name]} for name in items.ids], kinds)

        def computed(images: Images) -> Images:
            rows, kept, bad = extract_readable(features, images, progress_bar)
            if bad:
                raise SystemExit(f"{len(bad)} pictures cannot be read; make the folder anew")
            return replace(kept, features=rows)

        return cls(
            computed(manifest_images(bridge)), manifest_texts(bridge), computed(pictures), texts,
            kinds, of(pictures), of(texts),
        )  # fmt: skip

    def reading_with(self, tuned: FineTunedFeatures, pixels: Sequence[Pixels]) -> Trial:
        """The same files, all pictures as a fine-tuned backbone reads them."""
        images, pictures = map(tuned.extract, pixels)
        return replace(
            self,
            images=replace(self.images, features=images),
            pictures=replace(self.pictures, features=pictures),
        )


@dataclass(frozen=True)
class Part:
    """What one fit learns from and is asked: rows of the trial, and the texts that ask."""

    trial: Trial
    pairs: Rows
    pictures: Rows  # databases
    texts: Rows
    asking_pictures: Rows
    asking_texts: Sequence[str]
    asking_kinds: LabelMatrix

    @classmethod
    def drawn(cls, trial: Trial, seed: int) -> Part:
        rng = np.random.default_rng(seed)
        pairs = rng.permutation(len(trial.captions))[: round(0.8 * len(trial.captions))]
        pictures, texts = rng.permutation(len(trial.pictures)), rng.permutation(len(trial.texts))
        cut, below = round(0.75 * len(pictures)), round(0.75 * len(texts))
        return cls(
            trial, np.sort(pairs), np.sort(pictures[:cut]), np.sort(texts[:below]),
            np.sort(pictures[cut:]), trial.texts.take(texts[below:]).items,
            trial.text_kinds[texts[below:]],
        )  # fmt: skip

    @classmethod
    def typed(cls, trial: Trial, queries: Sequence[str], kinds: LabelMatrix) -> Part:
        pairs, pictures = np.arange(len(trial.captions)), np.arange(len(trial.pictures))
        return cls(
            trial, pairs, pictures, np.arange(len(trial.texts)), pictures[:1], queries, kinds
        )

    def extract_readable(self, rows: Rows) -> npt.NDArray[Any]:
        assert self.trial.pictures.features is not None
        return np.asarray(self.trial.pictures.features[rows])

    def target(self, encode_queries: npt.NDArray[Any], texts: npt.NDArray[Any]) -> TestSet:
        shown, told = self.trial.picture_kinds, self.trial.text_kinds
        return TestSet(
            LabeledFeatures(
                self.extract_readable(self.asking_pictures), shown[self.asking_pictures]
            ),
            LabeledFeatures(encode_queries, self.asking_kinds),
            LabeledFeatures(self.extract_readable(self.pictures), shown[self.pictures]),
            LabeledFeatures(texts, told[self.texts]),
        )


class Remembered:
    """A model's rows, computed once a text: every fit asks for the same texts."""

    def __init__(self, meaning: TextEmbedder) -> None:
        self.meaning, self.name = meaning, meaning.name
        self.known: dict[str, npt.NDArray[np.float32]] = {}

    def rows(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        new = list(dict.fromkeys(text for text in texts if text not in self.known))
        self.known.update(zip(new, self.meaning.rows(new) if new else ()))
        return np.array([self.known[text] for text in texts])


REMEMBERED: dict[str, Any] = {}  # by the name of the text features


def not_fitted_error(named: str) -> TextFeatures:
    words = text_features(None if named == "words" else named)
    if isinstance(words, CombinedTextFeatures):
        words.meaning = REMEMBERED.setdefault(named, Remembered(words.meaning))
    return words


def training_set(
    part: Part, learner: Hasher | Scorer, named: str
) -> tuple[TrainingSet, TextFeatures]:
    """What a method of the package learns from, as `transhash fit` would give it; no kind is."""
    trial = part.trial
    images, captions = trial.images.take(part.pairs), trial.captions.take(part.pairs)
    bridge = AuxiliaryCollection.from_collections(images, captions)
    texts = trial.texts.take(part.texts).items
    words = not_fitted_error(named)
    words.fit(captions.items, *([texts] if learner.uses_target else ()))
    assert images.features is not None
    training = TrainingSet(
        images.features, words.transform(captions.items), bridge.relation,
        part.extract_readable(part.pictures), words.transform(texts),
    )  # fmt: skip
    return training, words


def learned(
    part: Part, learner: Hasher | Scorer, named: str, ranking: RankingMode
) -> CountedRankings:
    """What it ranks once it is fitted."""
    training, words = training_set(part, learner, named)
    learner.fit(training)
    assert training.target_texts is not None
    target = part.target(words.transform(part.asking_texts), training.target_texts)
    ways: Mapping[str, Any] = (
        directions_of(learner, target, ranking)
        if isinstance(learner, Hasher)
        else directions_of(learner, target)
    )
    return {way: each.counted() for way, each in ways.items()}


class TunedTrials:
    """The trial as fine-tuned backbones read it: one of a teacher's fits serves all methods."""

    def __init__(self, trial: Trial, features: ImageFeatures, settings: dict[str, Any]) -> None:
        self.trial, self.features, self.settings = trial, features, settings
        self.known: dict[tuple[str, str, int, int], Trial] = {}  # rows; backbones are not kept

    @cached_property
    def pixels(self) -> list[Pixels]:
        """Of the bridge and of the target, decoded once a backbone is to learn from them."""
        size, device = self.features.size, self.features.device
        parts = (self.trial.images, self.trial.pictures)
        return [decode_all(images.items, size, device, progress_bar) for images in parts]

    def request(self, cell: Cell) -> FineTuningRequest:
        told = {"bits": cell.bits, "seed": cell.seed}
        return FineTuningRequest.of(cell.teacher, told, {"seed": cell.seed, **self.settings})

    def read(self, part: Part, cell: Cell, named: str) -> Part:
        """The same rows of the trial as the backbone of a cell's teacher reads it."""
        key = (cell.teacher, named, cell.bits, cell.seed)  # a seed has one part in a run
        if key not in self.known:
            request, (images, pictures) = self.request(cell), self.pixels
            training, _ = training_set(part, request.teacher, named)
            tuned = fine_tune(
                require_backbone(self.features), images[part.pairs], pictures[part.pictures],
                training, request.teacher.fit(training), request.settings, track=progress_bar,
            )  # fmt: skip
            self.known[key] = self.trial.reading_with(tuned, self.pixels)
        return replace(part, trial=self.known[key])


def scored(part: Part, score: npt.NDArray[Any], back: npt.NDArray[Any]) -> CountedRankings:
    """What numbers for every query and item rank; `back` is of texts that ask."""
    target = part.target(np.zeros(0), np.zeros(0))
    numbers, encode_queries = (score, back), (target.query_images, target.query_texts)
    return {
        way: ScoredDirection(given.__getitem__, query.labels, modality.labels).counted()
        for way, given, query, modality in zip(
            WAYS, numbers, encode_queries, (target.database_texts, target.database_images)
        )
    }


def random(part: Part, seed: int) -> CountedRankings:
    rng = np.random.default_rng(seed)
    return scored(
        part,
        rng.random((len(part.asking_pictures), len(part.texts))),
        rng.random((len(part.asking_texts), len(part.pictures))),
    )


def keyword(part: Part) -> CountedRankings:
    """tf-idf of texts against file names without their numbers."""

    def names(rows: Rows) -> list[str]:
        stems = [Path(trial.pictures.ids[row]).stem for row in rows]
        return [" ".join(re.findall("[a-z]+", stem.lower())) for stem in stems]

    trial = part.trial
    texts = trial.texts.take(part.texts).items
    words = TfidfVectorizer(stop_words="english").fit([*names(part.pictures), *texts])
    return scored(
        part,
        (words.transform(names(part.asking_pictures)) @ words.transform(texts).T).toarray(),
        (words.transform(part.asking_texts) @ words.transform(names(part.pictures)).T).toarray(),
    )


BESIDE = """
import sys
import numpy as np
from transhash.data.relation import SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.features.texts import BagOfWords
from transhash.hashers import make_hasher

given = np.load(sys.argv[1])
captions, texts, asking = (given[name].tolist() for name in ("captions", "texts", "asking_texts"))
words = BagOfWords().fit([*captions, *texts])
keys = [str(row) for row in range(len(captions))]
rows = words.transform(texts)
training = TrainingSet(given["images"], words.transform(captions),
                       SparseRelation.from_pairs(keys, keys), given["pictures"], rows)
hasher = make_hasher("THN", bits=int(given["bits"]), seed=int(given["seed"])).fit(training)
np.savez(sys.argv[2], asking_pictures=hasher.encode_images(given["asking_pictures"]).packed,
         asking_texts=hasher.encode_texts(words.transform(asking)).packed,
         pictures=hasher.encode_images(given["pictures"]).packed,
         texts=hasher.encode_texts(rows).packed)
"""


def beside(part: Part, checkout: Path, bits: int, seed: int) -> CountedRankings:
    """THN and its text features as another checkout has them, in a process of its own."""
    trial = part.trial
    images = trial.images.take(part.pairs).features
    assert images is not None
    with tempfile.TemporaryDirectory() as place:
        given, coded = Path(place) / "given.npz", Path(place) / "coded.npz"
        np.savez(
            given,
            captions=trial.captions.take(part.pairs).items,
            images=images,
            texts=trial.texts.take(part.texts).items,
            pictures=part.extract_readable(part.pictures),
            asking_texts=list(part.asking_texts),
            asking_pictures=part.extract_readable(part.asking_pictures),
            bits=bits,
            seed=seed,
        )
        env = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
        subprocess.run([sys.executable, "-c", BESIDE, given, coded], env=env, check=True)
        codes = {name: Codes(packed, bits) for name, packed in np.load(coded).items()}
    target = part.target(np.zeros(0), np.zeros(0))
    return {
        way: each.counted()
        for way, each in both_directions(
            LabeledCodes(codes["asking_pictures"], target.query_images.labels),
            LabeledCodes(codes["asking_texts"], target.query_texts.labels),
            LabeledCodes(codes["pictures"], target.database_images.labels),
            LabeledCodes(codes["texts"], target.database_texts.labels),
        ).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", default=["THN", "kNN", "ridge", "QCH", "CVH"])
    parser.add_argument("--text-features", nargs="+", default=["words"])
    parser.add_argument("--image-features", default="efficientnet-lite0", help="as --features")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--ranking", choices=get_args(RankingMode), default="hamming")
    parser.add_argument("--beside", metavar="NAME=CHECKOUT", help="THN of another checkout")
    parser.add_argument("--tuning", nargs="+", default=[], metavar="KEY=VALUE", help="FineTuning's")
    parser.add_argument("--device", default="cpu", help="of the backbone")
    parser.add_argument("--queries", type=Path, help="a csv of trial, query, kinds")
    parser.add_argument("--json", type=Path, help="where every seed's scores go")
    arguments = parser.parse_args()
    if arguments.tuning and not any("@" in method for method in arguments.methods):
        parser.error("--tuning is of the backbones behind an @, and no method has one")
    features = image_features(arguments.image_features, arguments.device)
    trial = Trial.read(arguments.folder, features)
    tuned = TunedTrials(trial, features, variant_of(f":{','.join(arguments.tuning)}").settings)
    print(
        f"{len(trial.captions)} pairs, {len(trial.pictures)} pictures, {len(trial.texts)} texts, "
        f"{len(trial.kinds)} kinds; {arguments.bits} bits, ranked by {arguments.ranking}"
    )
    rankers = contenders(arguments, tuned)
    found = (
        typed(trial, arguments, rankers) if arguments.queries else table(trial, arguments, rankers)
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def contenders(
    arguments: argparse.Namespace, tuned: TunedTrials
) -> dict[str, Callable[[Part, int], CountedRankings]]:
    """A name a row, in the order of the table."""
    rows: dict[str, Callable[[Part, int], CountedRankings]] = {
        "random": random,
        "keyword": lambda part, seed: keyword(part),
    }
    if arguments.beside:
        name, _, checkout = arguments.beside.partition("=")
        rows[f"THN of {name}"] = lambda part, seed: beside(
            part, Path(checkout), arguments.bits, seed
        )
    for named in arguments.text_features:
        for method in arguments.methods:
            rows[f"{method}, {Path(named).name}"] = _learning(method, named, arguments, tuned)
    return rows


def _learning(
    method: str, named: str, arguments: argparse.Namespace, tuned: TunedTrials
) -> Callable[[Part, int], CountedRankings]:
    if "@" in method:  # refused, if at all, before the first minute is spent
        require_backbone(tuned.features)
        tuned.request(Cell(method, arguments.bits, 0))

    def rank(part: Part, seed: int) -> CountedRankings:
        cell = Cell(method, arguments.bits, seed)
        learner = make_method(cell.learner, bits=cell.bits, seed=seed)
        read = tuned.read(part, cell, named) if cell.teacher else part
        return learned(read, learner, named, arguments.ranking)

    return rank


def table(
    trial: Trial,
    arguments: argparse.Namespace,
    rankers: dict[str, Callable[[Part, int], CountedRankings]],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    print("| | MAP image -> text | text -> image | P@10 image -> text | text -> image |")
    print("|---|---|---|---|---|")
    for name, rank in rankers.items():
        seeds = []
        for seed in arguments.seeds:
            counted = rank(Part.drawn(trial, seed), seed)
            scores = [Scores.of(counted[way]) for way in WAYS]
            seeds.append([s.map for s in scores] + [s.precision_at[10] for s in scores])
        found[name] = seeds
        mean, spread = np.mean(seeds, axis=0), np.std(seeds, axis=0, ddof=min(1, len(seeds) - 1))
        cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return found


def typed(
    trial: Trial,
    arguments: argparse.Namespace,
    rankers: dict[str, Callable[[Part, int], CountedRankings]],
) -> dict[str, Any]:
    with arguments.queries.open(encoding="utf-8", newline="") as rows:
        asked = [row for row in csv.DictReader(rows) if row["trial"] == arguments.folder.name]
    queries = [row["query"] for row in asked]
    kinds = label_matrix([row["kinds"].split("|") for row in asked], trial.kinds)
    part = Part.typed(trial, queries, kinds)
    found = {}
    for name, rank in rankers.items():
        right = []
        for seed in arguments.seeds:
            counted = rank(part, seed)["text_to_image"]
            blocks = [counted] if isinstance(counted, DistanceHistogram) else counted
            right.append(np.concatenate([10 * block.precision_at(10) for block in blocks]))
        found[name] = np.mean(right, axis=0).tolist()
    print(f"| query | right kinds | {' | '.join(found)} |\n|---|---|{'---|' * len(found)}")
    for row, values in zip(asked, zip(*found.values())):
        cells = " | ".join(f"{value:.1f}" for value in values)
        print(f"| {row['query']} | {row['kinds'].replace('|', ', ')} | {cells} |")
    print(f"| mean | | {' | '.join(f'{np.mean(one):.1f}' for one in found.values())} |")
    return {"queries": queries, **found}


if __name__ == "__main__":
    main()
