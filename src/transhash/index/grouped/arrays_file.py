"""Named arrays in one memory-mapped file: checked header, data by page, written in one step."""

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
from transhash.storage import atomic_file

_NAME, _VERSION = b"THARRAY", b"1"
_PAGE = 4096
_Array = npt.NDArray[Any]


def write_arrays(path: Path, about: Mapping[str, Any], arrays: Mapping[str, _Array]) -> None:
    """On disk for good when this returns; before that there is no file of this name."""
    entries, at = {}, 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array)
        entries[name] = {
            "dtype": data.dtype.str,
            "shape": list(data.shape),
            "at": at,
            "crc32": zlib.crc32(data.data.cast("B")) if data.nbytes else 0,
        }
        at += -(-data.nbytes // _PAGE) * _PAGE
    header = json.dumps({"about": dict(about), "arrays": entries, "bytes": at}).encode()
    sizes = len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    with atomic_file(path) as file:
        file.write(_padded(_NAME + _VERSION + sizes + header))
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)
            file.write(bytes(-array.nbytes % _PAGE))


def open_arrays(path: Path) -> tuple[dict[str, Any], dict[str, _Array]]:
    """(about, arrays) of a file; costs the header only, pages are read when touched."""
    header, arrays = _open(path)
    return header["about"], arrays


def verify_arrays(path: Path) -> None:
    """Reads everything and compares the checksums: a flipped bit on disk is found here."""
    header, arrays = _open(path)
    for name, array in arrays.items():
        if array.nbytes and zlib.crc32(array.data.cast("B")) != header["arrays"][name]["crc32"]:
            raise CorruptionError(f"{path} is damaged: {name} does not match its checksum")


def _open(path: Path) -> tuple[dict[str, Any], dict[str, _Array]]:
    try:
        with path.open("rb") as file:
            start, header = _read_header(path, file)
            size = os.fstat(file.fileno()).st_size
            if size != start + header["bytes"]:
                raise CorruptionError(
                    f"{path} is cut short or longer than written ({size} bytes, "
                    f"{start + header['bytes']} expected)"
                )
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error.strerror}); check the disk and who may read it"
        ) from None
    arrays = {}
    for name, entry in header["arrays"].items():
        count = int(np.prod(entry["shape"], dtype=np.int64))
        dtype = np.dtype(entry["dtype"])
        flat = (
            np.frombuffer(view, dtype, count, start + entry["at"]) if count else np.empty(0, dtype)
        )
        arrays[name] = flat.reshape(entry["shape"])
    return header, arrays


def _read_header(path: Path, file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """(where the data starts, header)."""
    head = file.read(16)
    version = head[7:8]
    if head[:7] != _NAME or not version.isdigit():
        raise CorruptionError(f"{path} is not part of an index or is damaged")
    if version != _VERSION:
        raise EngineError(
            f"{path} has layout version {version.decode()}, this transhash reads "
            f"{_VERSION.decode()}; use the transhash that wrote it, or rebuild the index"
        )
    length, checksum = (int.from_bytes(head[at : at + 4], "little") for at in (8, 12))
    header = file.read(length)
    if len(header) != length or zlib.crc32(header) != checksum:
        raise CorruptionError(f"{path} has a damaged header")
    return -(-(16 + length) // _PAGE) * _PAGE, json.loads(header)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _PAGE)
