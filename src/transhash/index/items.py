"""Items sorted by id, in memory or in one .npy file: what the two plain engines stand on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes, check_bits
from transhash.errors import DataError, EngineError, NoIndexError
from transhash.index.base import Ids, as_ids, check_items
from transhash.storage import WriterLock

FILE = "items.npy"


class SortedItems:
    """add, update, remove and export; every change rewrites the file, so keep it for small sets."""

    engine = ""

    def __init__(self, bits: int, folder: Path | None = None, *, read_only: bool = False) -> None:
        check_bits(bits)
        self._bits = bits
        self._folder = folder
        self._read_only = read_only
        self._ids = np.empty(0, np.int64)
        self._packed = np.empty((0, bits // 8), np.uint8)
        self._lock = None if folder is None or read_only else WriterLock(folder)

    @classmethod
    def open(cls, folder: Path | None, bits: int | None, *, read_only: bool = False) -> Self:
        path = None if folder is None else folder / FILE
        if path is None or not path.exists():
            if bits is None:
                place = "an index in memory" if path is None else f"a new index at {folder}"
                raise DataError(f"{place} needs its code length; pass bits=")
            if path is not None and read_only:
                raise NoIndexError(folder)
            return cls(bits, folder, read_only=read_only)
        items = _read(path)
        stored = items["code"].shape[1] * 8
        if bits not in (None, stored):
            raise EngineError(f"{folder} holds {stored}-bit codes, not {bits}-bit ones")
        index = cls(stored, folder, read_only=read_only)
        index._ids = items["id"].copy()
        index._packed = items["code"].copy()
        return index

    @property
    def bits(self) -> int:
        return self._bits

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        known = array[np.isin(array, self._ids)]
        if len(known):
            raise EngineError(f"id {known[0]} is already in the index; use update to replace it")
        self._put(array, codes.packed)

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        self._put(array, codes.packed)

    def remove(self, ids: npt.ArrayLike) -> int:
        gone = np.isin(self._ids, as_ids(ids))
        self._replace(self._ids[~gone], self._packed[~gone])
        return int(gone.sum())

    def export(self) -> tuple[Ids, Codes]:
        return self._ids.copy(), Codes(self._packed.copy(), self._bits)

    def __len__(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _put(self, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        kept = ~np.isin(self._ids, ids)
        all_ids = np.concatenate([self._ids[kept], ids])
        order = np.argsort(all_ids)
        self._replace(all_ids[order], np.concatenate([self._packed[kept], packed])[order])

    def _replace(self, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        if self._read_only:
            raise EngineError(f"the index at {self._folder} was opened read-only")
        if self._folder is not None:
            _write(self._folder / FILE, ids, packed)
        self._ids, self._packed = ids, packed


def _read(path: Path) -> npt.NDArray[np.void]:
    try:
        items = np.load(path, allow_pickle=False)
        if items.dtype.names != ("id", "code"):
            raise ValueError("other columns")
    except (ValueError, EOFError) as error:
        raise EngineError(f"{path} is not an index or is damaged ({error}); rebuild it") from None
    return items  # type: ignore[no-any-return]


def _write(path: Path, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
    """One file, replaced in one step: a reader or a crash sees the old items or the new ones."""
    items = np.empty(len(ids), dtype=[("id", "<i8"), ("code", "u1", (packed.shape[1],))])
    items["id"], items["code"] = ids, packed
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.save(file, items, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
