"""Rankings of any index, including approximate ones, as histograms."""

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
from transhash.scoring.directions import RESULT_MODALITY, Direction, LabeledCodes, TieGroups
from transhash.scoring.labeled_files import LabeledFiles
from transhash.search.engine import SearchEngine, index_url
from transhash.training.split_data import LabelMatrix, label_matrix_for

_CHUNK_PAIRS = 4_000_000  # of queries and items ranked at a time: about 300 MB of arrays


def backend_histograms(
    url: str, directions: Mapping[str, Direction], track: Track = no_progress
) -> tuple[dict[str, TieGroups], int]:
    """Rank the databases with the index at `url`; also return how many codes were sent to it.

    Row numbers are the ids. Codes that are already in the index are not sent again. An index with
    other items is an error, raised before anything is written.
    """
    in_memory = url.endswith(":")
    urls = {
        name: url if in_memory else index_url(url, RESULT_MODALITY[name]) for name in directions
    }
    for name, direction in directions.items():
        _check_no_other_items(urls[name], direction.database)
    histograms, sent = {}, 0
    for name, direction in directions.items():
        codes, ids = direction.database, np.arange(len(direction.database))
        queries = LabeledCodes(direction.queries, direction.query_labels, direction.weights)
        with open_index(urls[name], codes.bits) as index:
            sent += index.ingest(ids, codes, track)
            if len(index) != len(codes):
                raise EngineError(
                    f"{urls[name]} has {len(index):,} codes after {len(codes):,} were sent. "
                    "Rerun the command."
                )
            index.wait_until_ready()
            histograms[name] = _rank(index, ids, queries, direction.database_labels, track)
    return histograms, sent


def index_histograms(
    engine: SearchEngine,
    files: LabeledFiles,
    queries: Mapping[str, LabeledCodes],
    track: Track = no_progress,
) -> tuple[dict[str, TieGroups], dict[Modality, int]]:
    """Rank the existing index for the queries; items in it that have no label are ignored.

    Also return how many labeled items of each modality are not in it.
    """
    databases: dict[Modality, Collection[Any]] = {"images": files.images, "texts": files.texts}
    histograms, missing = {}, {}
    for name, codes in queries.items():
        modality = RESULT_MODALITY[name]
        numbers = _item_numbers(engine, modality, databases[modality])
        indexed = numbers >= 0
        missing[modality] = int((~indexed).sum())
        if not indexed.any():
            raise DataError(
                f"None of the {len(indexed):,} labeled {modality} is in the index. "
                f"Run: transhash index RUN --{modality} FILE"
            )
        labels = label_matrix_for(databases[modality], files.classes)[indexed]
        index = engine.indexes[modality]
        histograms[name] = _rank(index, numbers[indexed], codes, labels, track)
    return histograms, missing


def _rank(
    index: Index, ids: Ids, queries: LabeledCodes, labels: LabelMatrix, track: Track
) -> TieGroups:
    """Count complete rankings in blocks of queries; row i of `labels` belongs to ids[i]."""
    codes, query_labels, weights = queries
    order = np.argsort(ids)
    sorted_ids = ids[order]
    size = len(index)
    step = max(1, _CHUNK_PAIRS // size)
    parts = []
    for start in track(range(0, len(codes), step), "ranking"):
        block = slice(start, start + step)
        ranking = index.search(codes[block], size, None if weights is None else weights[block])
        place = np.minimum(np.searchsorted(sorted_ids, ranking.ids), len(sorted_ids) - 1)
        rows = np.where(sorted_ids[place] == ranking.ids, order[place], -1)
        parts.append(
            DistanceHistogram.from_search_results(
                rows, ranking.distances, query_labels[block], labels, index.bits
            )
            if ranking.costs is None
            else result_tie_groups(rows, ranking.costs, query_labels[block], labels)
        )
    if weights is not None:
        return parts
    return DistanceHistogram(
        np.concatenate([part.items for part in parts]),
        np.concatenate([part.relevant for part in parts]),
    )


def _check_no_other_items(url: str, codes: Codes) -> None:
    """Raise if the index has anything but some of these codes under their row numbers."""
    try:
        with open_index(url, codes.bits, read_only=True) as index:
            ids, stored = index.export()
    except IndexNotFoundError:
        return
    known = ids < len(codes)
    same = (codes[ids[known]].packed == stored[known].packed).all(axis=1)
    others = len(ids) - int(same.sum())
    if others:
        raise EngineError(
            f"{url} has {others:,} codes that are not part of this run's split. "
            "Pass an empty index as --index."
        )


def _item_numbers(engine: SearchEngine, modality: Modality, items: Collection[Any]) -> Ids:
    """Return the numbers of the items in the index, -1 for items that are not in it."""
    keys = text_keys(items) if modality == "texts" else items.ids
    matches = [
        engine.catalog.find_by_source(modality, items.source, key, item_id)
        for key, item_id in zip(keys, items.ids)
    ]
    numbers = np.array([-1 if item is None else item.number for item in matches], np.int64)
    return np.where(np.isin(numbers, engine.indexes[modality].export()[0]), numbers, -1)
