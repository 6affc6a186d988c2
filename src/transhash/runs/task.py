"""One split of a benchmark as arrays: what methods learn from, and what they are scored on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.benchmark import Benchmark
from transhash.data.collection import Problem, label_matrix
from transhash.data.training import Features, Related, TrainingSet
from transhash.runs.encoder import image_rows
from transhash.evaluation import evaluate_both
from transhash.features.image import ImageFeatures
from transhash.features.text import BagOfWords
from transhash.hashers import Hasher
from transhash.progress import Track, silent

Matrix = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Task:
    """Labels of target items stand only in the four last fields, which no `fit` ever sees."""

    benchmark: str
    training: TrainingSet
    held_out: Related
    text_features: BagOfWords
    query_images: Features
    query_texts: Features
    database_images: Features
    database_texts: Features
    query_image_labels: Matrix
    query_text_labels: Matrix
    database_image_labels: Matrix
    database_text_labels: Matrix


@dataclass(frozen=True)
class TaskCodes:
    query_images: Codes
    query_texts: Codes
    database_images: Codes
    database_texts: Codes


def with_image_features(
    benchmark: Benchmark, features: ImageFeatures, track: Track = silent
) -> tuple[Benchmark, list[Problem]]:
    """The benchmark with a feature row an image; unreadable images are dropped and listed."""
    rows, auxiliary, bad = image_rows(features, benchmark.auxiliary_images, track)
    auxiliary = replace(auxiliary, features=rows)
    if benchmark.images is benchmark.auxiliary_images:  # in-domain: the same pairs
        kept = set(auxiliary.ids)
        texts = benchmark.auxiliary_texts
        texts = texts.take([i for i in range(len(texts)) if texts.ids[i] in kept])
        changed = replace(
            benchmark,
            auxiliary_images=auxiliary,
            auxiliary_texts=texts,
            images=auxiliary,
            texts=texts,
        )
        return changed, bad
    rows, images, worse = image_rows(features, benchmark.images, track)
    images = replace(images, features=rows)
    return replace(benchmark, auxiliary_images=auxiliary, images=images), bad + worse


def build_task(benchmark: Benchmark, split_seed: int = 0, words: BagOfWords | None = None) -> Task:
    """The split of that seed. Words are counted on its training texts only, unless given."""
    split = benchmark.split(split_seed)
    auxiliary = benchmark.auxiliary(split.auxiliary_images, split.auxiliary_texts)
    held_out = benchmark.auxiliary(split.held_out_images, split.held_out_texts)
    target_texts = benchmark.texts.take(split.target_texts)
    if words is None:
        words = BagOfWords().fit([*auxiliary.texts.items, *target_texts.items])

    def text(rows: npt.NDArray[np.int64]) -> Features:
        return words.transform(benchmark.texts.take(rows).items)

    def image(rows: npt.NDArray[np.int64]) -> Features:
        assert benchmark.images.features is not None  # with_image_features put it there
        return benchmark.images.features[rows]

    classes = benchmark.classes
    image_labels = label_matrix(benchmark.images.labels or (), classes, ignore_others=True)
    text_labels = label_matrix(benchmark.texts.labels or (), classes, ignore_others=True)
    return Task(
        benchmark=benchmark.name,
        training=TrainingSet(
            _features(auxiliary.images.features),
            words.transform(auxiliary.texts.items),
            auxiliary.relation,
            image(split.target_images),
            text(split.target_texts),
        ),
        held_out=Related(
            _features(held_out.images.features),
            words.transform(held_out.texts.items),
            held_out.relation,
        ),
        text_features=words,
        query_images=image(split.query_images),
        query_texts=text(split.query_texts),
        database_images=image(split.database_images),
        database_texts=text(split.database_texts),
        query_image_labels=image_labels[split.query_images],
        query_text_labels=text_labels[split.query_texts],
        database_image_labels=image_labels[split.database_images],
        database_text_labels=text_labels[split.database_texts],
    )


def encode_task(hasher: Hasher, task: Task) -> TaskCodes:
    return TaskCodes(
        hasher.encode_images(task.query_images),
        hasher.encode_texts(task.query_texts),
        hasher.encode_images(task.database_images),
        hasher.encode_texts(task.database_texts),
    )


def score_task(codes: TaskCodes, task: Task, **options: Any) -> dict[str, Any]:
    """Image->text and text->image scores beside chance."""
    return evaluate_both(
        codes.query_images,
        codes.query_texts,
        codes.database_images,
        codes.database_texts,
        image_query_labels=task.query_image_labels,
        text_query_labels=task.query_text_labels,
        image_database_labels=task.database_image_labels,
        text_database_labels=task.database_text_labels,
        **options,
    )


def _features(features: Features | None) -> Features:
    assert features is not None
    return features
