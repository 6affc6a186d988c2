"""Benchmarks: a three-part folder, and seeded splits by the paper's two protocols."""

from __future__ import annotations

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
from transhash.errors import DataError
from transhash.storage import read_json

PROTOCOLS = ("imagenet-yahooqa", "nus-wide")
Supervision = Literal["labels", "pairs"]  # what relates auxiliary items


@dataclass(frozen=True)
class SplitSizes:
    """How many items each part of a split takes; the paper's numbers, Section 4."""

    queries: int = 2000  # of each modality
    auxiliary: int = 2000  # images, and as many texts, drawn independently
    target: int = 500  # unlabelled images, and as many texts, out of the databases
    per_class: int = 30  # nus-wide only: training images, and texts, of each class


@dataclass(frozen=True)
class SplitRows:
    """Row numbers of one seeded split, the same for every method."""

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
    """Auxiliary pairs and target items, all labelled; what `fit` may see is decided by `split`."""

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
        """Those items and their relation, of labels or of pairs alone."""
        x, y = self.auxiliary_images.take(images), self.auxiliary_texts.take(texts)
        if self.supervision == "pairs":
            x, y = x.without_labels(), y.without_labels()
        return AuxiliaryCollection.from_collections(x, y, labels_only=True)

    def split(self, seed: int = 0) -> SplitRows:
        """Taught by pairs, the auxiliary texts are those of the auxiliary images."""
        rng = np.random.default_rng([seed, 0x7EA5])  # splits have a stream of their own
        found = self._in_domain(rng) if self.protocol == "nus-wide" else self._cross_domain(rng)
        if self.supervision == "labels":
            return found
        return replace(
            found,
            auxiliary_texts=self._paired_texts(found.auxiliary_images),
            held_out_texts=self._paired_texts(found.held_out_images),
        )

    def _paired_texts(self, images: Rows) -> Rows:
        """The texts of these auxiliary images' own rows."""
        wanted = {self.auxiliary_images.ids[row] for row in images}
        ids = self.auxiliary_texts.ids
        return np.array([row for row, name in enumerate(ids) if name in wanted], np.int64)

    def _cross_domain(self, rng: np.random.Generator) -> SplitRows:
        """2,000 + 2,000 auxiliary items and 500 + 500 unlabelled items that are no queries."""
        sizes = self.sizes
        aux_x, held_x = _draw(rng, len(self.auxiliary_images), sizes.auxiliary, "auxiliary images")
        aux_y, held_y = _draw(rng, len(self.auxiliary_texts), sizes.auxiliary, "auxiliary texts")
        query_x, base_x = _draw(rng, len(self.images), sizes.queries, "target images")
        query_y, base_y = _draw(rng, len(self.texts), sizes.queries, "target texts")
        return SplitRows(
            aux_x,
            aux_y,
            held_x,
            held_y,
            query_x,
            query_y,
            base_x,
            base_y,
            np.sort(rng.permutation(base_x)[: sizes.target]),
            np.sort(rng.permutation(base_y)[: sizes.target]),
        )

    def _in_domain(self, rng: np.random.Generator) -> SplitRows:
        """2,000 query pairs; 30 images and 30 texts a class out of the rest, never of one pair."""
        n = len(self.images)
        query, base = _draw(rng, n, self.sizes.queries, "pairs")
        of_class: dict[str, list[int]] = {}
        labels = _labels(self.images)
        for row in rng.permutation(base):
            for name in labels[row]:
                of_class.setdefault(name, []).append(int(row))
        taken: set[int] = set()
        drawn: tuple[list[int], list[int]] = ([], [])
        held: tuple[list[int], list[int]] = ([], [])
        wanted = self.sizes.per_class
        for name in sorted(of_class):
            free = [row for row in of_class[name] if row not in taken]
            for part, start in ((0, 0), (1, wanted)):
                drawn[part].extend(free[start : start + wanted])
            # As many again, out of the database too, to choose hyper-parameters on.
            held[0].extend(free[2 * wanted : 3 * wanted])
            held[1].extend(free[3 * wanted : 4 * wanted])
            taken.update(free[: 4 * wanted])
        left = np.array([row for row in base if row not in taken], dtype=np.int64)
        target = rng.permutation(left)[: 2 * self.sizes.target]
        half = len(target) // 2
        aux_x, aux_y, held_x, held_y = (
            np.sort(np.array(rows, dtype=np.int64)) for rows in (*drawn, *held)
        )
        return SplitRows(
            aux_x,
            aux_y,
            held_x,
            held_y,
            query,
            query,
            base,
            base,
            np.sort(target[:half]),
            np.sort(target[half:]),
        )


