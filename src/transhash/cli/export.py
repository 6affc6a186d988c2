"""export: a run's codes for other stores, and its model for other runtimes."""

from __future__ import annotations

from pathlib import Path

import typer

from transhash.cli import app, out
from transhash.errors import DataError
from transhash.progress import bar


@app.command()
def export(
    run: Path = typer.Argument(..., help="A run folder that fit wrote."),
    to: str | None = typer.Option(
        None,
        help="Where codes go: parquet, npy, faiss, usearch, pgvector, sqlite-vec, lancedb, duckdb.",
    ),
    place: str | None = typer.Option(
        None, "--out", help="The file, folder or URL that is written to."
    ),
    table: str = typer.Option("transhash", help="The table, in stores that have tables."),
) -> None:
    """Write what a run holds to another store: codes, ids, texts and files.

    Example: `transhash export runs/mine --to pgvector --out postgresql://me@localhost/photos`

    A second export to the same place replaces the first; docs/ecosystem.md shows how each store
    is searched.
    """
    from transhash.runs.export import export_items

    if to is None or place is None:
        raise DataError("give --to and --out: which store, and where")
    sent = export_items(run, to, place, table=table, track=bar)
    # A URL may hold a password.
    where = f"table {table}" if "://" in place else place
    out.print(f"{sent:,} items exported to {to}: {where}", soft_wrap=True)
