"""Named arrays in one memory-mapped file with a checked header, written in one step."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from transhash.errors import CorruptionError, EngineError
from transhash.storage import atomic_file, open_regular

_MAGIC, _VERSION = b"THARRAY", b"2"
_PAGE = 4096
_Array = npt.NDArray[Any]


def write_arrays(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, _Array]) -> None:
    """Write and sync the file; it appears under its name only when it is complete."""
    entries, offset = {}, 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array)
        entries[name] = {
            "dtype": data.dtype.str,
            "shape": list(data.shape),
            "offset": offset,
            "crc32": zlib.crc32(data.data.cast("B")) if data.nbytes else 0,
        }
        offset += -(-data.nbytes // _PAGE) * _PAGE
    header = json.dumps({"metadata": dict(metadata), "arrays": entries, "bytes": offset}).encode()
    sizes = len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    start = _MAGIC + _VERSION + sizes + header
    with atomic_file(path) as file:
        file.write(start + bytes(-len(start) % _PAGE))
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)
            file.write(bytes(-array.nbytes % _PAGE))


def open_arrays(path: Path) -> tuple[dict[str, Any], dict[str, _Array]]:
    """Return (metadata, arrays) of a file; reads only the header, pages when they are used."""
    header, arrays = _open(path)
    return header["metadata"], arrays


def verify_arrays(path: Path) -> None:
    """Read the complete file and compare the checksums."""
    header, arrays = _open(path)
    for name, array in arrays.items():
        if array.nbytes and zlib.crc32(array.data.cast("B")) != header["arrays"][name]["crc32"]:
            raise CorruptionError(f"{path} is corrupt: {name} does not match its checksum")


def _open(path: Path) -> tuple[dict[str, Any], dict[str, _Array]]:
    try:
        with open_regular(path) as file:
            start, header = _read_header(path, file)
            size = os.fstat(file.fileno()).st_size
            if size != start + header["bytes"]:
                raise CorruptionError(
                    f"{path} has {size} bytes instead of {start + header['bytes']}"
                )
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error.strerror}). Check the disk and the permissions."
        ) from None
    arrays = {}
    for name, entry in header["arrays"].items():
        count = int(np.prod(entry["shape"], dtype=np.int64))
        dtype = np.dtype(entry["dtype"])
        flat = np.empty(0, dtype)
        if count:
            flat = np.frombuffer(view, dtype, count, start + entry["offset"])
        arrays[name] = flat.reshape(entry["shape"])
    return header, arrays


def _read_header(path: Path, file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """Return (offset of the data, header)."""
    head = file.read(16)
    if head[:7] != _MAGIC or not head[7:8].isdigit():
        raise CorruptionError(f"{path} is not an index file")
    if head[7:8] != _VERSION:
        raise EngineError(
            f"{path} has format version {head[7:8].decode()}, this transhash reads version "
            f"{_VERSION.decode()}. Delete the index and index again."
        )
    length, checksum = (int.from_bytes(head[at : at + 4], "little") for at in (8, 12))
    header = file.read(length)
    if len(header) != length or zlib.crc32(header) != checksum:
        raise CorruptionError(f"{path} has a corrupt header")
    return -(-(16 + length) // _PAGE) * _PAGE, json.loads(header)
