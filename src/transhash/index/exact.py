"""The reference backend: all distances, one sort. All other backends must agree with it."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import CorruptionError, EngineError, IndexNotFoundError
from transhash.index.base import (
    NO_IDS,
    Ids,
    LocalIndex,
    Packed,
    Ranking,
    check_items,
    check_length,
    check_search,
    check_stored_bits,
    empty_ranking,
    missing_bits,
    reject_existing,
    to_ids,
)
from transhash.index.weighted import BitWeights, costs_to_items
from transhash.storage import WriterLock, read_regular, write_bytes

_FILE = "items.npy"
_TRAILER = b"THITEMS2"  # format and version, after the array; then comes a checksum


class SortedItems(LocalIndex):
    """Items sorted by id, in memory or in one .npy file that every change rewrites."""

    def __init__(
        self, bits: int, folder: Path | None = None, lock: WriterLock | None = None
    ) -> None:
        self._bits = bits = check_length(bits)
        self._folder = folder
        self._lock = lock
        self._ids = NO_IDS
        self._packed = np.empty((0, bits // 8), np.uint8)

    @classmethod
    def open(cls, folder: Path | None, bits: int | None, *, read_only: bool = False) -> Self:
        path = None if folder is None else folder / _FILE
        if bits is not None:
            bits = check_length(bits)
        if path is None or not path.exists():
            if bits is None:
                raise missing_bits("An index in memory" if path is None else f"New index {folder}")
            if path is not None and read_only:
                raise IndexNotFoundError(folder)
        lock = None if folder is None or read_only else WriterLock(folder)
        try:
            if path is None or not path.exists():
                return cls(bits or 0, folder, lock)
            items = _read(path)
            stored = items["code"].shape[1] * 8
            check_stored_bits(folder, stored, bits)
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
        self.update(array, codes)

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        others = ~np.isin(self._ids, array)
        all_ids = np.concatenate([self._ids[others], array])
        order = np.argsort(all_ids)
        self._replace(all_ids[order], np.concatenate([self._packed[others], codes.packed])[order])

    def remove(self, ids: npt.ArrayLike) -> int:
        removed = np.isin(self._ids, to_ids(ids))
        self._replace(self._ids[~removed], self._packed[~removed])
        return int(removed.sum())

    def export(self) -> tuple[Ids, Codes]:
        return self._ids.copy(), Codes(self._packed.copy(), self._bits)

    def verify(self) -> None:
        if self._folder is not None and (self._folder / _FILE).exists():
            _read(self._folder / _FILE)

    def __len__(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _replace(self, ids: Ids, packed: Packed) -> None:
        if self._folder is not None:
            if self._lock is None:
                raise EngineError(f"{self._folder} was opened read-only. Open it for writing.")
            self._lock.check()
            _write(self._folder / _FILE, ids, packed)
        self._ids, self._packed = ids, packed


def _read(path: Path) -> npt.NDArray[np.void]:
    try:
        content = read_regular(path)
        data, trailer, checksum = content[:-12], content[-12:-4], content[-4:]
        if trailer != _TRAILER:
            raise ValueError("not written by this version")
        if zlib.crc32(data).to_bytes(4, "little") != checksum:
            raise ValueError("the checksum does not match")
        stream = io.BytesIO(data)
        items = np.load(stream, allow_pickle=False)
        if stream.tell() != len(data) or items.dtype != _dtype(items["code"].shape[1]):
            raise ValueError("wrong columns or length")
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error.strerror}). Check its permissions."
        ) from None
    except (ValueError, EOFError, SyntaxError, TypeError, IndexError, MemoryError) as error:
        raise CorruptionError(f"{path} is not a valid index file ({error})") from None
    return items  # type: ignore[no-any-return]


def _write(path: Path, ids: Ids, packed: Packed) -> None:
    """Replace the file in one step: a reader or a crash leaves the old items or the new ones."""
    items = np.empty(len(ids), _dtype(packed.shape[1]))
    items["id"], items["code"] = ids, packed
    buffer = io.BytesIO()
    np.save(buffer, items, allow_pickle=False)
    data = buffer.getvalue()
    write_bytes(path, data + _TRAILER + zlib.crc32(data).to_bytes(4, "little"))


def _dtype(code_bytes: int) -> np.dtype[np.void]:
    return np.dtype([("id", "<i8"), ("code", "u1", (code_bytes,))])


class ExactIndex(SortedItems):
    """Compares every query with every item in NumPy."""

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        k, weights = check_search(codes, self._bits, k, weights)
        width = min(k, len(self))
        ranking = empty_ranking(len(codes), width, weighted=weights is not None)
        items = Codes(self._packed, self._bits)
        for q in range(len(codes)):
            row = codes[q : q + 1].hamming(items)[0]
            # Items are sorted by id, so a stable sort by distance leaves ties by ascending id.
            best = np.argsort(row, kind="stable")
            if weights is not None and ranking.costs is not None:
                costs = costs_to_items(codes.packed[q], self._packed, weights[q])
                best = best[np.argsort(costs[best], kind="stable")]
                ranking.costs[q] = costs[best[:width]]
            best = best[:width]
            ranking.ids[q], ranking.distances[q] = self._ids[best], row[best]
        return ranking
