"""Catalog and index as one: what differs between the two, and the index mended from the catalog."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Modality
from transhash.errors import DataError, IndexNotFoundError
from transhash.index import Index, open_index
from transhash.index.base import Ids
from transhash.model.files import model_digest
from transhash.search.catalog import Catalog

_BLOCK = 100_000  # codes of one update


@dataclass(frozen=True)
class IndexDifference:
    """Numbers of items on which the two differ."""

    missing: Ids  # in the catalog alone
    mismatched: Ids  # with another code in the index
    orphaned: Ids  # in the index alone

    def __bool__(self) -> bool:
        return bool(len(self.missing) or len(self.mismatched) or len(self.orphaned))


def check_catalog(run: Path) -> None:
    """Refuses a catalog that is gone or empty beside codes: a new one would disown them all."""
    path = run / "catalog.sqlite"
    if path.exists() and path.stat().st_size:
        return
    for modality in MODALITIES:
        with contextlib.suppress(IndexNotFoundError):
            index = open_index(run / "index" / modality, read_only=True)
            held = len(index)
            index.close()
            if held:
                raise DataError(
                    f"{path} is missing or empty, but {run / 'index' / modality} holds {held:,} "
                    "codes; restore it from a copy, or delete the index and index anew"
                )


def check_model(catalog: Catalog, run: Path) -> None:
    """Refuses codes of another model than the run's: they mean something else."""
    model = model_digest(run)
    if catalog.get_or_set("model", model) != model:
        raise DataError(
            f"{catalog.path} was filled by another model than the one in {run}; restore "
            "that model's files, or index into a run of this one"
        )


def compare(catalog: Catalog, modality: Modality, index: Index) -> IndexDifference:
    """Every code of the one beside every code of the other."""
    numbers, packed = catalog.codes(modality, index.bits // 8)
    held, codes = index.export()
    place = np.minimum(np.searchsorted(held, numbers), max(0, len(held) - 1))
    there = held[place] == numbers if len(held) else np.zeros(len(numbers), np.bool_)
    differs = np.zeros(len(numbers), np.bool_)
    differs[there] = (codes.packed[place[there]] != packed[there]).any(axis=1)
    return IndexDifference(
        numbers[~there], numbers[differs], held[~np.isin(held, numbers, assume_unique=True)]
    )


def repair_index(
    catalog: Catalog, modality: Modality, index: Index, found: IndexDifference
) -> None:
    """The index as the catalog has it."""
    copy_codes(catalog, index, np.union1d(found.missing, found.mismatched))
    if len(found.orphaned):
        index.remove(found.orphaned)


def complete_pending(catalog: Catalog, engine: str, indexes: dict[Modality, Index]) -> int:
    """What an earlier writer began and did not finish; returns of how many items."""
    numbers = np.array(sorted(catalog.pending(engine)), np.int64)
    if not len(numbers):
        return 0
    items = catalog.get(numbers.tolist())
    for modality, index in indexes.items():
        own = [n for n, item in items.items() if item.modality == modality]
        copy_codes(catalog, index, np.array(sorted(own), np.int64))
        index.remove(np.array([n for n in numbers.tolist() if n not in items], np.int64))
    catalog.mark_done(engine, numbers.tolist())
    return len(numbers)


def copy_codes(catalog: Catalog, index: Index, numbers: npt.NDArray[np.int64]) -> None:
    """The catalog's codes of these items into the index."""
    for start in range(0, len(numbers), _BLOCK):
        part = numbers[start : start + _BLOCK].tolist()
        items = catalog.get(part)
        packed = b"".join(items[number].code for number in part)
        rows = np.frombuffer(packed, np.uint8).reshape(len(part), index.bits // 8)
        index.update(np.array(part, np.int64), Codes(rows, index.bits))
