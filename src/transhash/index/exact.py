"""The reference engine: all distances, one sort. Slow, plain and right; the others must agree."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import DataError, EngineError, IndexNotFoundError
from transhash.index.base import (
    Ids,
    LocalIndex,
    RadiusResult,
    Ranking,
    check_items,
    check_length,
    check_query,
    check_radius,
    check_search,
    empty_ranking,
    reject_existing,
    to_ids,
)
from transhash.index.weighted import BitWeights, costs_of
from transhash.storage import WriterLock, write_bytes

# Items sorted by id, in memory or in one .npy file: what the two plain engines stand on.

_FILE = "items.npy"
_SEAL = b"THCRC32\0"  # and a checksum, after what NumPy reads; older files have none


class SortedItems(LocalIndex):
    """add, update, remove and export; every change rewrites the file, so keep it for small sets."""

    engine = ""

    def __init__(
        self, bits: int, folder: Path | None = None, lock: WriterLock | None = None
    ) -> None:
        self._bits = bits = check_length(bits)
        self._folder = folder
        self._lock = lock
        self._ids = np.empty(0, np.int64)
        self._packed = np.empty((0, bits // 8), np.uint8)

    @classmethod
    def open(cls, folder: Path | None, bits: int | None, *, read_only: bool = False) -> Self:
        path = None if folder is None else folder / _FILE
        if bits is not None:
            bits = check_length(bits)
        if path is None or not path.exists():
            if bits is None:
                place = "an index in memory" if path is None else f"a new index at {folder}"
                raise DataError(f"{place} needs its code length; pass bits=")
            if path is not None and read_only:
                raise IndexNotFoundError(folder)
        lock = None if folder is None or read_only else WriterLock(folder)
        try:
            if path is None or not path.exists():
                return cls(bits or 0, folder, lock)
            items = _read(path)
            stored = items["code"].shape[1] * 8
            if bits not in (None, stored):
                raise EngineError(f"{folder} holds {stored}-bit codes, not {bits}-bit ones")
            index = cls(stored, folder, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        index._ids, index._packed = items["id"].copy(), items["code"].copy()
        return index

    @property
    def bits(self) -> int:
        return self._bits

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        reject_existing(array[np.isin(array, self._ids)])
        self._put(array, codes.packed)

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        self._put(array, codes.packed)

    def remove(self, ids: npt.ArrayLike) -> int:
        gone = np.isin(self._ids, to_ids(ids))
        self._replace(self._ids[~gone], self._packed[~gone])
        return int(gone.sum())

    def export(self) -> tuple[Ids, Codes]:
        return self._ids.copy(), Codes(self._packed.copy(), self._bits)

    def verify(self) -> None:
        """What is on disk is whole, and what is in memory."""
        if self._folder is not None and (self._folder / _FILE).exists():
            _read(self._folder / _FILE)

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
        if self._folder is not None:
            if self._lock is None:
                raise EngineError(f"the index at {self._folder} was opened read-only")
            self._lock.check()
            _write(self._folder / _FILE, ids, packed)
        self._ids, self._packed = ids, packed


def _read(path: Path) -> npt.NDArray[np.void]:
    try:
        data = path.read_bytes()
        seal, checksum = data[-12:-4], data[-4:]
        if seal == _SEAL:
            data = data[:-12]
            if zlib.crc32(data).to_bytes(4, "little") != checksum:
                raise ValueError("the checksum does not match")
        stream = io.BytesIO(data)
        items = np.load(stream, allow_pickle=False)
        if stream.tell() != len(data) or items.ndim != 1 or items.dtype != _columns(items):
            raise ValueError("other columns, or longer than written")
    except OSError as error:
        raise EngineError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, EOFError, SyntaxError, TypeError, MemoryError) as error:
        raise EngineError(f"{path} is not an index or is damaged ({error}); rebuild it") from None
    return items  # type: ignore[no-any-return]


def _columns(items: npt.NDArray[np.void]) -> np.dtype[np.void]:
    size = items["code"].shape[1] if items.dtype.names == ("id", "code") else 1
    return np.dtype([("id", "<i8"), ("code", "u1", (size,))])


def _write(path: Path, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
    """One file, replaced in one step: a reader or a crash sees the old items or the new ones."""
    items = np.empty(len(ids), dtype=[("id", "<i8"), ("code", "u1", (packed.shape[1],))])
    items["id"], items["code"] = ids, packed
    buffer = io.BytesIO()
    np.save(buffer, items, allow_pickle=False)
    data = buffer.getvalue()
    write_bytes(path, data + _SEAL + zlib.crc32(data).to_bytes(4, "little"))


class ExactIndex(SortedItems):
    """Every query meets every item in NumPy."""

    engine = "exact"

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        k, weights = check_search(codes, self._bits, k, weights)
        width = min(k, len(self))
        found = empty_ranking(len(codes), width, weighted=weights is not None)
        items = Codes(self._packed, self._bits)
        for q in range(len(codes)):
            row = codes[q : q + 1].hamming(items)[0]
            # Items are sorted by id, so a stable sort by distance leaves ties by ascending id.
            best = np.argsort(row, kind="stable")
            if weights is not None and found.costs is not None:
                costs = costs_of(codes.packed[q], self._packed, weights[q])
                best = best[np.argsort(costs[best], kind="stable")]
                found.costs[q] = costs[best[:width]]
            best = best[:width]
            found.ids[q], found.distances[q] = self._ids[best], row[best]
        return found

    def search_radius(self, codes: Codes, radius: int) -> RadiusResult:
        check_query(codes, self._bits)
        radius = check_radius(radius)
        items = Codes(self._packed, self._bits)
        ids, distances = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for q in range(len(codes)):
            row = codes[q : q + 1].hamming(items)[0]
            within = np.flatnonzero(row <= radius)
            within = within[np.argsort(row[within], kind="stable")]
            ids.append(self._ids[within])
            distances.append(row[within].astype(np.int32))
        offsets = np.cumsum([len(part) for part in ids], dtype=np.int64)
        return RadiusResult(offsets, np.concatenate(ids), np.concatenate(distances))
