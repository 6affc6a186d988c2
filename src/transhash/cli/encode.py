"""encode, and what index does for data that outgrow one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from transhash.cli import app, out
from transhash.cli.fit import print_problems
from transhash.errors import DataError, EngineError
from transhash.progress import progress_bar

if TYPE_CHECKING:
    from transhash.data.collection import Collection


@app.command()
def encode(
    run: Path = typer.Argument(..., help="A run folder that fit wrote."),
    images: Path | None = typer.Option(None, help="Images to encode."),
    texts: Path | None = typer.Option(None, help="Texts to encode."),
    given: Path | None = typer.Option(None, "--input", help="Either; a table's column says which."),
    to: Path = typer.Option(..., "--out", help="A folder for shards, or one .parquet or .npy."),
    engine: str = typer.Option("local", help="local, or ray (a cluster; pip install ray[data])."),
    shard_size: int = typer.Option(4096, help="Items a shard."),
    workers: int | None = typer.Option(
        None, help="Threads (cpu), decoding processes (cuda), or actors (ray)."
    ),
    device: str = typer.Option("cpu", help="cpu or cuda."),
) -> None:
    """Write the codes of images or texts to files, without indexing them.

    Example: `transhash encode runs/mine --images photos/ --out codes/`

    A folder is filled shard by shard; the same command goes on where an earlier one stopped.
    """
    from transhash.model.encode_job import encode_file, encode_shards

    if engine not in ("local", "ray"):
        raise DataError(f"--engine takes local or ray, got {engine!r}")
    items, modality = _items(images, texts, given)
    if to.suffix in (".parquet", ".npy"):
        if engine == "ray":
            raise DataError(f"--engine ray writes a folder of shards, not one file; got {to}")
        done = encode_file(
            run, items, modality, to, workers=workers, device=device, track=progress_bar
        )
        what = "codes"
    else:
        done = encode_shards(
            run, items, modality, to, engine=engine,  # type: ignore[arg-type]
            shard_size=shard_size, workers=workers, device=device, track=progress_bar,
        )  # fmt: skip
        earlier = f", {done.found:,} of them already there" if done.found else ""
        what = f"codes in {done.shards:,} shard{'' if done.shards == 1 else 's'}{earlier}"
    problems = (*items.problems, *done.problems)
    listed = to.with_name(f"{to.name}.skipped.json")  # a folder of shards holds nothing else
    print_problems([problem._asdict() for problem in problems], listed)
    out.print(f"{done.codes:,} {what}, {len(problems):,} {modality} skipped: {to}")


def _items(
    images: Path | None, texts: Path | None, given: Path | None
) -> tuple[Collection[Any], Any]:
    from transhash.data.manifest import (
        manifest_images,
        manifest_texts,
        read_images,
        read_manifest,
        read_texts,
    )

    if sum(source is not None for source in (images, texts, given)) != 1:
        raise DataError("give one of --images, --texts and --input")
    if images is not None:
        return read_images(images), "images"
    if texts is not None:
        return read_texts(texts), "texts"
    assert given is not None
    if given.suffix == ".npy":
        raise DataError(f"{given} may hold either kind of features; use --images or --texts")
    manifest = read_manifest(given)
    kinds = manifest.columns & {"image", "text"}
    if len(kinds) != 1:
        raise DataError(
            f"{given} has {'both' if kinds else 'neither'} of the columns image and text; "
            "use --images or --texts"
        )
    return (
        (manifest_images(manifest), "images")
        if "image" in kinds
        else (manifest_texts(manifest), "texts")
    )


def copy_indexes(run: Path, source: str, into: str | None) -> None:
    """Every code of one engine into another, both modalities; sends only what is not there yet."""
    from transhash.data.collection import MODALITIES
    from transhash.index import open_index
    from transhash.model.files import read_bits
    from transhash.search.engine import index_url

    if into is None:
        raise DataError("--from needs --into, the engine to copy the codes to")
    bits = read_bits(run)
    for modality in MODALITIES:
        old = open_index(index_url(source, modality), bits, read_only=True)
        try:
            new = open_index(index_url(into, modality), old.bits)
            try:
                before, wanted = len(new), len(old)
                sent = new.ingest(*old.export(), progress_bar)
                after = len(new)
            finally:
                new.close()
        finally:
            old.close()
        if after < wanted:
            raise EngineError(
                f"{into} holds {after:,} {modality} after copying {wanted:,}; "
                "give the same command again"
            )
        kept = f", {before:,} were there before" if before else ""
        out.print(f"{wanted:,} {modality} of {source} are in {into}: {sent:,} sent{kept}")


# export: a run's codes for other stores, and its model for other runtimes.


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
        from transhash.export.onnx import export_onnx

        if to is not None or place is not None:
            raise DataError("--onnx writes the model, --to what it encoded; give one of them")
        out.print(f"{', '.join(export_onnx(run, onnx))}: {onnx}", soft_wrap=True)
        return
    from transhash.export import export_items

    if to is None or place is None:
        raise DataError("give --to and --out, which store and where, or --onnx FOLDER")
    sent = export_items(run, to, place, table=table, track=progress_bar)
    # A URL may hold a password.
    where = f"table {table}" if "://" in place else place
    out.print(f"{sent:,} items exported to {to}: {where}", soft_wrap=True)
