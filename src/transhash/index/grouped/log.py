"""The write-ahead log: a change is on disk before it is acknowledged.

Eight bytes name the layout, then come records: a head, the ids, the codes. The head has a checksum
of its own, so its length can be believed: a record that goes beyond the end of the file is one that
a crash cut off before it was acknowledged. Whatever else does not fit is damage, and is told.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.errors import CorruptionError, EngineError
from transhash.index.base import Ids
from transhash.storage import read_at, write_at, write_bytes

ADD, UPDATE, REMOVE = 1, 2, 3
_NAME, _VERSION = b"THLOG", 2
_START = 8  # bytes of name and version
_MARK = b"\xd1REC"
_HEAD = struct.Struct("<4sIIII")  # mark, operation, items, crc32 of the body, crc32 of the head
_HEAD_1 = struct.Struct("<4sIII")  # of version 1: mark, operation, items, crc32 of these and body


class LogRecord(NamedTuple):
    operation: int
    ids: Ids
    packed: npt.NDArray[np.uint8]  # (items, bytes); (0, bytes) for REMOVE


def create_log(path: Path) -> None:
    write_bytes(path, _NAME + b"%03d" % _VERSION)


class Log:
    """One log file; the writer appends to it, readers follow it."""

    def __init__(self, path: Path, code_bytes: int, *, writable: bool) -> None:
        self._path = path
        self._code_bytes = code_bytes
        self._descriptor = -1
        self._taken_back = False  # whether bytes of a failed append may lie beyond the end
        flags = os.O_RDWR if writable else os.O_RDONLY
        try:
            self._descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise EngineError(
                f"{path} cannot be opened ({error.strerror}); check who may use it, or open the "
                "index with read_only=True"
            ) from None
        self.end = _START  # everything before has been replayed or written here
        try:
            self.version = self._read_version()
        except BaseException:
            self.close()
            raise

    def check_there(self) -> None:
        """Refuses where the file was deleted: what is written to it would be gone."""
        if not os.fstat(self._descriptor).st_nlink:
            raise EngineError(f"{self._path} was deleted while it was open; nothing was stored")

    def append(self, operation: int, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        """Written and synced when this returns; after an error the log is as before."""
        body = ids.astype("<i8").tobytes() + packed.tobytes()
        head = _HEAD.pack(_MARK, operation, len(ids), zlib.crc32(body), 0)[:-4]
        record = head + _seal(head, self.end) + body
        try:
            if self._size() != self.end:
                if not self._taken_back:
                    raise EngineError(
                        f"{self._path} was changed by another process; open the index again"
                    )
                os.ftruncate(self._descriptor, self.end)
            self._taken_back = True
            at = self.end
            while at < self.end + len(record):
                at += write_at(self._descriptor, record[at - self.end :], at)
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.end)
            raise EngineError(
                f"cannot write {self._path} ({error.strerror}); nothing was stored"
            ) from None
        self._taken_back = False
        self.end += len(record)

    def has_more(self) -> bool:
        return self._size() > self.end

    def replay(self) -> Generator[LogRecord]:
        """Records after `end`, as far as they are complete; damage is told, not passed over."""
        start, data = self.end, self._read(self.end, self._size())
        decode = _decode_1 if self.version == 1 else _decode
        while self.end - start < len(data):
            try:
                found = decode(data[self.end - start :], self.end, self._code_bytes)
            except ValueError as error:
                raise CorruptionError(
                    f"{self._path} is damaged at byte {self.end} ({error})"
                ) from None
            if found is None:
                return
            self.end += found[1]
            yield found[0]

    def drop_torn_end(self) -> None:
        """Cuts off what a crash left of the last append; only after a whole `replay`."""
        if self.has_more():
            try:
                os.ftruncate(self._descriptor, self.end)
                os.fsync(self._descriptor)
            except OSError as error:
                raise EngineError(f"cannot write {self._path} ({error.strerror})") from None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _read(self, at: int, end: int) -> memoryview:
        parts = []
        while at < end and (part := read_at(self._descriptor, end - at, at)):
            parts.append(part)  # the system gives at most 2 GiB at a time
            at += len(part)
        return memoryview(b"".join(parts))

    def _read_version(self) -> int:
        start = bytes(self._read(0, _START))
        if not start.startswith(_NAME) or not start[5:].isdigit() or len(start) < _START:
            raise CorruptionError(f"{self._path} is not the log of an index or is damaged")
        version = int(start[5:])
        if not 1 <= version <= _VERSION:
            raise EngineError(
                f"{self._path} has layout version {version}, this transhash reads up to "
                f"{_VERSION}; use the transhash that wrote it"
            )
        return version


def _decode(data: memoryview, place: int, code_bytes: int) -> tuple[LogRecord, int] | None:
    """The first record of `data` and its length; None if it was cut off before it was whole."""
    head, body = data[: _HEAD.size], data[_HEAD.size :]
    if len(head) < _HEAD.size:
        _check_cut(data, _HEAD.size)
        return None
    mark, operation, items, checksum, _ = _HEAD.unpack(head)
    if mark != _MARK or head[-4:] != _seal(head[:-4], place):
        _check_cut(data, _HEAD.size)
        return None
    body = body[: items * _width(operation, code_bytes)]
    if len(body) < items * _width(operation, code_bytes):
        return None
    if zlib.crc32(body) != checksum:
        raise ValueError("the change does not match its checksum")
    return _record(operation, items, body, code_bytes), _HEAD.size + len(body)


def _decode_1(data: memoryview, _: int, code_bytes: int) -> tuple[LogRecord, int] | None:
    """The same for version 1, whose head is known to be right only if the body is."""
    if len(data) < _HEAD_1.size:
        _check_cut(data, _HEAD_1.size)
        return None
    mark, operation, items, checksum = _HEAD_1.unpack_from(data)
    body = data[_HEAD_1.size :]
    whole = items * _width(operation, code_bytes)
    if mark == _MARK and len(body) >= whole and _fits_1(operation, items, body[:whole], checksum):
        return _record(operation, items, body[:whole], code_bytes), _HEAD_1.size + whole
    if mark != _MARK:
        _check_cut(data, _HEAD_1.size)
        return None
    if len(body) >= whole:
        raise ValueError("the change does not match its checksum")
    # Cut off, unless the length is what is wrong: then the body ends where the file or another
    # record does, or a whole record follows.
    marks = list(_marks(bytes(body)))
    for end in (*marks, len(body)):
        for other in (ADD, UPDATE, REMOVE):
            count = end // _width(other, code_bytes)
            if _fits_1(other, count, body[:end], checksum):
                raise ValueError("the length of the change is wrong")
    for at in marks:
        if len(body) - at >= _HEAD_1.size:
            _, operation, items, checksum = _HEAD_1.unpack_from(body, at)
            later = body[at + _HEAD_1.size :][: items * _width(operation, code_bytes)]
            if _fits_1(operation, items, later, checksum):
                raise ValueError("the length of the change is wrong")
    return None


def _fits_1(operation: int, items: int, body: memoryview, checksum: int) -> bool:
    return zlib.crc32(body, zlib.crc32(struct.pack("<II", operation, items))) == checksum


def _check_cut(data: memoryview, size: int) -> None:
    """Refuses all but a head that was cut off, and zeros: then only the length was written."""
    short = len(data) < size and _MARK.startswith(bytes(data[:4]))
    if not short and bytes(data).strip(b"\0"):
        raise ValueError("no change begins here")


def _marks(data: bytes) -> Iterator[int]:
    at = data.find(_MARK)
    while at >= 0:
        yield at
        at = data.find(_MARK, at + 1)


def _seal(head: memoryview | bytes, place: int) -> bytes:
    """Checksum of a head at its place, so that a record is believed nowhere else."""
    return zlib.crc32(head, zlib.crc32(place.to_bytes(8, "little"))).to_bytes(4, "little")


def _width(operation: int, code_bytes: int) -> int:
    return 8 + (0 if operation == REMOVE else code_bytes)


def _record(operation: int, items: int, body: memoryview, code_bytes: int) -> LogRecord:
    if operation not in (ADD, UPDATE, REMOVE):
        raise ValueError(f"there is no operation {operation}")
    ids = np.frombuffer(body, "<i8", items).astype(np.int64)
    codes = np.frombuffer(body, np.uint8, offset=items * 8)
    return LogRecord(operation, ids, codes.reshape(-1, code_bytes))
