"""One split of a benchmark as arrays: training, held-out and test set."""

from __future__ import annotations

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
from transhash.features.decode_processes import decode_isolated
from transhash.features.images import ImageFeatures
from transhash.features.stream import extract_readable
from transhash.features.texts import TextFeatures, text_features
from transhash.progress import Track, no_progress
from transhash.threads import cpu_count

LabelMatrix = npt.NDArray[np.bool_]  # (items, classes)


class LabeledFeatures(NamedTuple):
    """Features of items, and the labels that decide which results are correct."""

    features: Features
    labels: LabelMatrix


@dataclass(frozen=True)
class TestSet:
    """Queries and databases of a split: the only place with labels of target items."""

    query_images: LabeledFeatures
    query_texts: LabeledFeatures
    database_images: LabeledFeatures
    database_texts: LabeledFeatures


@dataclass(frozen=True)
class SplitData:
    """A split: `fit` gets only `training`, tuning gets `held_out` as well."""

    training: TrainingSet
    held_out: AuxiliarySet
    text_features: TextFeatures
    test: TestSet

    def replace_images(
        self,
        images: Features,
        target_images: Features | None,
        held_out: Features,
        queries: Features,
        database: Features,
    ) -> SplitData:
        """Return the split with other image features."""
        test = self.test
        return replace(
            self,
            training=replace(self.training, images=images, target_images=target_images),
            held_out=replace(self.held_out, images=held_out),
            test=replace(
                test,
                query_images=test.query_images._replace(features=queries),
                database_images=test.database_images._replace(features=database),
            ),
        )


def load_benchmark_features(
    folder: Path, features: ImageFeatures, track: Track = no_progress, *, compute: bool = True
) -> tuple[Benchmark, list[Problem]]:
    """Return the benchmark with image features, at sizes it has items for, and skipped rows.

    Splits are drawn from the readable images. Without `compute` images are decoded only to find
    those.
    """
    loaded = load_benchmark(folder)
    if compute:
        benchmark, problems = with_image_features(loaded, features, track)
    else:
        check = partial(_readable, size=features.size, track=track)
        benchmark, problems = _map_images(loaded, check)
    return replace(benchmark, sizes=shrink_sizes(benchmark)), [*loaded.problems, *problems]


def with_image_features(
    benchmark: Benchmark, features: ImageFeatures, track: Track = no_progress
) -> tuple[Benchmark, list[Problem]]:
    """Return the benchmark with image features, without unreadable images, and those."""

    def extract(images: Images) -> tuple[Images, list[Problem]]:
        rows, readable, problems = extract_readable(features, images, track)
        return replace(readable, features=rows), problems

    return _map_images(benchmark, extract)


def build_split(
    benchmark: Benchmark,
    split_seed: int = 0,
    *,
    uses_target: bool = True,
    texts: str | None = None,
    image_components: int | None = None,
    device: str = "cpu",
) -> SplitData:
    """Return the split of that seed; `texts` names text features like `--text-features`.

    Text features are fitted on training texts only, and without the target texts for a method that
    does not use target items (`Learner.uses_target`). With `image_components` images are reduced to
    that many principal components, fitted likewise, as the paper does for shallow methods.
    """
    rows = benchmark.split(split_seed)
    auxiliary = benchmark.auxiliary(rows.auxiliary_images, rows.auxiliary_texts)
    held_out = benchmark.auxiliary(rows.held_out_images, rows.held_out_texts)
    target_texts = benchmark.texts.take(rows.target_texts).items
    extractor = text_features(texts, device)
    extractor.fit(auxiliary.texts.items, *([target_texts] if uses_target else ()))
    split = SplitData(
        training=TrainingSet(
            extract_readable(None, auxiliary.images)[0],
            extractor.transform(auxiliary.texts.items),
            auxiliary.relation,
            extract_readable(None, benchmark.images.take(rows.target_images))[0],
            extractor.transform(target_texts),
        ),
        held_out=AuxiliarySet(
            extract_readable(None, held_out.images)[0],
            extractor.transform(held_out.texts.items),
            held_out.relation,
        ),
        text_features=extractor,
        test=build_test_set(benchmark, rows, extractor),
    )
    return split if image_components is None else _reduce(split, image_components, uses_target)


