"""The write-ahead log: a change is on disk before it is acknowledged; a torn end is dropped."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.errors import EngineError
from transhash.index.base import Ids

MAGIC = b"THLOG001"
HEAD = struct.Struct("<4sIII")  # mark, operation, items, crc32 of all but itself
MARK = b"\xd1REC"
ADD, UPDATE, REMOVE = 1, 2, 3


class Record(NamedTuple):
    operation: int
    ids: Ids
    packed: npt.NDArray[np.uint8]  # (items, bytes); (0, bytes) for REMOVE
    end: int  # where the next record begins


def create_log(path: Path) -> None:
    with path.open("wb") as file:
        file.write(MAGIC)
        file.flush()
        os.fsync(file.fileno())


class Log:
    """One log file; the writer appends to it, readers follow it."""

    def __init__(self, path: Path, code_bytes: int, *, writable: bool) -> None:
        self._path = path
        self._code_bytes = code_bytes
        flags = os.O_RDWR if writable else os.O_RDONLY
        self._descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
        self.end = len(MAGIC)  # everything before has been replayed or written here
        if os.pread(self._descriptor, len(MAGIC), 0) != MAGIC:
            os.close(self._descriptor)
            self._descriptor = -1
            raise EngineError(f"{path} is not the log of an index or is of another version")

    def append(self, operation: int, ids: Ids, packed: npt.NDArray[np.uint8]) -> None:
        """Written and synced when this returns; after an error the log is as before."""
        body = ids.astype("<i8").tobytes() + packed.tobytes()
        checksum = zlib.crc32(body, zlib.crc32(struct.pack("<II", operation, len(ids))))
        record = HEAD.pack(MARK, operation, len(ids), checksum) + body
        try:
            at = self.end
            while at < self.end + len(record):
                at += os.pwrite(self._descriptor, record[at - self.end :], at)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self.end)
            raise EngineError(f"cannot write {self._path} ({error}); nothing was stored") from None
        self.end += len(record)

    def has_more(self) -> bool:
        return os.fstat(self._descriptor).st_size > self.end

    def replay(self) -> Generator[Record]:
        """Records after `end`, as far as they are complete."""
        size = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, size - self.end, self.end)
        start, at = self.end, 0
        while len(data) - at >= HEAD.size:
            mark, operation, items, checksum = HEAD.unpack_from(data, at)
            width = 8 + (0 if operation == REMOVE else self._code_bytes)
            body = data[at + HEAD.size : at + HEAD.size + items * width]
            whole = mark == MARK and len(body) == items * width
            if whole and zlib.crc32(body, zlib.crc32(data[at + 4 : at + 12])) == checksum:
                at += HEAD.size + len(body)
                self.end = start + at
                ids = np.frombuffer(body, "<i8", items).astype(np.int64)
                codes = np.frombuffer(body, np.uint8, offset=items * 8)
                yield Record(operation, ids, codes.reshape(-1, self._code_bytes), self.end)
                continue
            # A crash can only tear the last record. Anything else is damage, and hiding it
            # would lose what was acknowledged.
            rest = data[at + HEAD.size + len(body) :] if mark == MARK else data[at:]
            if any(rest):
                raise EngineError(
                    f"{self._path} is damaged at byte {start + at}; restore it from a copy"
                )
            return

    def drop_torn_end(self) -> None:
        if self.has_more():
            os.ftruncate(self._descriptor, self.end)
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
