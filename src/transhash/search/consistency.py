"""Compare an index with the catalog, and repair the index from the catalog."""

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
from transhash.progress import phase, tracked
from transhash.search.catalog import Catalog

_CHUNK_ROWS = 100_000


@dataclass(frozen=True)
class IndexDifference:
    """Numbers of items on which an index and the catalog differ."""

    missing: Ids  # only in the catalog
    mismatched: Ids  # with another code in the index
    orphaned: Ids  # only in the index

    def __bool__(self) -> bool:
        return bool(len(self.missing) or len(self.mismatched) or len(self.orphaned))


def check_catalog(run: Path) -> None:
    """Refuse a catalog that is missing or empty although there are codes: a new one lacks them."""
    path = run / "catalog.sqlite"
    if path.exists() and path.stat().st_size:
        return
    for modality in MODALITIES:
        with contextlib.suppress(IndexNotFoundError):
            index = open_index(run / "index" / modality, read_only=True)
            count = len(index)
            index.close()
            if count:
                raise DataError(
                    f"{path} is missing or empty, but {run / 'index' / modality} has {count:,} "
                    "codes. Restore a backup, or delete the index folder, then index again."
                )


def check_model(catalog: Catalog, run: Path, digest: str) -> None:
    """Refuse a catalog whose codes are of another model than the run's."""
    if catalog.get_or_set("model", digest) != digest:
        raise DataError(
            f"{catalog.path} was built with a different model than {run}. Restore that model, or "
            "index into a new run."
        )


@phase("comparing index and catalog")
def compare(catalog: Catalog, modality: Modality, index: Index) -> IndexDifference:
    """Compare all codes of an index with those of the catalog."""
    numbers, packed = catalog.codes(modality, index.bits // 8)
    index_numbers, codes = index.export()
    rows = np.minimum(np.searchsorted(index_numbers, numbers), max(0, len(index_numbers) - 1))
    in_both = np.zeros(len(numbers), np.bool_)
    if len(index_numbers):
        in_both = index_numbers[rows] == numbers
    differs = np.zeros(len(numbers), np.bool_)
    differs[in_both] = (codes.packed[rows[in_both]] != packed[in_both]).any(axis=1)
    orphaned = index_numbers[~np.isin(index_numbers, numbers, assume_unique=True)]
    return IndexDifference(numbers[~in_both], numbers[differs], orphaned)


def repair_index(
    catalog: Catalog, modality: Modality, index: Index, difference: IndexDifference
) -> None:
    """Change the index so that it has the codes of the catalog."""
    copy_codes(catalog, index, np.union1d(difference.missing, difference.mismatched))
    if len(difference.orphaned):
        index.remove(difference.orphaned)


def complete_pending(catalog: Catalog, index_url: str, indexes: dict[Modality, Index]) -> int:
    """Finish the changes that an earlier writer left incomplete; return the number of items."""
    numbers = sorted(catalog.pending(index_url))
    if not numbers:
        return 0
    items = catalog.get(numbers)
    removed = np.array([number for number in numbers if number not in items], np.int64)
    for modality, index in indexes.items():
        present = sorted(n for n, item in items.items() if item.modality == modality)
        copy_codes(catalog, index, np.array(present, np.int64))
        index.remove(removed)
    catalog.mark_done(index_url, numbers)
    return len(numbers)


def copy_codes(catalog: Catalog, index: Index, numbers: npt.NDArray[np.int64]) -> None:
    """Write the catalog's codes of these items to the index."""
    for start in tracked(range(0, len(numbers), _CHUNK_ROWS), "copying codes"):
        chunk = numbers[start : start + _CHUNK_ROWS].tolist()
        items = catalog.get(chunk)
        packed = b"".join(items[number].code for number in chunk)
        rows = np.frombuffer(packed, np.uint8).reshape(len(chunk), index.bits // 8)
        index.update(np.array(chunk, np.int64), Codes(rows, index.bits))
