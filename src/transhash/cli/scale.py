"""encode, and what evaluate and index do for data that outgrow one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from transhash.cli import app, out
from transhash.cli.learn import print_problems
from transhash.errors import DataError
from transhash.progress import bar


@app.command()
def encode(
    run: Path = typer.Argument(..., help="A run folder that fit wrote."),
    images: Path | None = typer.Option(None, help="Images to encode."),
    texts: Path | None = typer.Option(None, help="Texts to encode."),
    to: Path = typer.Option(..., "--out", help="A .parquet of ids and packed codes, or a .npy."),
) -> None:
    """Write the codes of images or texts to a file, without indexing them.

    Example: `transhash encode runs/mine --images photos/ --out codes.parquet`
    """
    from transhash.data.manifest import read_images, read_texts
    from transhash.encoder import Encoder

    if (images is None) == (texts is None):
        raise DataError("give either --images or --texts")
    if to.suffix not in (".parquet", ".npy"):
        raise DataError(f"--out must end in .parquet or .npy, got {to}")
    encoder = Encoder.load(run)
    if images is not None:
        found = read_images(images)
        codes, kept, bad = encoder.encode_images(found, bar)
        ids, problems = list(kept.ids), [*found.problems, *bad]
    elif texts is not None:
        read = read_texts(texts)
        codes, ids, problems = encoder.encode_texts(read), list(read.ids), [*read.problems]
    _write_codes(to, ids, codes)
    print_problems([problem._asdict() for problem in problems])
    out.print(f"{len(ids):,} codes of {codes.bits} bits written to {to}")


def _write_codes(path: Path, ids: list[str], codes: Any) -> None:
    import io

    import numpy as np

    from transhash.storage import write_bytes

    buffer = io.BytesIO()
    if path.suffix == ".npy":
        np.save(buffer, codes.packed, allow_pickle=False)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        width = codes.bits // 8
        packed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(codes), [None, pa.py_buffer(codes.packed.tobytes())]
        )
        pq.write_table(pa.table({"id": pa.array(ids), "code": packed}), buffer)
    write_bytes(path, buffer.getvalue())


def copy_indexes(run: Path, source: str, into: str | None) -> None:
    """Every code of one engine into another, both modalities."""
    from transhash.catalog import MODALITIES
    from transhash.index import open_index
    from transhash.search import modality_url

    if into is None:
        raise DataError("--from needs --into, the engine to copy the codes to")
    for modality in MODALITIES:
        old = open_index(modality_url(source, modality), read_only=True)
        ids, codes = old.export()
        new = open_index(modality_url(into, modality), codes.bits)
        starts = range(0, len(ids), 100_000)
        for start in bar(starts, f"copying {modality}", total=len(starts)):
            new.update(ids[start : start + 100_000], codes[slice(start, start + 100_000)])
        out.print(f"{len(ids):,} {modality} copied from {source} to {into}")
        old.close()
        new.close()


def evaluate_shards(
    codes: Any, task: Any, shard: str | None, folder: Path | None, merge: list[Path]
) -> dict[str, Any] | None:
    """Histograms of one shard of the databases, or the scores of all shards added up."""
    from transhash.evaluation import DistanceHistogram, Scores

    directions = {
        "image_to_text": (
            codes.query_images, codes.database_texts,
            task.query_image_labels, task.database_text_labels,
        ),
        "text_to_image": (
            codes.query_texts, codes.database_images,
            task.query_text_labels, task.database_image_labels,
        ),
    }  # fmt: skip
    if merge:
        scores: dict[str, Any] = {}
        for name in directions:
            parts = [DistanceHistogram.load(path / f"{name}.safetensors") for path in merge]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            scores[name] = Scores.of(total).to_dict()
        return scores
    number, slash, count = (shard or "").partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise DataError(f"--shard takes i/n with 1 <= i <= n, got {shard!r}")
    if folder is None:
        raise DataError("--shard needs --histogram FOLDER, where its counts are written")
    rows = slice(int(number) - 1, None, int(count))
    for name, (queries, database, of_queries, of_database) in directions.items():
        histogram = DistanceHistogram.of(queries, database[rows], of_queries, of_database[rows])
        histogram.save(folder / f"{name}.safetensors")
    out.print(f"shard {shard} written to {folder}; add all up with --merge")
    return None
