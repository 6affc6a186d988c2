"""Stores that are files: parquet, NumPy, FAISS, USearch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.errors import DataError
from transhash.index.faiss_index import write_faiss
from transhash.runs.catalog import MODALITIES
from transhash.runs.export.shipment import EXPORT_FORMAT, Shipment, need
from transhash.storage import atomic_file, whole_folder, write_bytes, write_json

_NOTE = "export.json"


def to_parquet(shipment: Shipment, place: str, table: str) -> None:
    """One file, a row an item."""
    path = Path(place)
    if path.is_dir():
        raise DataError(f"--to parquet writes one file, and {path} is a folder; name a file in it")
    if path.exists() and not _is_export(path):
        raise DataError(f"{path} is there and no export wrote it; give another name as --out")
    _write_parquet(shipment, path)


def to_npy(shipment: Shipment, place: str, table: str) -> None:
    """images.npy and texts.npy, a row of bytes an item, and images.json and texts.json, their ids.

    These rows are what sentence-transformers calls ubinary.
    """
    with _folder(shipment, Path(place)) as folder:
        ids: dict[str, list[str]] = {modality: [] for modality in MODALITIES}
        codes: dict[str, list[bytes]] = {modality: [] for modality in MODALITIES}
        for _, modality, item_id, _, _, code in shipment.rows():
            ids[modality].append(item_id)
            codes[modality].append(code)
        for modality in MODALITIES:
            packed = np.frombuffer(b"".join(codes[modality]), np.uint8)
            buffer = io.BytesIO()
            np.save(buffer, packed.reshape(-1, shipment.bits // 8), allow_pickle=False)
            write_bytes(folder / f"{modality}.npy", buffer.getvalue())
            write_json(folder / f"{modality}.json", ids[modality])


def to_faiss(shipment: Shipment, place: str, table: str) -> None:
    """images.faiss and texts.faiss, flat, by number; items.parquet says what a number is."""
    with _folder(shipment, Path(place)) as folder:
        for modality in MODALITIES:
            numbers, packed = shipment.codes(modality)
            write_faiss(folder / f"{modality}.faiss", numbers, Codes(packed, shipment.bits))
        _write_parquet(shipment, folder / "items.parquet")


def to_usearch(shipment: Shipment, place: str, table: str) -> None:
    """images.usearch and texts.usearch by number; items.parquet says what a number is."""
    usearch = need("usearch.index", "usearch")
    with _folder(shipment, Path(place)) as folder:
        for modality in MODALITIES:
            numbers, packed = shipment.codes(modality)
            index: Any = usearch.Index(
                ndim=shipment.bits,
                metric=usearch.MetricKind.Hamming,
                dtype=usearch.ScalarKind.B1,
            )
            if len(numbers):
                index.add(numbers.astype(np.uint64), packed)
            index.save(str(folder / f"{modality}.usearch"))
        _write_parquet(shipment, folder / "items.parquet")


def _write_parquet(shipment: Shipment, path: Path) -> None:
    import pyarrow.parquet as pq

    metadata = {name: str(value) for name, value in shipment.note.items()}
    schema = shipment.schema.with_metadata(metadata)
    with atomic_file(path) as file, pq.ParquetWriter(file, schema) as writer:
        for batch in shipment.batches():
            writer.write_batch(batch)


def _is_export(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return False
    return bool(metadata.get(b"format") == EXPORT_FORMAT.encode())


@contextmanager
def _folder(shipment: Shipment, folder: Path) -> Iterator[Path]:
    """A folder that takes the place of an earlier export, and of nothing else."""
    if folder.exists() and not (
        folder.is_dir() and ((folder / _NOTE).is_file() or not any(folder.iterdir()))
    ):
        raise DataError(
            f"{folder} is there and no export wrote it; give a new or an empty folder as --out"
        )
    with whole_folder(folder) as draft:
        yield draft
        write_json(draft / _NOTE, {**shipment.note, "items": shipment.sent})
