"""Anybody's files as collections: folder, csv, tsv, jsonl, parquet, txt or npy.

Bad rows are skipped and listed with a reason; a bad structure is one DataError.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.collection import Collection, Images, Labels, Problem, Texts
from transhash.errors import DataError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
COLUMNS = ("id", "image", "text", "labels")
_READABLE = "a folder of images, or a .csv, .tsv, .jsonl, .parquet, .txt or .npy file"
_IGNORED = {".ds_store", "thumbs.db", "desktop.ini"}


@dataclass
class Row:
    id: str
    image: Path | None
    text: str | None
    labels: Labels


@dataclass
class Manifest:
    """The rows of one source, before they are split by modality."""

    source: Path
    columns: frozenset[str]
    rows: list[Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def report(self, where: str, reason: str) -> None:
        self.problems.append(Problem(str(self.source), where, reason))


def read_images(source: str | Path, *, labelled: bool = False) -> Images:
    """The images of a source; with `labelled`, rows without labels are skipped."""
    source = Path(source)
    if source.suffix.lower() == ".npy":
        return Collection(*_numbered(features := _read_array(source)), features=features)
    return images_of(read_manifest(source), labelled=labelled)


def read_texts(source: str | Path, *, labelled: bool = False) -> Texts:
    source = Path(source)
    if source.suffix.lower() == ".npy":
        ids, _ = _numbered(features := _read_array(source))
        return Collection(ids, [""] * len(ids), features=features)
    return texts_of(read_manifest(source), labelled=labelled)


def images_of(manifest: Manifest, *, labelled: bool = False) -> Images:
    _need(manifest, "image")
    rows = _usable(manifest, "image", labelled)
    return Collection(
        [row.id for row in rows],
        [row.image for row in rows if row.image is not None],
        [row.labels for row in rows] if "labels" in manifest.columns else None,
        problems=tuple(manifest.problems),
    )


def texts_of(manifest: Manifest, *, labelled: bool = False) -> Texts:
    _need(manifest, "text")
    rows = _usable(manifest, "text", labelled)
    return Collection(
        [row.id for row in rows],
        [row.text for row in rows if row.text is not None],
        [row.labels for row in rows] if "labels" in manifest.columns else None,
        problems=tuple(manifest.problems),
    )


def read_manifest(source: Path) -> Manifest:
    """All rows of a source; image paths are taken relative to the file they stand in."""
    if not source.exists():
        raise DataError(f"{source} does not exist; give {_READABLE}")
    if source.is_dir():
        return _read_folder(source)
    suffix = source.suffix.lower()
    if suffix == ".txt":
        return _read_lines(source)
    readers = {".csv": _csv_rows, ".tsv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet}
    if suffix not in readers:
        raise DataError(f"{source}: {suffix or 'no extension'} is not readable; give {_READABLE}")
    manifest = Manifest(source, frozenset())
    seen: set[str] = set()
    columns: set[str] = set()
    for where, values in readers[suffix](source, manifest):
        columns |= values.keys() & set(COLUMNS)
        row = _row(manifest, where, values, len(manifest.rows))
        if row is None:
            continue
        if row.id in seen:
            manifest.report(where, f"id {row.id!r} occurs twice; the first is kept")
            continue
        seen.add(row.id)
        manifest.rows.append(row)
    manifest.columns = frozenset(columns)
    return manifest


def read_triples(source: str | Path) -> tuple[list[tuple[str, str, float]], list[Problem]]:
    """Lines of image id, text id, 0 or 1; a header line may stand first."""
    source = Path(source)
    if not source.is_file():
        raise DataError(f"{source} does not exist; give a csv or tsv of image id, text id, 0/1")
    manifest = Manifest(source, frozenset())
    triples: list[tuple[str, str, float]] = []
    delimiter = "\t" if source.suffix.lower() == ".tsv" else ","
    for number, fields in enumerate(csv.reader(_decoded(source), delimiter=delimiter), 1):
        if not fields:
            continue
        if len(fields) != 3 or fields[2].strip() not in ("0", "1"):
            if number > 1:
                manifest.report(f"line {number}", "not image id, text id, 0 or 1")
            continue
        triples.append((fields[0].strip(), fields[1].strip(), float(fields[2])))
    if not triples:
        raise DataError(f"{source} holds no line of image id, text id, 0 or 1")
    return triples, manifest.problems


def _read_folder(folder: Path) -> Manifest:
    manifest = Manifest(folder, frozenset({"id", "image"}))
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_dir() or path.name.lower() in _IGNORED or path.name.startswith("."):
            continue
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            manifest.report(relative, f"not an image by its extension {path.suffix!r}")
        elif path.stat().st_size == 0:
            manifest.report(relative, "empty file")
        else:
            manifest.rows.append(Row(relative, path, None, frozenset()))
    if not manifest.rows:
        raise DataError(
            f"{folder} holds no image ({', '.join(sorted(IMAGE_SUFFIXES))}), nor do its sub-folders"
        )
    return manifest


def _read_lines(source: Path) -> Manifest:
    manifest = Manifest(source, frozenset({"id", "text"}))
    for number, line in enumerate(_decoded(source), 1):
        if not line.strip():
            continue
        row = _row(manifest, f"line {number}", {"id": str(number), "text": line}, number)
        if row is not None:
            manifest.rows.append(row)
    return manifest


def _csv_rows(source: Path, manifest: Manifest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # the default 128 KiB refuses long documents
    delimiter = "\t" if source.suffix.lower() == ".tsv" else ","
    reader = csv.reader(_decoded(source), delimiter=delimiter)
    try:
        header = [name.strip().lower() for name in next(reader)]
    except StopIteration:
        raise DataError(f"{source} is empty; its first line must name the columns") from None
    if not set(header) & {"image", "text"}:
        hint = "its first line must name the columns"
        if len(header) == 1 and ";" in header[0]:
            hint = "its columns are separated by semicolons; save it with commas"
        raise DataError(
            f"{source} has no column named image or text (found: {', '.join(header)[:200]}); {hint}"
        )
    try:
        for fields in reader:
            where = f"line {reader.line_num}"
            if len(fields) != len(header):
                if fields:
                    manifest.report(where, f"{len(fields)} fields, the header has {len(header)}")
                continue
            yield where, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        manifest.report(f"line {reader.line_num}", f"not valid csv ({error}); the rest is skipped")


def _json_rows(source: Path, manifest: Manifest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(_decoded(source), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            manifest.report(f"line {number}", f"not valid JSON ({error.msg})")
            continue
        if not isinstance(values, dict):
            manifest.report(f"line {number}", "not a JSON object")
            continue
        yield f"line {number}", {str(name).lower(): value for name, value in values.items()}


def _parquet(source: Path, manifest: Manifest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
        names = [name for name in file.schema_arrow.names if name.lower() in COLUMNS]
        number = 0
        for batch in file.iter_batches(batch_size=4096, columns=names):
            for values in batch.to_pylist():
                yield f"row {number}", {name.lower(): value for name, value in values.items()}
                number += 1
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file ({error})") from None


def _row(manifest: Manifest, where: str, values: Mapping[str, Any], number: int) -> Row | None:
    """One row, or None after reporting what is wrong with it."""
    text, image, labels = values.get("text"), values.get("image"), values.get("labels")
    strings = [value for value in (*values.values(),) if isinstance(value, str)]
    if any("\udc80" <= character <= "\udcff" for value in strings for character in value):
        manifest.report(where, "not UTF-8; save the file as UTF-8 to keep this row")
        return None
    path = None
    if image is not None and str(image).strip():
        # Backslashes come from Windows lists; they never occur in a sensible file name.
        path = manifest.source.parent / str(image).strip().replace("\\", "/")
        if not path.is_file():
            manifest.report(where, f"image {image} does not exist")
            return None
        if path.stat().st_size == 0:
            manifest.report(where, f"image {image} is an empty file")
            return None
    text = None if text is None or not str(text).strip() else str(text).strip()
    if path is None and text is None:
        manifest.report(where, "neither image nor text")
        return None
    if labels is None:
        labels = ()
    elif isinstance(labels, str):
        labels = labels.split("|")
    names = frozenset(str(label).strip() for label in labels if str(label).strip())
    given = values.get("id")
    row_id = str(given).strip() if given is not None else ""
    return Row(row_id or (str(image) if path is not None else str(number)), path, text, names)


def _usable(manifest: Manifest, part: str, labelled: bool) -> list[Row]:
    rows = [row for row in manifest.rows if getattr(row, part) is not None]
    if labelled and "labels" in manifest.columns:
        for row in rows:
            if not row.labels:
                manifest.report(row.id, "no label")
        rows = [row for row in rows if row.labels]
    if not rows:
        first = f"; first problem: {manifest.problems[0].reason}" if manifest.problems else ""
        raise DataError(f"{manifest.source} holds no usable {part}{first}")
    return rows


def _need(manifest: Manifest, column: str) -> None:
    if column not in manifest.columns and manifest.rows:
        kinds = " and ".join(sorted(manifest.columns - {"id", "labels"}))
        raise DataError(
            f"{manifest.source} holds {kinds or 'no'} items where {column}s are needed; "
            f"add a column named {column} or give another file"
        )


def _decoded(source: Path) -> io.TextIOBase:
    # surrogateescape lets one bad byte cost one row, not the file; utf-8-sig drops Excel's mark.
    raw = source.read_bytes()
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{source} is UTF-16; save it as UTF-8")
    if b"\0" in raw[:4096]:
        raise DataError(f"{source} is a binary file; give {_READABLE}")
    return io.StringIO(raw.decode("utf-8-sig", errors="surrogateescape"), newline="")


def _read_array(source: Path) -> npt.NDArray[np.float32]:
    try:
        array = np.load(source, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{source} does not exist; give {_READABLE}") from None
    except ValueError as error:
        raise DataError(f"{source} is not a plain .npy array ({error})") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(
            f"{source} must be a matrix of numbers (items x features), "
            f"got {array.dtype} of shape {array.shape}"
        )
    return np.asarray(array, dtype=np.float32)


def _numbered(features: npt.NDArray[np.float32]) -> tuple[list[str], list[Path]]:
    ids = [str(row) for row in range(len(features))]
    return ids, [Path(name) for name in ids]
