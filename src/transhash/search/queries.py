"""Many queries from one file: search for each of them, and go on after one that fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Collection, Modality
from transhash.data.manifest import manifest_images, manifest_texts, read_manifest
from transhash.errors import DataError
from transhash.index.weighted import RankingMode, query_weights
from transhash.search.catalog import NO_FILTER, SearchFilter
from transhash.search.engine import DEFAULT_RANKING, SearchEngine
from transhash.search.hits import Hits
from transhash.search.keywords import DEFAULT_SEARCH, SearchMode

_CHUNK_ROWS = 64  # queries encoded together: results appear early, and threads have enough work


@dataclass(frozen=True)
class Queries:
    """Texts or images to search with, and the rows or files that cannot be used."""

    items: Collection[Any]
    are_images: bool

    def __len__(self) -> int:
        return len(self.items) + len(self.items.problems)


@dataclass(frozen=True)
class QueryResult:
    """The results of one query, or the reason why there are none."""

    query: str  # its id; of an unusable row the line, of an unusable file the path
    content: str = ""  # the text, or the path of the image
    hits: Hits | None = None
    error: str = ""


def read_queries(source: Path) -> Queries:
    """Read queries from a folder of images or texts, or from a table with one of the two."""
    if source.suffix.lower() == ".npy":
        raise DataError(f"{source} has features. Pass a folder or table of texts or of images.")
    manifest = read_manifest(source)
    if {"image", "text"} <= manifest.columns:
        raise DataError(f"{source} has both columns image and text. Remove one of them.")
    are_images = "image" in manifest.columns
    return Queries((manifest_images if are_images else manifest_texts)(manifest), are_images)


def search_queries(
    engine: SearchEngine,
    queries: Queries,
    k: int = 10,
    modality: Modality = "images",
    ranking: RankingMode = DEFAULT_RANKING,
    *,
    search: SearchMode = DEFAULT_SEARCH,
    filters: SearchFilter = NO_FILTER,
    collapse: bool = True,
) -> Iterator[QueryResult]:
    """Yield the results of each query as soon as they are known, after the unusable rows."""
    items = queries.items
    options = _Options(k, modality, ranking, search, filters, collapse)
    for problem in items.problems:
        yield QueryResult(problem.location, error=problem.reason)
    for start in range(0, len(items), _CHUNK_ROWS):
        chunk = items.take(range(start, min(start + _CHUNK_ROWS, len(items))))
        run = _search_images if queries.are_images else _search_texts
        for i, result in enumerate(run(engine, chunk, options)):
            content = chunk.describe(i) if queries.are_images else chunk.items[i]
            if isinstance(result, Hits):
                yield QueryResult(chunk.ids[i], content, result)
            else:
                yield QueryResult(chunk.ids[i], content, error=result)


class _Options(NamedTuple):
    k: int
    modality: Modality
    ranking: RankingMode
    search: SearchMode
    filters: SearchFilter
    collapse: bool


def _search_texts(
    engine: SearchEngine, texts: Collection[Any], options: _Options
) -> Iterator[Hits | str]:
    k, modality, ranking, search, filters, collapse = options
    try:
        yield from engine.similar_to_texts(
            texts.items, k, modality, ranking, search=search, filters=filters, collapse=collapse
        )
    except DataError as error:
        if len(texts) == 1:
            yield str(error)
            return
        for row in range(len(texts)):
            yield from _search_texts(engine, texts.take([row]), options)


def _search_images(
    engine: SearchEngine, images: Collection[Any], options: _Options
) -> Iterator[Hits | str]:
    from transhash.features.stream import extract_all, require_image_features  # imports torch

    encoder = engine.encoder
    vectors, unreadable = extract_all(require_image_features(encoder.image_features), images.items)
    reasons = dict(unreadable)
    results: Iterator[Hits] = iter(())
    if len(vectors):
        z = encoder.hasher.project_images(np.asarray(vectors))
        codes, weights = Codes.from_projections(z), query_weights(z, options.ranking)
        results = iter(
            engine.similar_to_codes(
                codes, options.k, options.modality, weights,
                filters=options.filters, collapse=options.collapse,
            )
        )  # fmt: skip
    for row in range(len(images)):
        yield reasons[row] if row in reasons else next(results)
