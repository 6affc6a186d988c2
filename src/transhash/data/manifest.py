"""Reads folders and csv, tsv, jsonl, parquet, txt and npy files as collections.

Rows that cannot be used are skipped and listed with a reason. An unusable source is a DataError.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.collection import (
    Collection,
    FolderPaths,
    Images,
    ItemData,
    Labels,
    Problem,
    Texts,
)
from transhash.data.tables import (
    COLUMNS,
    MAYBE_CUT,
    Record,
    delimiter_of,
    escape_invalid,
    is_complete,
    is_table,
    open_text,
    os_reason,
    read_fields,
    read_records,
    shorten,
)
from transhash.errors import DataError, EmptySourceError
from transhash.progress import phase
from transhash.storage import check_regular, read_regular

IMAGE_SUFFIXES = {
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif",
}  # fmt: skip
TEXT_SUFFIXES = {".txt", ".md"}
_IGNORED = {".ds_store", "thumbs.db", "desktop.ini"}
_READABLE = "Pass a folder, or a csv, tsv, jsonl, parquet, txt or npy file."
_NO_LABELS: Labels = frozenset()
_MAX_COPY_BYTES = 1 << 28  # larger npy files stay on disk
_CHUNK_BYTES = 1 << 25


@dataclass(slots=True)
class _Row:
    id: str  # "" if the file has none, until all rows are read
    image: str | None  # relative to the folder, or to the folder of the file
    text: str | None
    labels: Labels
    default_id: str


class RowError(Exception):
    """The reason to skip a row."""


@dataclass
class Manifest:
    """The rows of one source, before they are split by modality."""

    source: Path
    columns: frozenset[str] = frozenset()
    rows: list[_Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ids_are_row_numbers: bool = False  # no row has an id or an image

    def report(self, location: str, reason: str) -> None:
        self.problems.append(
            Problem(str(self.source), escape_invalid(location), escape_invalid(reason))
        )

    @property
    def first_problem(self) -> str:
        """The first skipped row in parentheses, for messages; "" if there is none."""
        return f" (first problem: {self.problems[0].reason})" if self.problems else ""


def read_images(source: str | Path, *, labeled: bool = False) -> Images:
    """Read the images of a source. With `labeled`, skip rows that are related to nothing."""
    source = _existing(source)
    if source.suffix.lower() == ".npy":
        features = read_array(source)
        return _numbered(source, [Path(str(row)) for row in range(len(features))], features)
    return manifest_images(read_manifest(source), labeled=labeled)


def read_texts(source: str | Path, *, labeled: bool = False) -> Texts:
    """Read the texts of a source; in a folder each .txt and .md file is one text."""
    source = _existing(source)
    if source.is_dir():
        return manifest_texts(_read_folder(source, TEXT_SUFFIXES))
    if source.suffix.lower() == ".npy":
        features = read_array(source)
        return _numbered(source, [""] * len(features), features)
    return manifest_texts(read_manifest(source), labeled=labeled)


def manifest_images(manifest: Manifest, *, labeled: bool = False) -> Images:
    rows = _usable_rows(manifest, "image", labeled)
    folder = manifest.source if manifest.source.is_dir() else manifest.source.parent
    return _collection(manifest, rows, FolderPaths(folder, [row.image or "" for row in rows]))


def manifest_texts(manifest: Manifest, *, labeled: bool = False) -> Texts:
    rows = _usable_rows(manifest, "text", labeled)
    return _collection(manifest, rows, [row.text for row in rows if row.text is not None])


def read_manifest(source: str | Path) -> Manifest:
    """Read all rows of a source. Image paths are relative to the file that lists them.

    A folder gives its images, or its texts if it has no image.
    """
    source = _existing(source)
    if source.is_dir():
        try:
            return _read_folder(source, IMAGE_SUFFIXES)
        except DataError:
            with suppress(DataError):
                return _read_folder(source, TEXT_SUFFIXES)
            raise
    if not is_table(source):
        raise DataError(f"{source} has an unknown file type. {_READABLE}")
    with phase(f"reading {source.name}"):
        return _read_table(source)


def _read_table(source: Path) -> Manifest:
    manifest = Manifest(source)
    unit = "row" if source.suffix.lower() == ".parquet" else "line"
    columns: set[str] = set()
    ids: set[str] = set()
    default_ids: set[str] = set()
    lines_end = is_complete(source)
    for record, is_last in _mark_last(read_records(source)):
        columns |= record.values.keys() & set(COLUMNS)
        try:
            # Bad rows reserve an id as well, so that repairing one changes no other row's id.
            row = _parse_row(source, record, _default_id(record, default_ids))
            if row.id and row.id in ids:
                raise RowError(f"id {shorten(row.id)} occurs twice (the first is used)")
        except RowError as problem:
            hint = f" ({MAYBE_CUT})" if is_last and not lines_end else ""
            manifest.report(f"{unit} {record.number}", f"{problem}{hint}")
            continue
        ids.add(row.id)
        manifest.rows.append(row)
    manifest.columns = frozenset(columns)
    manifest.ids_are_row_numbers = all(not row.id and row.image is None for row in manifest.rows)
    for row in manifest.rows:
        name = row.id or row.default_id
        while not row.id and name in ids:
            name += ":default"
        row.id = name
    return manifest


def _mark_last(records: Iterator[Record]) -> Iterator[tuple[Record, bool]]:
    """Yield each record, and whether it is the last."""
    previous: Record | None = None
    for record in records:
        if previous is not None:
            yield previous, False
        previous = record
    if previous is not None:
        yield previous, True


def read_both(source: str | Path) -> tuple[Images | None, Texts | None]:
    """Read the images and the texts of a folder or table; None for what it does not have.

    In a folder with both, a text is not a problem among the images.
    """
    source = _existing(source)
    if not source.is_dir():
        manifest = read_manifest(source)
        images, texts = (column in manifest.columns for column in ("image", "text"))
        return (
            manifest_images(manifest) if images else None,
            manifest_texts(manifest) if texts else None,
        )
    photos = _scan_folder(source, IMAGE_SUFFIXES, ignored=TEXT_SUFFIXES)
    text_files = _scan_folder(source, TEXT_SUFFIXES, ignored=None if photos.rows else frozenset())
    if not photos.rows and not text_files.rows:
        raise EmptySourceError(
            f"{source} and its subfolders contain no image and no text"
            f"{photos.first_problem or text_files.first_problem}. Add images, or .txt or .md files."
        )
    return (
        manifest_images(photos) if photos.rows else None,
        manifest_texts(text_files) if text_files.rows else None,
    )


def read_triples(source: str | Path) -> tuple[list[tuple[str, str, float]], list[Problem]]:
    """Read lines of image id, text id and 0 or 1, with or without a header."""
    source = Path(source)
    remedy = "Pass a csv or tsv file of image id, text id and 0 or 1."
    if not os.path.isfile(source):
        raise DataError(f"{escape_invalid(str(source))} does not exist. {remedy}")
    manifest = Manifest(source)
    triples: list[tuple[str, str, float]] = []
    for number, fields, problem in read_fields(open_text(source), delimiter_of(source), width=3):
        if problem or fields[2].strip() not in ("0", "1"):
            if number > 1:
                manifest.report(f"line {number}", problem or "not image id, text id, 0 or 1")
            continue
        triples.append((fields[0].strip(), fields[1].strip(), float(fields[2])))
    if not triples:
        raise DataError(f"{source} has no usable line. {remedy}")
    return triples, manifest.problems


def read_array(source: Path) -> npt.NDArray[np.float32]:
    """Read an (items, features) matrix of finite numbers from a .npy file.

    A large float32 file is memory-mapped, so rows that are not used are not loaded.
    """
    try:
        with np.errstate(over="ignore"):
            # Mapped first, so that a header that claims too many rows allocates nothing.
            check_regular(source)
            mapped = np.load(source, mmap_mode="r", allow_pickle=False)
            if not isinstance(mapped, np.ndarray):
                raise ValueError("an archive of arrays")
            if mapped.ndim == 2 and mapped.dtype.kind in "fiu":
                large = mapped.dtype == np.float32 and mapped.nbytes > _MAX_COPY_BYTES
                array = mapped if large else np.array(mapped, dtype=np.float32)
    except Exception as error:  # damaged headers fail in tokenize, ast, struct, mmap and zipfile
        raise DataError(
            f"{source} is not a plain .npy array ({os_reason(error)}). Save it with numpy.save."
        ) from None
    if mapped.ndim != 2 or mapped.dtype.kind not in "fiu" or not array.size:
        raise DataError(
            f"{source} has type {mapped.dtype} and shape {mapped.shape}. "
            "Pass a matrix of numbers (items x features)."
        )
    bad = _nonfinite_rows(array, source)
    if len(bad):
        raise DataError(
            f"Row {bad[0]} of {source} has a feature that is not a finite float32 "
            f"({len(bad)} of {len(array)} rows are affected). Remove or correct these rows."
        )
    return array


def _nonfinite_rows(array: npt.NDArray[Any], source: Path) -> npt.NDArray[np.int64]:
    mapped = isinstance(array, np.memmap) and array.flags.c_contiguous
    size = array.itemsize * array.shape[1]
    count = max(1, _CHUNK_BYTES // size)
    bad = []
    for start in range(0, len(array), count):
        chunk = array[start : start + count]
        if mapped:  # its own map: pages of the other map would stay in memory
            offset = array.offset + start * size  # type: ignore[attr-defined]
            chunk = np.memmap(source, array.dtype, "r", offset, chunk.shape)
        bad.append(start + np.flatnonzero(~np.isfinite(chunk).all(axis=1)))
    return np.concatenate(bad)


def _existing(source: str | Path) -> Path:
    """Return the path if it exists and its name can be stored and shown."""
    source = Path(source)
    name = str(source)
    try:
        os.stat(source)
        name = str(source.resolve())
        name.encode()
    except (FileNotFoundError, NotADirectoryError):
        raise EmptySourceError(f"{shorten(name)} does not exist. {_READABLE}") from None
    except UnicodeEncodeError:
        raise DataError(f"The name of {escape_invalid(name)} is not UTF-8. Rename it.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {shorten(name)} ({os_reason(error)}). {_READABLE}") from None
    return source


def _read_folder(folder: Path, suffixes: set[str]) -> Manifest:
    manifest = _scan_folder(folder, suffixes)
    if not manifest.rows:
        column = "text" if suffixes is TEXT_SUFFIXES else "image"
        raise EmptySourceError(
            f"{folder} and its subfolders contain no {column}{manifest.first_problem}. "
            f"Add {', '.join(sorted(suffixes))} files."
        )
    return manifest


@phase("reading folders")
def _scan_folder(
    folder: Path, suffixes: set[str], ignored: Set[str] | None = frozenset()
) -> Manifest:
    """Read the files with one of `suffixes`; `ignored` ones (None: all others) are no problem."""
    column = "text" if suffixes is TEXT_SUFFIXES else "image"
    manifest = Manifest(folder, frozenset({"id", column}))
    # Sorted by folder, then by name: "a/b" before "a-b".
    names = sorted(_list_files(manifest), key=lambda name: name.replace("/", "\0"))
    for name in names:
        last = name.rpartition("/")[2]
        suffix = os.path.splitext(last)[1]
        if last.lower() in _IGNORED or last.startswith("."):
            continue
        if suffix.lower() not in suffixes and (ignored is None or suffix.lower() in ignored):
            continue
        text: str | None = None
        if suffix.lower() not in suffixes:
            problem = _extension_problem(suffix, column)
        elif not (problem := _file_problem(folder / name)):
            if escape_invalid(name) != name:
                problem = "its name is not UTF-8 (rename it)"
            elif column == "text":
                text, problem = _read_text_file(folder / name)
        if problem:
            manifest.report(name, problem)
        else:
            image = name if column == "image" else None
            manifest.rows.append(_Row(name, image, text, _NO_LABELS, name))
    return manifest


def _list_files(manifest: Manifest) -> Iterator[str]:
    """Yield relative paths, with slashes, of all files below the source folder."""
    folder = manifest.source

    def on_error(error: OSError) -> None:
        location = Path(os.fsdecode(error.filename)).relative_to(folder).as_posix()
        if location == ".":
            raise DataError(
                f"Cannot read {folder} ({os_reason(error)}). Check its permissions."
            ) from None
        manifest.report(location, f"folder cannot be read ({os_reason(error)})")

    for current, folders, files in os.walk(folder, onerror=on_error):
        for name in folders:
            if os.path.islink(os.path.join(current, name)):
                location = (Path(current) / name).relative_to(folder).as_posix()
                manifest.report(location, "a link to a folder is not followed")
        inner = Path(current).relative_to(folder).as_posix()
        yield from files if inner == "." else (f"{inner}/{name}" for name in files)


def _extension_problem(suffix: str, column: str) -> str:
    if column == "image" and suffix.lower() in (".svg", ".svgz"):
        return "an SVG drawing has no pixels (export it as PNG)"
    return f"not {'an image' if column == 'image' else 'a text'} by its extension {suffix!r}"


def _read_text_file(path: Path) -> tuple[str, str]:
    """Return the text of a file and the problem with it, one of them empty."""
    try:
        text = read_regular(path).decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return "", "not UTF-8 (save it as UTF-8)"
    except OSError as error:
        return "", f"cannot be read ({os_reason(error)})"
    if "\0" in text:
        return "", "text contains a NUL character"
    return text, "" if text else "contains no text"


def _parse_row(source: Path, record: Record, default_id: str) -> _Row:
    if record.problem:
        raise RowError(record.problem)
    values = record.values
    image, text = image_and_text(source, values)
    if image is None and text is None:
        raise RowError("neither image nor text")
    return _Row(_cell_text(values, "id"), image, text, _labels(values.get("labels")), default_id)


def image_and_text(source: Path, values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the existing image and the text that a row of `source` names."""
    image, text = (_cell_text(values, column) or None for column in ("image", "text"))
    if image is not None:
        if "://" in image[:10]:
            raise RowError(f"image {shorten(image)} is a URL (download it and name the file)")
        # Backslashes come from lists written on Windows.
        name, image = image, image.replace("\\", "/")
        if problem := _file_problem(source.parent / image):
            raise RowError(f"image {shorten(name)} {problem}")
    return image, text


