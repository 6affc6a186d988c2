"""Benchmark folders, and seeded splits by the paper's two protocols."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np

from transhash.data.collection import (
    AuxiliaryCollection,
    Collection,
    Images,
    ItemData,
    Problem,
    Texts,
)
from transhash.data.manifest import manifest_images, manifest_texts, read_manifest
from transhash.data.relation import Rows
from transhash.errors import DataError, check_type
from transhash.storage import read_json

PROTOCOLS = ("imagenet-yahooqa", "nus-wide")
Supervision = Literal["labels", "pairs"]  # source of the relation S


@dataclass(frozen=True)
class SplitSizes:
    """Number of items in each part of a split; the defaults are from Section 4 of the paper."""

    queries: int = 2000  # of each modality
    auxiliary: int = 2000  # images, and as many texts, drawn independently
    target: int = 500  # unlabeled images, and as many texts, from the databases
    per_class: int = 30  # nus-wide only: training images, and texts, per class


@dataclass(frozen=True)
class SplitRows:
    """Row numbers of one seeded split."""

    auxiliary_images: Rows
    auxiliary_texts: Rows
    held_out_images: Rows
    held_out_texts: Rows
    query_images: Rows
    query_texts: Rows
    database_images: Rows
    database_texts: Rows
    target_images: Rows
    target_texts: Rows


@dataclass(frozen=True)
class Benchmark:
    """Labeled auxiliary pairs and target items. `split` decides which of them `fit` sees."""

    name: str
    protocol: str
    auxiliary_images: Images
    auxiliary_texts: Texts
    images: Images  # target
    texts: Texts  # target
    sizes: SplitSizes
    supervision: Supervision = "labels"

    @property
    def classes(self) -> list[str]:
        return sorted(
            set().union(*_labels(self.auxiliary_images)) & set().union(*_labels(self.texts))
            | set().union(*_labels(self.images)) & set().union(*_labels(self.texts))
        )

    @property
    def problems(self) -> tuple[Problem, ...]:
        parts = (self.auxiliary_images, self.auxiliary_texts, self.images, self.texts)
        return tuple(dict.fromkeys(problem for part in parts for problem in part.problems))

    def auxiliary(self, images: Rows, texts: Rows) -> AuxiliaryCollection:
        x, y = self.auxiliary_images.take(images), self.auxiliary_texts.take(texts)
        if self.supervision == "pairs":
            x, y = x.without_labels(), y.without_labels()
        return AuxiliaryCollection.from_collections(x, y, labels_only=True)

    def split(self, seed: int = 0) -> SplitRows:
        """Draw a split. With pair supervision, auxiliary texts belong to auxiliary images."""
        rng = np.random.default_rng([seed, 0x7EA5])  # an independent random stream for splits
        rows = self._in_domain(rng) if self.protocol == "nus-wide" else self._cross_domain(rng)
        if self.supervision == "labels":
            return rows
        return replace(
            rows,
            auxiliary_texts=self._paired_texts(rows.auxiliary_images),
            held_out_texts=self._paired_texts(rows.held_out_images),
        )

    def _paired_texts(self, images: Rows) -> Rows:
        names = {self.auxiliary_images.ids[row] for row in images}
        ids = self.auxiliary_texts.ids
        return np.array([row for row, name in enumerate(ids) if name in names], np.int64)

    def _cross_domain(self, rng: np.random.Generator) -> SplitRows:
        """Draw auxiliary items, queries, and unlabeled target items that are not queries."""
        sizes = self.sizes
        aux_x, held_x = _draw(rng, len(self.auxiliary_images), sizes.auxiliary, "auxiliary images")
        aux_y, held_y = _draw(rng, len(self.auxiliary_texts), sizes.auxiliary, "auxiliary texts")
        query_x, base_x = _draw(rng, len(self.images), sizes.queries, "target images")
        query_y, base_y = _draw(rng, len(self.texts), sizes.queries, "target texts")
        return SplitRows(
            auxiliary_images=aux_x,
            auxiliary_texts=aux_y,
            held_out_images=held_x,
            held_out_texts=held_y,
            query_images=query_x,
            query_texts=query_y,
            database_images=base_x,
            database_texts=base_y,
            target_images=np.sort(rng.permutation(base_x)[: sizes.target]),
            target_texts=np.sort(rng.permutation(base_y)[: sizes.target]),
        )

    def _in_domain(self, rng: np.random.Generator) -> SplitRows:
        """Draw query pairs, then images and texts per class from the rest, never of one pair."""
        n = len(self.images)
        query, base = _draw(rng, n, self.sizes.queries, "pairs")
        class_rows: dict[str, list[int]] = {}
        labels = _labels(self.images)
        for row in rng.permutation(base):
            for name in labels[row]:
                class_rows.setdefault(name, []).append(int(row))
        used: set[int] = set()
        # Auxiliary images and texts, then as many held out for choosing hyperparameters.
        parts: tuple[list[int], ...] = ([], [], [], [])
        count = self.sizes.per_class
        for name in sorted(class_rows):
            free = [row for row in class_rows[name] if row not in used]
            for i, part in enumerate(parts):
                part.extend(free[i * count : (i + 1) * count])
            used.update(free[: 4 * count])
        rest = np.array([row for row in base if row not in used], dtype=np.int64)
        target = rng.permutation(rest)[: 2 * self.sizes.target]
        half = len(target) // 2
        aux_x, aux_y, held_x, held_y = (np.sort(np.array(part, dtype=np.int64)) for part in parts)
        return SplitRows(
            auxiliary_images=aux_x,
            auxiliary_texts=aux_y,
            held_out_images=held_x,
            held_out_texts=held_y,
            query_images=query,
            query_texts=query,
            database_images=base,
            database_texts=base,
            target_images=np.sort(target[:half]),
            target_texts=np.sort(target[half:]),
        )


def load_benchmark(folder: str | Path, sizes: SplitSizes | None = None) -> Benchmark:
    """Read a benchmark folder: auxiliary.tsv, images.tsv and texts.tsv (see docs/benchmarks.md)."""
    check_type(folder, (str, os.PathLike), "The benchmark", "the path of its folder")
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder. Pass one with auxiliary.tsv, images.tsv and texts.tsv."
        )
    protocol, default_sizes = _read_description(folder / "benchmark.json")
    auxiliary = read_manifest(folder / "auxiliary.tsv")
    pairs_x = manifest_images(auxiliary, labeled=True)
    pairs_y = manifest_texts(auxiliary, labeled=True)
    images, texts = pairs_x, pairs_y
    if protocol != "nus-wide":
        images = manifest_images(read_manifest(folder / "images.tsv"), labeled=True)
        texts = manifest_texts(read_manifest(folder / "texts.tsv"), labeled=True)
    return Benchmark(
        name=folder.resolve().name,  # not empty for "."
        protocol=protocol,
        auxiliary_images=pairs_x,
        auxiliary_texts=pairs_y,
        images=images,
        texts=texts,
        sizes=sizes or default_sizes,
    )


def _read_description(path: Path) -> tuple[str, SplitSizes]:
    """Return protocol and sizes from benchmark.json, by default those of the paper."""
    description = read_json(path) if path.exists() else {}
    if not isinstance(description, dict) or not isinstance(description.get("sizes", {}), dict):
        raise DataError(
            f"{path} is not a benchmark description. "
            'Write {"protocol": ..., "sizes": {"queries": 2000, ...}}.'
        )
    protocol = description.get("protocol", "imagenet-yahooqa")
    if protocol not in PROTOCOLS:
        raise DataError(
            f"Unknown protocol {protocol!r} in {path}. Choose from: {', '.join(PROTOCOLS)}."
        )
    names = {field.name for field in fields(SplitSizes)}
    sizes = {name: size for name, size in description.get("sizes", {}).items() if name in names}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 0:
            raise DataError(f"{path} has the size {name} = {size!r}. Use a number of items.")
    return protocol, SplitSizes(**sizes)


def shrink_sizes(benchmark: Benchmark) -> SplitSizes:
    """Return the sizes of the benchmark, reduced if it has too few items for them."""
    sizes = benchmark.sizes
    target = min(len(benchmark.images), len(benchmark.texts))
    auxiliary = min(len(benchmark.auxiliary_images), len(benchmark.auxiliary_texts))
    return SplitSizes(
        queries=min(sizes.queries, target // 3),
        auxiliary=min(sizes.auxiliary, auxiliary * 4 // 5),
        target=min(sizes.target, target // 3),
        per_class=sizes.per_class,
    )


def _draw(rng: np.random.Generator, n: int, count: int, name: str) -> tuple[Rows, Rows]:
    """Return `count` rows and the rest, both ascending."""
    if count >= n:
        raise DataError(
            f"The split takes {count} {name} and needs a rest, but there are only {n}. "
            "Set smaller sizes."
        )
    order = rng.permutation(n)
    return np.sort(order[:count]), np.sort(order[count:])


def _labels(collection: Collection[ItemData]) -> list[frozenset[str]]:
    if collection.labels is None:
        raise DataError(f"{collection.source} has no labels. Add a labels column.")
    return list(collection.labels)
