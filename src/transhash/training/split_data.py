"""One split of a benchmark as arrays: what methods learn from, and what they are scored on."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA

from transhash.data.benchmark import Benchmark, SplitRows, load_benchmark, shrink_sizes
from transhash.data.collection import Collection, Images, Problem, label_matrix
from transhash.data.relation import Rows
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.errors import DataError
from transhash.features.decode import open_image
from transhash.features.images import ImageFeatures
from transhash.features.texts import TextFeatures, text_features
from transhash.model.encoder import extract_readable
from transhash.progress import Track, no_progress

LabelMatrix = npt.NDArray[np.bool_]  # (items, classes)


class LabeledFeatures(NamedTuple):
    """Features of some items, and the labels that say which answers are right."""

    features: Features
    labels: LabelMatrix


@dataclass(frozen=True)
class TestSet:
    """Queries and databases of a split. Target labels stand here and nowhere else."""

    query_images: LabeledFeatures
    query_texts: LabeledFeatures
    database_images: LabeledFeatures
    database_texts: LabeledFeatures


@dataclass(frozen=True)
class SplitData:
    """A split: no `fit` is ever given more than `training`, no tuning more than `held_out`."""

    training: TrainingSet
    held_out: AuxiliarySet
    text_features: TextFeatures
    target: TestSet


def load_benchmark_features(
    folder: Path, features: ImageFeatures, track: Track = no_progress, *, compute: bool = True
) -> tuple[Benchmark, list[Problem]]:
    """A folder's benchmark with image features, at sizes it can carry; what was skipped.

    A split is drawn among the readable images. Without `compute` they are only looked at.
    """
    loaded = load_benchmark(folder)
    if compute:
        ready, bad = with_image_features(loaded, features, track)
    else:
        ready, bad = _each_image(loaded, partial(_readable, size=features.size, track=track))
    return replace(ready, sizes=shrink_sizes(ready)), [*loaded.problems, *bad]


def with_image_features(
    benchmark: Benchmark, features: ImageFeatures, track: Track = no_progress
) -> tuple[Benchmark, list[Problem]]:
    """The benchmark with a feature row an image; unreadable images are dropped and listed."""

    def extracted(images: Images) -> tuple[Images, list[Problem]]:
        rows, kept, bad = extract_readable(features, images, track)
        return replace(kept, features=rows), bad

    return _each_image(benchmark, extracted)


def build_split(
    benchmark: Benchmark,
    split_seed: int = 0,
    *,
    uses_target: bool = True,
    texts: str | None = None,
    image_components: int | None = None,
    device: str = "cpu",
) -> SplitData:
    """The split of that seed. `texts` names text features, as `--text-features` does.

    Words are counted on training texts only; for a method that does not use target items
    (`Learner.uses_target`) on the auxiliary ones alone. With `image_components` images are their
    leading principal components, found likewise, as the paper gives them to shallow methods.
    """
    split = benchmark.split(split_seed)
    auxiliary = benchmark.auxiliary(split.auxiliary_images, split.auxiliary_texts)
    held_out = benchmark.auxiliary(split.held_out_images, split.held_out_texts)
    target_images = benchmark.images.take(split.target_images)
    target_texts = benchmark.texts.take(split.target_texts)
    known = auxiliary.texts.items
    words = text_features(texts, device)
    words.fit(known, *([target_texts.items] if uses_target else ()))
    task = SplitData(
        training=TrainingSet(
            extract_readable(None, auxiliary.images)[0],
            words.transform(auxiliary.texts.items),
            auxiliary.relation,
            extract_readable(None, target_images)[0],
            words.transform(target_texts.items),
        ),
        held_out=AuxiliarySet(
            extract_readable(None, held_out.images)[0],
            words.transform(held_out.texts.items),
            held_out.relation,
        ),
        text_features=words,
        target=build_test_set(benchmark, split, words),
    )
    return task if image_components is None else _reduced(task, image_components, uses_target)


def build_test_set(
    benchmark: Benchmark,
    split: SplitRows,
    words: TextFeatures,
    features: ImageFeatures | None = None,
    part: slice = slice(None),
    track: Track = no_progress,
) -> TestSet:
    """A split's queries and databases, or those rows of the databases only.

    `features` computes images that have none yet, so that a part needs no more than its own.
    """
    classes = benchmark.classes

    def images(rows: Rows) -> LabeledFeatures:
        computed, kept, _ = extract_readable(features, benchmark.images.take(rows), track)
        return LabeledFeatures(computed, label_matrix_for(kept, classes))

    def texts(rows: Rows) -> LabeledFeatures:
        taken = benchmark.texts.take(rows)
        return LabeledFeatures(words.transform(taken.items), label_matrix_for(taken, classes))

    databases = split.database_images[part], split.database_texts[part]
    if not all(map(len, databases)):
        smaller = min(len(split.database_images), len(split.database_texts))
        raise DataError(f"a database of {smaller} items cannot be cut that often; take fewer parts")
    return TestSet(
        images(split.query_images), texts(split.query_texts),
        images(databases[0]), texts(databases[1]),
    )  # fmt: skip


def _reduced(task: SplitData, components: int, uses_target: bool) -> SplitData:
    """The split with images as principal components of its training images."""
    training, target = task.training, task.target
    known = [training.images]
    if uses_target and training.target_images is not None:
        known.append(training.target_images)
    rows = np.concatenate(known)
    if rows.ndim != 2 or not 1 <= components <= min(rows.shape):
        raise DataError(
            f"image_components = {components}, but {len(rows)} training images have "
            f"{rows.shape[1:]} features; ask for fewer"
        )
    found = PCA(components, svd_solver="covariance_eigh").fit(rows)

    def less(features: Features) -> Features:
        return np.asarray(found.transform(features), np.float32) if len(features) else features

    return replace(
        task,
        training=replace(
            training,
            images=less(training.images),
            target_images=None if training.target_images is None else less(training.target_images),
        ),
        held_out=replace(task.held_out, images=less(task.held_out.images)),
        target=replace(
            target,
            query_images=target.query_images._replace(features=less(target.query_images.features)),
            database_images=target.database_images._replace(
                features=less(target.database_images.features)
            ),
        ),
    )


def label_matrix_for(items: Collection[Any], classes: list[str]) -> LabelMatrix:
    """Which of these classes each item has; other labels relate nothing."""
    return label_matrix(items.labels or (), classes, ignore_others=True)


def _each_image(
    benchmark: Benchmark, look: Callable[[Images], tuple[Images, list[Problem]]]
) -> tuple[Benchmark, list[Problem]]:
    """The benchmark with what `look` makes of its images."""
    auxiliary, bad = look(benchmark.auxiliary_images)
    if benchmark.protocol != "nus-wide":
        images, worse = look(benchmark.images)
        return replace(benchmark, auxiliary_images=auxiliary, images=images), bad + worse
    # In-domain, target and auxiliary set are the same pairs: a lost image takes its text along.
    kept, texts = set(auxiliary.ids), benchmark.auxiliary_texts
    texts = texts.take([row for row, name in enumerate(texts.ids) if name in kept])
    return replace(
        benchmark, auxiliary_images=auxiliary, auxiliary_texts=texts, images=auxiliary, texts=texts
    ), bad


def _readable(images: Images, size: int, track: Track) -> tuple[Images, list[Problem]]:
    """Decodes and forgets: a machine that scores a part has to know which images count."""

    def fault(path: Path) -> str | None:
        opened = open_image(path, size)
        return opened if isinstance(opened, str) else None

    if images.features is not None:
        return images, []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without the lock
        looked = track(pool.map(fault, images.items), "looking at images", total=len(images))
        faults = {row: reason for row, reason in enumerate(looked) if reason is not None}
    bad = [Problem(images.describe(row), images.ids[row], why) for row, why in faults.items()]
    return images.take([row for row in range(len(images)) if row not in faults]), bad