def _default_id(record: Record, taken: set[str]) -> str:
    """Return the image as the file names it, else the row number, unique within the file."""
    image = record.values.get("image")
    name = (image.strip() if isinstance(image, str) else "") or str(record.number)
    if name in taken:
        name += f":{record.number}"
    taken.add(name)
    return name


def _cell_text(values: Mapping[str, Any], column: str) -> str:
    """Return the stripped value of a column as text, "" if it is missing."""
    value = values.get(column)
    if value is None or value != value:  # NaN marks a missing value in some tables
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, bool | list | tuple | dict | set):
        raise RowError(f"{column} must be a text, not {shorten(str(value))}")
    text = str(value).strip()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if "\udc80" <= text[error.start] <= "\udcff":
            raise RowError("not UTF-8 (save the file as UTF-8)") from None
        raise RowError(
            f"{column} contains {escape_invalid(text[error.start])}, half a character"
        ) from None
    if "\0" in text:
        raise RowError(f"{column} contains a NUL character")
    return text


def _labels(value: Any) -> Labels:
    if isinstance(value, list | tuple):
        names = [_cell_text({"a label": label}, "a label") for label in value]
    elif value is None or isinstance(value, str | bytes) or value != value:
        names = _cell_text({"labels": value}, "labels").split("|")
    else:
        raise RowError(f"labels must be a text or a list of texts, not {shorten(str(value))}")
    return frozenset(name.strip() for name in names if name.strip())


