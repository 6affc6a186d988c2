"""Named arrays in one memory-mapped file: checked header, data by page, written in one step."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.errors import EngineError

MAGIC = b"THARRAY1"  # the last sign is the version of this layout
PAGE = 4096
Array = npt.NDArray[Any]


def write_arrays(path: Path, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
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
        at += -(-data.nbytes // PAGE) * PAGE
    header = json.dumps({"about": dict(about), "arrays": entries, "bytes": at}).encode()
    head = MAGIC + len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(_padded(head + header))
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)
            file.write(bytes(-array.nbytes % PAGE))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def open_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """(about, arrays) of a file; costs the header only, pages are read when touched."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start, header = _read_header(path, file.read(16), file)
        if size != start + header["bytes"]:
            raise EngineError(
                f"{path} is cut short or longer than written ({size} bytes, "
                f"{start + header['bytes']} expected); restore it from a copy or rebuild the index"
            )
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for name, entry in header["arrays"].items():
        count = int(np.prod(entry["shape"], dtype=np.int64))
        dtype = np.dtype(entry["dtype"])
        flat = (
            np.frombuffer(view, dtype, count, start + entry["at"]) if count else np.empty(0, dtype)
        )
        arrays[name] = flat.reshape(entry["shape"])
    return header["about"], arrays


def verify_arrays(path: Path) -> None:
    """Reads everything and compares the checksums: a flipped bit on disk is found here."""
    _, arrays = open_arrays(path)
    with path.open("rb") as file:
        _, header = _read_header(path, file.read(16), file)
    for name, array in arrays.items():
        data = array.data.cast("B") if array.nbytes else b""
        if array.nbytes and zlib.crc32(data) != header["arrays"][name]["crc32"]:
            raise EngineError(
                f"{path} is damaged: {name} does not match its checksum; "
                "restore it from a copy or rebuild the index"
            )


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder last through a power cut."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_header(path: Path, head: bytes, file: Any) -> tuple[int, dict[str, Any]]:
    """(where the data starts, header)."""
    if head[:8] != MAGIC:
        known = head[:7] == MAGIC[:7]
        reason = "was written by another version" if known else "is not part of an index"
        raise EngineError(f"{path} {reason}; rebuild the index with this one")
    length, checksum = (int.from_bytes(head[at : at + 4], "little") for at in (8, 12))
    header = file.read(length)
    if len(header) != length or zlib.crc32(header) != checksum:
        raise EngineError(
            f"{path} has a damaged header; restore it from a copy or rebuild the index"
        )
    return -(-(16 + length) // PAGE) * PAGE, json.loads(header)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % PAGE)
