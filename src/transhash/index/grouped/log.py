"""The write-ahead log: a change is on disk before it is acknowledged.

A file starts with eight bytes of format and version, followed by records: head, ids, codes. The
head has its own checksum, so its length can be trusted: a record that extends beyond the end of the
file was cut off by a crash before it was acknowledged. Every other mismatch is corruption.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from transhash.errors import CorruptionError, EngineError
from transhash.index.base import Ids, Packed
from transhash.storage import check_regular, read_at, write_at, write_bytes

ADD, UPDATE, REMOVE = 1, 2, 3
_MAGIC, _VERSION = b"THLOG", 3
_START = 8  # bytes of format and version
_MARK = b"\xd1REC"
_HEAD = struct.Struct("<4sIIII")  # mark, operation, items, crc32 of the body, crc32 of the head


class LogRecord(NamedTuple):
    operation: int
    ids: Ids
    packed: Packed  # (items, bytes); (0, bytes) for REMOVE


def create_log(path: Path) -> None:
    write_bytes(path, _MAGIC + b"%03d" % _VERSION)


class Log:
    """One log file; the writer appends to it, readers follow it."""

    def __init__(self, path: Path, code_bytes: int, *, writable: bool) -> None:
        self._path = path
        self._code_bytes = code_bytes
        self._descriptor = -1
        self._has_failed_append = False  # whether bytes of one may lie beyond the end
        flags = os.O_RDWR if writable else os.O_RDONLY
        check_regular(path)
        try:
            self._descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise EngineError(
                f"{path} cannot be opened ({error.strerror}). Check its permissions, or open the "
                "index with read_only=True."
            ) from None
        self.end = _START  # everything before it was replayed or written by this object
        try:
            self._check_version()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def check_exists(self) -> None:
        """Raise if the file was deleted: what is written to it would be lost."""
        if not os.fstat(self._descriptor).st_nlink:
            raise EngineError(
                f"{self._path} was deleted while it was open, so nothing was stored. "
                "Open the index again."
            )

    def append(self, operation: int, ids: Ids, packed: Packed) -> None:
        """Write and sync a record; after an error the log is as before."""
        body = ids.astype("<i8").tobytes() + packed.tobytes()
        head = _HEAD.pack(_MARK, operation, len(ids), zlib.crc32(body), 0)[:-4]
        record = head + _head_checksum(head, self.end) + body
        try:
            if self._size() != self.end:
                if not self._has_failed_append:
                    raise EngineError(
                        f"{self._path} was changed by another process. Open the index again."
                    )
                os.ftruncate(self._descriptor, self.end)
            self._has_failed_append = True
            at = self.end
            while at < self.end + len(record):
                at += write_at(self._descriptor, record[at - self.end :], at)
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.end)
            raise self._write_error(error) from None
        self._has_failed_append = False
        self.end += len(record)

    def has_more(self) -> bool:
        return self._size() > self.end

    def replay(self) -> Generator[LogRecord]:
        """Yield the complete records after `end`; corruption is an error."""
        start, data = self.end, self._read(self.end, self._size())
        while self.end - start < len(data):
            try:
                decoded = _decode(data[self.end - start :], self.end, self._code_bytes)
            except ValueError as error:
                raise CorruptionError(
                    f"{self._path} is corrupt at byte {self.end} ({error})"
                ) from None
            if decoded is None:
                return
            record, length = decoded
            self.end += length
            yield record

    def drop_torn_end(self) -> None:
        """Cut off what a crash left of the last append; only valid after a complete `replay`."""
        if self.has_more():
            try:
                os.ftruncate(self._descriptor, self.end)
                os.fsync(self._descriptor)
            except OSError as error:
                raise self._write_error(error) from None

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
            parts.append(part)  # the system returns at most 2 GiB at a time
            at += len(part)
        return memoryview(b"".join(parts))

    def _check_version(self) -> None:
        start = bytes(self._read(0, _START))
        if not start.startswith(_MAGIC) or not start[5:].isdigit() or len(start) < _START:
            raise CorruptionError(f"{self._path} is not an index log")
        if int(start[5:]) != _VERSION:
            raise EngineError(
                f"{self._path} has format version {int(start[5:])}, this transhash reads version "
                f"{_VERSION}. Delete the index and index again."
            )

    def _write_error(self, error: OSError) -> EngineError:
        return EngineError(
            f"Cannot write {self._path} ({error.strerror}). Nothing was stored. "
            "Free disk space and try again."
        )


def _decode(data: memoryview, offset: int, code_bytes: int) -> tuple[LogRecord, int] | None:
    """Return the first record of `data` and its length; None if a crash cut it off."""
    head, body = data[: _HEAD.size], data[_HEAD.size :]
    if len(head) < _HEAD.size:
        _check_torn(data)
        return None
    mark, operation, items, checksum, _ = _HEAD.unpack(head)
    if mark != _MARK or head[-4:] != _head_checksum(head[:-4], offset):
        _check_torn(data)
        return None
    length = items * (8 + (0 if operation == REMOVE else code_bytes))
    if len(body) < length:
        return None
    body = body[:length]
    if zlib.crc32(body) != checksum:
        raise ValueError("the change does not match its checksum")
    if operation not in (ADD, UPDATE, REMOVE):
        raise ValueError(f"unknown operation {operation}")
    ids = np.frombuffer(body, "<i8", items).astype(np.int64)
    codes = np.frombuffer(body, np.uint8, offset=items * 8).reshape(-1, code_bytes)
    return LogRecord(operation, ids, codes), _HEAD.size + length


def _check_torn(data: memoryview) -> None:
    """Accept only part of a head, or zeros: a crash can leave a file that only grew."""
    is_partial_head = len(data) < _HEAD.size and _MARK.startswith(bytes(data[:4]))
    if not is_partial_head and bytes(data).strip(b"\0"):
        raise ValueError("no change begins here")


def _head_checksum(head: memoryview | bytes, offset: int) -> bytes:
    """Return a checksum of a head and its offset, so that it is valid at no other offset."""
    return zlib.crc32(head, zlib.crc32(offset.to_bytes(8, "little"))).to_bytes(4, "little")