def load_benchmark(folder: str | Path, sizes: SplitSizes | None = None) -> Benchmark:
    """A three-part folder: auxiliary.tsv, images.tsv, texts.tsv (see docs/data.md)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder; give one with auxiliary.tsv, images.tsv, texts.tsv"
        )
    protocol, stated = _described(folder / "benchmark.json")
    sizes = sizes or stated
    auxiliary = read_manifest(folder / "auxiliary.tsv")
    pairs_x = manifest_images(auxiliary, labelled=True)
    pairs_y = manifest_texts(auxiliary, labelled=True)
    if protocol == "nus-wide":
        return Benchmark(folder.name, protocol, pairs_x, pairs_y, pairs_x, pairs_y, sizes)
    images = manifest_images(read_manifest(folder / "images.tsv"), labelled=True)
    texts = manifest_texts(read_manifest(folder / "texts.tsv"), labelled=True)
    return Benchmark(folder.resolve().name, protocol, pairs_x, pairs_y, images, texts, sizes)


def _described(path: Path) -> tuple[str, SplitSizes]:
    """Protocol and sizes by benchmark.json; the paper's where it does not say."""
    described = read_json(path) if path.exists() else {}
    if not isinstance(described, dict) or not isinstance(described.get("sizes", {}), dict):
        raise DataError(f'{path} must be {{"protocol": ..., "sizes": {{"queries": 2000, ...}}}}')
    protocol = described.get("protocol", "imagenet-yahooqa")
    if protocol not in PROTOCOLS:
        raise DataError(f"{path}: protocol must be one of {PROTOCOLS}")
    known = {field.name for field in fields(SplitSizes)}
    sizes = {name: size for name, size in described.get("sizes", {}).items() if name in known}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 0:
            raise DataError(f"{path}: the size of {name} must be a number of items, not {size!r}")
    return protocol, SplitSizes(**sizes)


def shrink_sizes(benchmark: Benchmark) -> SplitSizes:
    """Sizes for small data: the paper's where they fit, else a third of what there is."""
    paper = benchmark.sizes
    target = min(len(benchmark.images), len(benchmark.texts))
    auxiliary = min(len(benchmark.auxiliary_images), len(benchmark.auxiliary_texts))
    return SplitSizes(
        queries=min(paper.queries, target // 3),
        auxiliary=min(paper.auxiliary, auxiliary * 4 // 5),
        target=min(paper.target, target // 3),
        per_class=paper.per_class,
    )


def _draw(rng: np.random.Generator, n: int, wanted: int, what: str) -> tuple[Rows, Rows]:
    """`wanted` rows and the rest, both ascending."""
    if wanted >= n:
        raise DataError(
            f"the split takes {wanted} of the {what} and needs some left over, but there are {n}; "
            "ask for smaller sizes"
        )
    order = rng.permutation(n)
    return np.sort(order[:wanted]), np.sort(order[wanted:])


def _labels(collection: Collection[ItemData]) -> list[frozenset[str]]:
    if collection.labels is None:
        raise DataError("a benchmark needs labels on every part; add a labels column")
    return list(collection.labels)
