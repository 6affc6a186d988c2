"""Scores of the rankings that an engine gives, approximate ones included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Collection, Modality, text_keys
from transhash.errors import DataError, EngineError, IndexNotFoundError
from transhash.evaluation import DistanceHistogram, result_tie_groups
from transhash.index import Index, open_index
from transhash.index.base import Ids
from transhash.progress import Track, no_progress
from transhash.scoring.directions import AMONG, Direction, LabeledCodes, TieGroups
from transhash.scoring.labeled_files import LabelledFiles
from transhash.search.engine import SearchEngine, index_url
from transhash.training.split_data import LabelMatrix, label_matrix_for

_PAIRS = 4_000_000  # of queries and items ranked at a time: about 300 MB on the way


def backend_histograms(
    url: str, directions: Mapping[str, Direction], track: Track = no_progress
) -> tuple[dict[str, TieGroups], int]:
    """The databases ranked by the engine at `url`, and how many codes it had to be sent.

    Row numbers are the ids there. What is there already is not sent again; a place that holds
    anything else is refused before anything is written.
    """
    places = {name: _place(url, AMONG[name]) for name in directions}
    for name, direction in directions.items():
        _check_free(places[name], direction.database)
    histograms, sent = {}, 0
    for name, direction in directions.items():
        codes, ids = direction.database, np.arange(len(direction.database))
        index = open_index(places[name], codes.bits)
        try:
            sent += index.ingest(ids, codes, track)
            if len(index) != len(codes):
                raise EngineError(
                    f"{places[name]} holds {len(index):,} codes after {len(codes):,} were sent; "
                    "give the same command again"
                )
            index.wait_until_ready()
            histograms[name] = _rank(
                index, ids, LabeledCodes(direction.queries, direction.query_labels, direction.weights),
                direction.database_labels, track,
            )  # fmt: skip
        finally:
            index.close()
    return histograms, sent


def index_histograms(
    engine: SearchEngine,
    items: LabelledFiles,
    queries: Mapping[str, LabeledCodes],
    track: Track = no_progress,
) -> tuple[dict[str, TieGroups], dict[Modality, int]]:
    """The index as it is served, ranked for the asking items; other items in it are passed over.

    Also how many labelled items of each kind are not in it.
    """
    databases: dict[Modality, Collection[Any]] = {"images": items.images, "texts": items.texts}
    histograms, missing = {}, {}
    for name, asked in queries.items():
        modality = AMONG[name]
        numbers = _numbers(engine, modality, databases[modality])
        there = numbers >= 0
        missing[modality] = int((~there).sum())
        if not there.any():
            raise DataError(
                f"none of the {len(there):,} labelled {modality} is in the index; "
                f"add them with: transhash index RUN --{modality} FILE --into URL"
            )
        histograms[name] = _rank(
            engine.indexes[modality], numbers[there], asked,
            label_matrix_for(databases[modality], items.classes)[there], track,
        )  # fmt: skip
    return histograms, missing


def _rank(
    index: Index, ids: Ids, asked: LabeledCodes, labels: LabelMatrix, track: Track
) -> TieGroups:
    """Whole rankings, counted block by block; row i of `labels` belongs to ids[i]."""
    queries, query_labels, weights = asked
    order = np.argsort(ids)
    ordered = ids[order]
    size = len(index)
    step = max(1, _PAIRS // size)
    parts = []
    for start in track(range(0, len(queries), step), "ranking"):
        block = slice(start, start + step)
        found = index.search(queries[block], size, None if weights is None else weights[block])
        place = np.minimum(np.searchsorted(ordered, found.ids), len(ordered) - 1)
        rows = np.where(ordered[place] == found.ids, order[place], -1)
        parts.append(
            DistanceHistogram.from_search_results(
                rows, found.distances, query_labels[block], labels, index.bits
            )
            if found.costs is None
            else result_tie_groups(rows, found.costs, query_labels[block], labels)
        )
    if weights is not None:
        return parts
    return DistanceHistogram(
        np.concatenate([part.items for part in parts]),
        np.concatenate([part.relevant for part in parts]),
    )


def _check_free(place: str, codes: Codes) -> None:
    """Refuses a place with anything but some of these codes under their row numbers."""
    try:
        index = open_index(place, codes.bits, read_only=True)
    except IndexNotFoundError:
        return
    try:
        ids, held = index.export()
    finally:
        index.close()
    known = ids < len(codes)
    same = (codes[ids[known]].packed == held[known].packed).all(axis=1)
    others = len(ids) - int(same.sum())
    if others:
        raise EngineError(
            f"{place} holds {others:,} codes that are not of this run's split; "
            "name an empty place for --index"
        )


def _place(url: str, modality: Modality) -> str:
    return url if url.endswith(":") else index_url(url, modality)  # "faiss:" is in memory


def _numbers(engine: SearchEngine, modality: Modality, items: Collection[Any]) -> Ids:
    """What the index knows the items by, -1 where it does not know them."""
    keys = text_keys(items) if modality == "texts" else items.ids
    found = [
        engine.catalog.find_by_source(modality, items.source, *both)
        for both in zip(keys, items.ids)
    ]
    numbers = np.array([-1 if item is None else item.number for item in found], np.int64)
    return np.where(np.isin(numbers, engine.indexes[modality].export()[0]), numbers, -1)
