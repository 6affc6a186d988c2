"""The commands encode and export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from transhash.cli import RUN, app, count, out, print_problems
from transhash.errors import DataError
from transhash.features import check_image_features
from transhash.progress import progress_bar

if TYPE_CHECKING:
    from transhash.data.collection import Collection, Modality

_FORMATS = "parquet, npy, faiss, usearch, pgvector, sqlite-vec, lancedb or duckdb"


@app.command()
def encode(
    run: Path = RUN,
    images: Path | None = typer.Option(None, help="Images to encode: folder or table."),
    texts: Path | None = typer.Option(None, help="Texts to encode: folder or table."),
    to: Path = typer.Option(..., "--out", help="Folder for shards, or a .parquet or .npy file."),
    executor: str = typer.Option("local", help="local, or ray (needs transhash[ray])."),
    shard_size: int = typer.Option(4096, help="Items per shard."),
    workers: int | None = typer.Option(
        None, help="Threads (cpu), decoding processes (cuda) or actors (ray)."
    ),
    device: str = typer.Option("cpu", help="Device: cpu or cuda."),
) -> None:
    """Encode images or texts to files without indexing them.

    A folder is written shard by shard. Rerun the same command to resume.

    Example: `transhash encode runs/mine --images photos/ --out codes/`
    """
    from transhash.data.manifest import read_images, read_texts
    from transhash.model.encode_job import encode_file, encode_shards

    if executor not in ("local", "ray"):
        raise DataError(f"--executor must be local or ray, got {executor!r}.")
    items: Collection[Any]
    modality: Modality
    if images is not None and texts is None:
        items, modality = read_images(images), "images"
    elif texts is not None and images is None:
        items, modality = read_texts(texts), "texts"
    else:
        raise DataError("Encoding needs one source. Pass either --images or --texts.")
    if to.suffix in (".parquet", ".npy"):
        if executor == "ray":
            raise DataError(f"--executor ray writes shards, not {to}. Pass a folder to --out.")
        result = encode_file(
            run, items, modality, to, workers=workers, device=device, track=progress_bar
        )
        content = "codes"
    else:
        result = encode_shards(
            run, items, modality, to, executor=executor,  # type: ignore[arg-type]
            shard_size=shard_size, workers=workers, device=device, track=progress_bar,
        )  # fmt: skip
        earlier = f" ({result.already_done:,} already done)" if result.already_done else ""
        content = f"codes in {count(result.shards, 'shard')}{earlier}"
    problems = [problem._asdict() for problem in (*items.problems, *result.problems)]
    print_problems(problems, to.with_name(f"{to.name}.skipped.json"))  # not among the shards
    out.print(f"{to}: {result.codes:,} {content}, {len(problems):,} {modality} skipped")


@app.command()
def features(
    modality: str = typer.Argument(..., help="images or texts."),
    source: Path = typer.Argument(..., help="Folder or table to read."),
    to: Path = typer.Option(..., "--out", help="A .npy file; its ids go to NAME.ids.csv."),
    features: str | None = typer.Option(
        None,
        help="Image features as for `fit`, or an embedding model for texts.",
        show_default="efficientnet-lite0; all-MiniLM-L6-v2 for texts",
    ),
    run: Path | None = typer.Option(None, help="Use the features of this run folder instead."),
    device: str = typer.Option("cpu", help="Device: cpu or cuda."),
) -> None:
    """Write the features of images or texts as an array, one row per item.

    Image features are cached. Rerun the same command to resume.

    Example: `transhash features images photos/ --out photos.npy`

    Example: `transhash features texts notes.csv --run runs/mine --out notes.npy`
    """
    from transhash.data.collection import check_modality

    modality = check_modality(modality)
    if to.suffix != ".npy":
        raise DataError(f"--out must end in .npy, got {to}.")
    if features is not None and modality == "images":
        check_image_features(features)  # before torch is loaded
    from transhash.model.extraction import extract_features

    array = extract_features(
        source, modality, features=features, run=run, device=device, progress=True
    )
    table = array.save(to)
    problems = [problem._asdict() for problem in array.problems]
    print_problems(problems, to.with_name(f"{to.name}.skipped.json"))
    shape = " x ".join(map(str, array.rows.shape))
    out.print(f"{to}: {shape} features, ids in {table}, {len(problems):,} {modality} skipped")


@app.command()
def export(
    run: Path = RUN,
    store: str | None = typer.Option(None, "--format", help=f"Export format: {_FORMATS}."),
    to: str | None = typer.Option(None, "--out", help="Output file, folder or database URL."),
    onnx: Path | None = typer.Option(
        None, metavar="FOLDER", help="Export the model to ONNX in this folder."
    ),
    table: str = typer.Option("transhash", help="Table name, for databases."),
) -> None:
    """Export codes to a vector store, or the model to ONNX.

    A vector store gets codes, ids, texts and file names. A second export replaces the first.

    Example: `transhash export runs/mine --format pgvector --out postgresql://me@localhost/photos`

    Example: `transhash export runs/mine --onnx mine-onnx`
    """
    if onnx is not None:
        from transhash.export.onnx import export_onnx

        if store is not None or to is not None:
            raise DataError("--onnx exports the model, --format the codes. Pass one of them.")
        out.print(f"{onnx}: {', '.join(export_onnx(run, onnx))}")
        return
    from transhash.export import export_items

    if store is None or to is None:
        raise DataError("An export needs a destination. Pass --format and --out, or --onnx FOLDER.")
    exported = export_items(run, store, to, table=table, track=progress_bar)
    destination = f"table {table}" if "://" in to else to  # a URL may contain a password
    out.print(f"Exported {exported:,} items to {store}: {destination}")
