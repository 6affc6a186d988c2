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
    onnx: Path | None = typer.Option(
        None, metavar="FOLDER", help="Write the model as ONNX files instead."
    ),
    table: str = typer.Option("transhash", help="The table, in stores that have tables."),
) -> None:
    """Write what a run holds to another store, or its model for another runtime.

    Example: `transhash export runs/mine --to pgvector --out postgresql://me@localhost/photos`

    Example: `transhash export runs/mine --onnx mine-onnx`

    Stores get codes, ids, texts and files; ONNX files take pixels, or features of texts, and give
    codes. A second export to the same place replaces the first; docs/ecosystem.md shows how each
    store is searched.
    """
    if onnx is not None:
        from transhash.runs.export.onnx_files import export_onnx

        if to is not None or place is not None:
            raise DataError("--onnx writes the model, --to what it encoded; give one of them")
        out.print(f"{', '.join(export_onnx(run, onnx))}: {onnx}", soft_wrap=True)
        return
    from transhash.runs.export import export_items

    if to is None or place is None:
        raise DataError("give --to and --out, which store and where, or --onnx FOLDER")
    sent = export_items(run, to, place, table=table, track=bar)
    # A URL may hold a password.
    where = f"table {table}" if "://" in place else place
    out.print(f"{sent:,} items exported to {to}: {where}", soft_wrap=True)
