"""What scores are counted from: codes and labels of queries and database, both ways."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.runs.catalog import Modality
from transhash.codes import Codes
from transhash.data.benchmark import Benchmark
from transhash.data.collection import Collection, Images, Medium, Problem, Texts, label_matrix
from transhash.data.manifest import read_images, read_texts
from transhash.runs.encoder import Encoder
from transhash.errors import DataError
from transhash.features.decode import open_image
from transhash.progress import Track, silent

Matrix = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
AMONG: dict[str, Modality] = {"image_to_text": "texts", "text_to_image": "images"}


class Direction(NamedTuple):
    """Queries of one kind against a database of the other."""

    queries: Codes
    database: Codes
    query_labels: Matrix
    database_labels: Matrix


def split_directions(
    encoder: Encoder,
    benchmark: Benchmark,
    split_seed: int = 0,
    rows: slice = slice(None),
    track: Track = silent,
) -> dict[str, Direction]:
    """A split's queries against its databases, or against those rows of them only."""
    split, classes = benchmark.split(split_seed), benchmark.classes

    def images(part: Rows) -> tuple[Codes, Matrix]:
        codes, kept, _ = encoder.encode_images(benchmark.images.take(part), track)
        return codes, _matrix(kept, classes)

    def texts(part: Rows) -> tuple[Codes, Matrix]:
        taken = benchmark.texts.take(part)
        return encoder.encode_texts(taken), _matrix(taken, classes)

    base_images, base_texts = split.database_images[rows], split.database_texts[rows]
    if not len(base_images) or not len(base_texts):
        smaller = min(len(split.database_images), len(split.database_texts))
        raise DataError(f"a database of {smaller} items cannot be cut that often; take fewer parts")
    return _both(
        images(split.query_images),
        texts(split.query_texts),
        images(base_images),
        texts(base_texts),
    )


@dataclass(frozen=True)
class Decodable:
    """In the place of features: tells which images can be read, and computes nothing.

    A split is drawn among the readable images, so a shard has to know which they are.
    """

    size: int  # pixels that will be asked for

    def extract(
        self, paths: Sequence[Path], track: Track = silent
    ) -> tuple[npt.NDArray[Any], list[tuple[int, str]]]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without the lock
            reasons = pool.map(self._wrong_with, paths)
            seen = enumerate(track(reasons, "looking at images", total=len(paths)))
            bad = [(i, reason) for i, reason in seen if reason is not None]
        return np.zeros((len(paths) - len(bad), 0), np.float32), bad

    def _wrong_with(self, path: Path) -> str | None:
        opened = open_image(path, self.size)
        return opened if isinstance(opened, str) else None


@dataclass(frozen=True)
class Labelled:
    """Labelled items of both kinds: some of each ask, all of the other kind are the database."""

    images: Images
    texts: Texts
    asking_images: Rows
    asking_texts: Rows
    classes: list[str]  # those that occur on both sides; the others relate nothing
    unlabelled: int  # rows left out

    def labels_of(self, items: Collection[Medium]) -> Matrix:
        return _matrix(items, self.classes)


def read_labelled(images: Path, texts: Path, queries: int = 1000, seed: int = 0) -> Labelled:
    """The labelled items of two sources, and up to `queries` of each that ask."""
    if queries < 1:
        raise DataError(f"the number of queries must be 1 or more, got {queries}")
    all_images, all_texts = read_images(images), read_texts(texts)
    some_images, some_texts = _with_labels(all_images, images), _with_labels(all_texts, texts)
    classes = sorted(_names(some_images) & _names(some_texts))
    if not classes:
        raise DataError(
            f"no label of {images} occurs in {texts}; use the same label words for both"
        )
    # Drawn before anything is read, so that the same items ask whatever ranks them.
    rng = np.random.default_rng([seed, 0xA5C])
    return Labelled(
        some_images,
        some_texts,
        np.sort(rng.permutation(len(some_images))[:queries]),
        np.sort(rng.permutation(len(some_texts))[:queries]),
        classes,
        len(all_images) - len(some_images) + len(all_texts) - len(some_texts),
    )


def labelled_directions(
    encoder: Encoder, items: Labelled, track: Track = silent
) -> tuple[dict[str, Direction], list[Problem]]:
    """Everything encoded, and the images that cannot be read."""
    codes, images, bad = encoder.encode_images(items.images, track)
    of_images = items.labels_of(images)
    asking = {items.images.ids[row] for row in items.asking_images}
    rows = np.array([i for i, name in enumerate(images.ids) if name in asking], np.int64)
    text_codes, of_texts = encoder.encode_texts(items.texts), items.labels_of(items.texts)
    directions = _both(
        (codes[rows], of_images[rows]),
        (text_codes[items.asking_texts], of_texts[items.asking_texts]),
        (codes, of_images),
        (text_codes, of_texts),
    )
    return directions, bad


def labelled_queries(
    encoder: Encoder, items: Labelled, track: Track = silent
) -> tuple[dict[str, tuple[Codes, Matrix]], list[Problem]]:
    """Codes and labels of the asking items only, and the images that cannot be read."""
    codes, images, bad = encoder.encode_images(items.images.take(items.asking_images), track)
    texts = items.texts.take(items.asking_texts)
    queries = {
        "image_to_text": (codes, items.labels_of(images)),
        "text_to_image": (encoder.encode_texts(texts), items.labels_of(texts)),
    }
    return queries, bad


def _both(
    query_images: tuple[Codes, Matrix],
    query_texts: tuple[Codes, Matrix],
    images: tuple[Codes, Matrix],
    texts: tuple[Codes, Matrix],
) -> dict[str, Direction]:
    return {
        "image_to_text": Direction(query_images[0], texts[0], query_images[1], texts[1]),
        "text_to_image": Direction(query_texts[0], images[0], query_texts[1], images[1]),
    }


def _matrix(items: Collection[Medium], classes: Sequence[str]) -> Matrix:
    return label_matrix(items.labels or (), classes, ignore_others=True)


def _with_labels(items: Collection[Medium], source: Path) -> Collection[Medium]:
    kept = [row for row, names in enumerate(items.labels or ()) if names]
    if not kept:
        raise DataError(
            f"{source} holds no label; scores need a column `labels`, several joined by |"
        )
    return items.take(kept)


def _names(items: Collection[Medium]) -> set[str]:
    return set().union(*(items.labels or ()))
