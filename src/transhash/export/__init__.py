"""What a run holds, written to where people keep data: codes, ids, and what the catalog knows.

A store is a function and a line in `STORES`. Nothing builds an approximate index: many items carry
the same code, and graphs do not find their way among equals (docs/ecosystem.md).
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

__all__ = ["STORES", "export_items"]

STORES: dict[str, Callable[[ExportedItems, str, str], None]] = {
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
    run: str | Path, store: str, place: str, *, table: str = "transhash", track: Track = no_progress
) -> int:
    """Every item of the run's catalog to `place`, and how many those are.

    `place` is a file, a folder or, of pgvector, a URL; `table` is for stores that have tables. What
    an earlier export wrote there is replaced, and anything else is left alone.
    """
    if store not in STORES:
        raise DataError(f"--to takes one of {', '.join(STORES)}, got {store!r}")
    check_table(table)
    items = open_items(Path(run), track)
    try:
        STORES[store](items, place, table)
    finally:
        items.catalog.close()
    return items.sent