def _file_problem(path: Path) -> str:
    """Return the problem with a file that can be seen without opening it, or ""."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "is a broken link" if os.path.islink(path) else "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be read ({os_reason(error)})"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    return "" if status.st_size else "is an empty file"


def _usable_rows(manifest: Manifest, column: str, labeled: bool) -> list[_Row]:
    if column not in manifest.columns and manifest.rows:
        raise DataError(
            f"{manifest.source} has no {column}s. Add a column {column}, or pass another file."
        )
    rows = [row for row in manifest.rows if getattr(row, column) is not None]
    if labeled and "labels" in manifest.columns:
        related = []
        for row in rows:
            if row.labels or (row.image is not None and row.text is not None):
                related.append(row)  # an image and a text in one row are a pair
            else:
                manifest.report(row.id, "no label")
        rows = related
    if not rows:
        has_content = manifest.rows or manifest.problems
        raise (DataError if has_content else EmptySourceError)(
            f"{manifest.source} has no usable {column}{manifest.first_problem}. "
            "Correct the skipped rows, or pass another file."
        )
    return rows


def _collection(
    manifest: Manifest, rows: list[_Row], items: Sequence[ItemData]
) -> Collection[ItemData]:
    return Collection(
        [row.id for row in rows],
        items,
        [row.labels for row in rows] if "labels" in manifest.columns else None,
        problems=tuple(manifest.problems),
        source=str(manifest.source.resolve()),
        ids_are_row_numbers=manifest.ids_are_row_numbers,
    )


def _numbered(
    source: Path, items: list[ItemData], features: npt.NDArray[np.float32]
) -> Collection[ItemData]:
    ids = [str(row) for row in range(len(items))]
    return Collection(
        ids, items, features=features, source=str(source.resolve()), ids_are_row_numbers=True
    )