def build_test_set(
    benchmark: Benchmark,
    rows: SplitRows,
    text_features: TextFeatures,
    image_features: ImageFeatures | None = None,
    part: slice = slice(None),
    track: Track = no_progress,
) -> TestSet:
    """Return the queries of a split and that part of its databases.

    `image_features` are computed for the selected images only, where the benchmark has none.
    """
    classes = benchmark.classes

    def images(numbers: Rows) -> LabeledFeatures:
        selected = benchmark.images.take(numbers)
        features, readable, _ = extract_readable(image_features, selected, track)
        return LabeledFeatures(features, label_matrix_for(readable, classes))

    def texts(numbers: Rows) -> LabeledFeatures:
        selected = benchmark.texts.take(numbers)
        features = text_features.transform(selected.items)
        return LabeledFeatures(features, label_matrix_for(selected, classes))

    database_images, database_texts = rows.database_images[part], rows.database_texts[part]
    if not len(database_images) or not len(database_texts):
        size = min(len(rows.database_images), len(rows.database_texts))
        raise DataError(f"A database of {size} items has fewer items than parts. Use fewer parts.")
    return TestSet(
        images(rows.query_images), texts(rows.query_texts),
        images(database_images), texts(database_texts),
    )  # fmt: skip


def label_matrix_for(items: Collection[Any], classes: list[str]) -> LabelMatrix:
    """Return which of these classes each item has; other labels are ignored."""
    return label_matrix(items.labels or (), classes, ignore_others=True)


def _reduce(split: SplitData, components: int, uses_target: bool) -> SplitData:
    """Return the split with images as principal components of its training images."""
    training, target = split.training, split.training.target_images
    fitted_on = [training.images, *([target] if uses_target and target is not None else [])]
    rows = np.concatenate(fitted_on)
    if rows.ndim != 2 or not 1 <= components <= min(rows.shape):
        raise DataError(
            f"image_components = {components} is too large for {len(rows)} training images with "
            f"{rows.shape[1:]} features. Use a smaller number."
        )
    pca = PCA(components, svd_solver="covariance_eigh").fit(rows)

    def project(features: Features) -> Features:
        return np.asarray(pca.transform(features), np.float32) if len(features) else features

    return split.replace_images(
        project(training.images),
        None if target is None else project(target),
        project(split.held_out.images),
        project(split.test.query_images.features),
        project(split.test.database_images.features),
    )


def _map_images(
    benchmark: Benchmark, function: Callable[[Images], tuple[Images, list[Problem]]]
) -> tuple[Benchmark, list[Problem]]:
    """Apply `function` to the auxiliary and to the target images."""
    auxiliary, problems = function(benchmark.auxiliary_images)
    if benchmark.protocol != "nus-wide":
        images, more = function(benchmark.images)
        return replace(benchmark, auxiliary_images=auxiliary, images=images), problems + more
    # In-domain, target and auxiliary set are the same pairs: drop the text of a lost image.
    names, texts = set(auxiliary.ids), benchmark.auxiliary_texts
    texts = texts.take([row for row, name in enumerate(texts.ids) if name in names])
    return replace(
        benchmark, auxiliary_images=auxiliary, auxiliary_texts=texts, images=auxiliary, texts=texts
    ), problems


def _readable(images: Images, size: int, track: Track) -> tuple[Images, list[Problem]]:
    """Return the images that decode; a machine that scores a part has to know them all."""

    def find_fault(path: Path) -> str | None:
        pixels = decode_isolated(path, size)
        return pixels if isinstance(pixels, str) else None

    if images.features is not None:
        return images, []
    with ThreadPoolExecutor(cpu_count()) as pool:  # each waits for a process
        checks = track(pool.map(find_fault, images.items), "checking images", total=len(images))
        faults = {row: reason for row, reason in enumerate(checks) if reason is not None}
    problems = [Problem(images.describe(row), images.ids[row], why) for row, why in faults.items()]
    return images.take([row for row in range(len(images)) if row not in faults]), problems
