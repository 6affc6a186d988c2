"""Exports a run's items (codes, ids, texts, paths) to files and vector stores.

A format is a function and a line in `EXPORT_FORMATS`. None builds an approximate index: many items
have the same code, and graph indexes do not work well among equal vectors (docs/integrations.md).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transhash.errors import DataError
from transhash.export.stores import (
    ExportedItems,
    check_table,
    open_items,
    to_duckdb,
    to_faiss,
    to_lancedb,
    to_npy,
    to_parquet,
    to_pgvector,
    to_sqlite_vec,
    to_usearch,
)
from transhash.progress import Track, no_progress

__all__ = ["EXPORT_FORMATS", "export_items"]

EXPORT_FORMATS: dict[str, Callable[[ExportedItems, str, str], None]] = {
    "parquet": to_parquet,
    "npy": to_npy,
    "faiss": to_faiss,
    "usearch": to_usearch,
    "pgvector": to_pgvector,
    "sqlite-vec": to_sqlite_vec,
    "lancedb": to_lancedb,
    "duckdb": to_duckdb,
}


def export_items(
    run: str | Path,
    format: str,
    destination: str,
    *,
    table: str = "transhash",
    track: Track = no_progress,
) -> int:
    """Write every item of the run's catalog to `destination`; return their number.

    `destination` is a file, a folder or, for pgvector, a URL; `table` is for formats with tables.
    An earlier export there is replaced; anything else there is an error.
    """
    if format not in EXPORT_FORMATS:
        raise DataError(
            f"Unknown export format {format!r}. Choose from: {', '.join(EXPORT_FORMATS)}."
        )
    check_table(table)
    with open_items(Path(run), track) as items:
        EXPORT_FORMATS[format](items, destination, table)
    return items.sent
