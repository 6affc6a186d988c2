"""Anybody's files as collections: folder, csv, tsv, jsonl, parquet, txt or npy.

Bad rows are skipped and listed with a reason; a bad structure is one DataError.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Record,
    delimiter_of,
    escape_invalid,
    is_table,
    open_text,
    os_reason,
    read_fields,
    read_records,
    shorten,
)
from transhash.errors import DataError

# What stands in a folder: pictures, or notes, each a text in a file of its own.

IMAGE_SUFFIXES = {
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif",
}  # fmt: skip
TEXT_SUFFIXES = {".txt", ".md"}


def list_files(folder: Path, report: Callable[[str, str], None]) -> Iterator[str]:
    """Everything in the folder that is no folder, as a relative path with slashes.

    What cannot be entered is reported, by its place and the reason.
    """

    def told(error: OSError) -> None:
        where = Path(os.fsdecode(error.filename)).relative_to(folder).as_posix()
        if where == ".":
            raise DataError(f"{folder} cannot be read ({os_reason(error)})") from None
        report(where, f"folder cannot be read ({os_reason(error)})")

    for place, folders, files in os.walk(folder, onerror=told):
        for name in folders:
            if os.path.islink(os.path.join(place, name)):
                where = (Path(place) / name).relative_to(folder).as_posix()
                report(where, "a link to a folder, not followed; give that folder itself")
        inner = Path(place).relative_to(folder).as_posix()
        yield from files if inner == "." else (f"{inner}/{name}" for name in files)


def extension_problem(suffix: str, part: str) -> str:
    """Why a file is no image, or no text."""
    if part == "image" and suffix.lower() in (".svg", ".svgz"):
        return "an SVG drawing, which has no pixels; export it as PNG"
    return f"not {'an image' if part == 'image' else 'a text'} by its extension {suffix!r}"


def read_text_file(path: Path) -> tuple[str, str]:
    """The whole text of a file, or "" and what is wrong with it."""
    try:
        text = path.read_bytes().decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return "", "not UTF-8; save it as UTF-8"
    except OSError as error:
        return "", f"cannot be read ({os_reason(error)})"
    if "\0" in text:
        return "", "text holds a NUL character"
    return text, "" if text else "holds no text"


# Features that were computed elsewhere: the rows of a .npy file.

_WHOLE = 1 << 28  # bytes of a file that is read as a whole; a larger one stays where it is
_PART = 1 << 25  # bytes of a larger one that are looked at together


def read_array(source: Path) -> npt.NDArray[np.float32]:
    """The rows of a .npy of finite numbers, (items, features).

    A large one of float32 is not copied: it is mapped, and what is never asked for is never held.
    """
    try:
        with np.errstate(over="ignore"):
            # Mapped, so that a header that promises more than the file holds allocates nothing.
            mapped = np.load(source, mmap_mode="r", allow_pickle=False)
            if not isinstance(mapped, np.ndarray):
                raise ValueError("it is an archive of arrays")
            if mapped.ndim == 2 and mapped.dtype.kind in "fiu":
                stays = mapped.dtype == np.float32 and mapped.nbytes > _WHOLE
                array = mapped if stays else np.array(mapped, dtype=np.float32)
    except Exception as error:  # a damaged header fails in tokenize, ast, struct, mmap and zipfile
        raise DataError(f"{source} is not a plain .npy array ({os_reason(error)})") from None
    if mapped.ndim != 2 or mapped.dtype.kind not in "fiu" or not array.size:
        raise DataError(
            f"{source} must be a matrix of numbers (items x features), "
            f"got {mapped.dtype} of shape {mapped.shape}"
        )
    bad = _not_finite(array, source)
    if len(bad):
        raise DataError(
            f"{source}, row {bad[0]}: a feature is not a finite number (NaN, infinity, or beyond "
            f"3e38), as in {len(bad)} of {len(array)} rows; remove or mend them"
        )
    return array


def _not_finite(array: npt.NDArray[Any], source: Path) -> npt.NDArray[np.int64]:
    """Numbers of the rows that are not."""
    mapped = isinstance(array, np.memmap) and array.flags.c_contiguous
    size = array.itemsize * array.shape[1]
    count = max(1, _PART // size)
    bad = []
    for start in range(0, len(array), count):
        part = array[start : start + count]
        if mapped:  # by a map of its own: pages of the other one would stay and count as memory
            offset = array.offset + start * size  # type: ignore[attr-defined]
            part = np.memmap(source, array.dtype, "r", offset, part.shape)
        bad.append(start + np.flatnonzero(~np.isfinite(part).all(axis=1)))
    return np.concatenate(bad)


_READABLE = (
    "a folder of images or of notes (.txt, .md), or a .csv, .tsv, .jsonl, .parquet, .txt or .npy "
    "file"
)
_UNLABELLED: Labels = frozenset()
_IGNORED = {".ds_store", "thumbs.db", "desktop.ini"}


@dataclass(slots=True)
class _Row:
    id: str  # "" where the file gives none, until all are read
    image: str | None  # in the folder that is the source, or that the source stands in
    text: str | None
    labels: Labels
    default_id: str


class RowError(Exception):
    """Why a row is skipped."""


@dataclass
class Manifest:
    """The rows of one source, before they are split by modality."""

    source: Path
    columns: frozenset[str] = frozenset()
    rows: list[_Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ids_are_row_numbers: bool = False  # no row has an id or an image to be known by

    def report(self, where: str, reason: str) -> None:
        self.problems.append(
            Problem(str(self.source), escape_invalid(where), escape_invalid(reason))
        )


def read_images(source: str | Path, *, labelled: bool = False) -> Images:
    """The images of a source; with `labelled`, rows that nothing can relate are skipped."""
    source = _existing(source)
    if source.suffix.lower() == ".npy":
        features = read_array(source)
        return _numbered(source, [Path(str(row)) for row in range(len(features))], features)
    return manifest_images(read_manifest(source), labelled=labelled)


def read_texts(source: str | Path, *, labelled: bool = False) -> Texts:
    """The texts of a source; of a folder its .txt and .md files, each a text as a whole."""
    source = _existing(source)
    if source.is_dir():
        return manifest_texts(_read_folder(source, TEXT_SUFFIXES))
    if source.suffix.lower() == ".npy":
        features = read_array(source)
        return _numbered(source, [""] * len(features), features)
    return manifest_texts(read_manifest(source), labelled=labelled)


def manifest_images(manifest: Manifest, *, labelled: bool = False) -> Images:
    rows = _usable(manifest, "image", labelled)
    folder = manifest.source if manifest.source.is_dir() else manifest.source.parent
    return _collection(manifest, rows, FolderPaths(folder, [row.image or "" for row in rows]))


def manifest_texts(manifest: Manifest, *, labelled: bool = False) -> Texts:
    rows = _usable(manifest, "text", labelled)
    return _collection(manifest, rows, [row.text for row in rows if row.text is not None])


def read_manifest(source: str | Path) -> Manifest:
    """All rows of a source; image paths are taken relative to the file they stand in.

    A folder is one of images if it holds any, else one of notes.
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
        suffix = source.suffix.lower() or "no extension"
        raise DataError(f"{source}: {suffix} is not readable; give {_READABLE}")
    manifest = Manifest(source)
    unit = "row" if source.suffix.lower() == ".parquet" else "line"
    columns: set[str] = set()
    given: set[str] = set()
    defaults: set[str] = set()
    for record in read_records(source):
        columns |= record.values.keys() & set(COLUMNS)
        try:
            # Claimed by bad rows too: mending one must not give another row a new id.
            row = _row(source, record, _default_id(record, defaults))
            if row.id and row.id in given:
                raise RowError(f"id {shorten(row.id)} occurs twice; the first is kept")
        except RowError as problem:
            manifest.report(f"{unit} {record.number}", str(problem))
            continue
        given.add(row.id)
        manifest.rows.append(row)
    manifest.columns = frozenset(columns)
    manifest.ids_are_row_numbers = all(not row.id and row.image is None for row in manifest.rows)
    for row in manifest.rows:
        name = row.id or row.default_id
        while not row.id and name in given:
            name += ":default"
        row.id = name
    return manifest


def read_triples(source: str | Path) -> tuple[list[tuple[str, str, float]], list[Problem]]:
    """Lines of image id, text id, 0 or 1; a header line may stand first."""
    source = Path(source)
    if not os.path.isfile(source):
        raise DataError(
            f"{escape_invalid(str(source))} does not exist; give a csv or tsv of image id, text id, 0/1"
        )
    manifest = Manifest(source)
    triples: list[tuple[str, str, float]] = []
    for number, fields, problem in read_fields(open_text(source), delimiter_of(source), width=3):
        if problem or fields[2].strip() not in ("0", "1"):
            if number > 1:
                manifest.report(f"line {number}", problem or "not image id, text id, 0 or 1")
            continue
        triples.append((fields[0].strip(), fields[1].strip(), float(fields[2])))
    if not triples:
        raise DataError(f"{source} holds no line of image id, text id, 0 or 1")
    return triples, manifest.problems


def _existing(source: str | Path) -> Path:
    """The source, if it is there and has a name that can be kept and shown."""
    source = Path(source)
    name = str(source)
    try:
        os.stat(source)
        name = str(source.resolve())
        name.encode()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{shorten(name)} does not exist; give {_READABLE}") from None
    except UnicodeEncodeError:
        raise DataError(f"the name of {escape_invalid(name)} is not UTF-8; rename it") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{shorten(name)} cannot be read ({os_reason(error)})") from None
    return source


def _read_folder(folder: Path, suffixes: set[str]) -> Manifest:
    part = "text" if suffixes is TEXT_SUFFIXES else "image"
    manifest = Manifest(folder, frozenset({"id", part}))
    # By folder, then by name: "a/b" before "a-b".
    for name in sorted(
        list_files(folder, manifest.report), key=lambda name: name.replace("/", "\0")
    ):
        last = name.rpartition("/")[2]
        suffix = os.path.splitext(last)[1]
        if last.lower() in _IGNORED or last.startswith("."):
            continue
        if suffix.lower() not in suffixes:
            manifest.report(name, extension_problem(suffix, part))
        elif problem := _flaw_of_file(folder / name):
            manifest.report(name, problem)
        elif escape_invalid(name) != name:
            manifest.report(name, "its name is not UTF-8; rename it")
        elif part == "image":
            manifest.rows.append(_Row(name, name, None, _UNLABELLED, name))
        elif not (note := read_text_file(folder / name))[0]:
            manifest.report(name, note[1])
        else:
            manifest.rows.append(_Row(name, None, note[0], _UNLABELLED, name))
    if not manifest.rows:
        first = f"; first problem: {manifest.problems[0].reason}" if manifest.problems else ""
        raise DataError(
            f"{folder} holds no {part} ({', '.join(sorted(suffixes))}), nor do its "
            f"sub-folders{first}"
        )
    return manifest


def _row(source: Path, record: Record, default_id: str) -> _Row:
    if record.problem:
        raise RowError(record.problem)
    values = record.values
    image, text = image_and_text(source, values)
    if image is None and text is None:
        raise RowError("neither image nor text")
    return _Row(_cell_text(values, "id"), image, text, _labels(values.get("labels")), default_id)


def image_and_text(source: Path, values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """What a row of `source` names: an image that is there, and a text."""
    image, text = (_cell_text(values, column) or None for column in ("image", "text"))
    if image is not None:
        # Backslashes come from Windows lists; they never occur in a sensible file name.
        if "://" in image[:10]:
            raise RowError(f"image {shorten(image)} is an address; download it and name the file")
        listed, image = image, image.replace("\\", "/")
        if problem := _flaw_of_file(source.parent / image):
            raise RowError(f"image {shorten(listed)} {problem}")
    return image, text


def _default_id(record: Record, taken: set[str]) -> str:
    """The image as the file names it, else where the row stands; two rows never have the same."""
    image = record.values.get("image")
    name = (image.strip() if isinstance(image, str) else "") or str(record.number)
    if name in taken:
        name += f":{record.number}"
    taken.add(name)
    return name


def _cell_text(values: Any, column: str) -> str:
    """The value of a column as text without blanks around it; "" where there is none."""
    value = values.get(column)
    if value is None or value != value:  # NaN is how some tables write a gap
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, bool | list | tuple | dict | set):
        raise RowError(f"{column} must be a text, not {shorten(str(value))}")
    word = str(value).strip()
    try:
        word.encode()
    except UnicodeEncodeError as error:
        if "\udc80" <= word[error.start] <= "\udcff":
            raise RowError("not UTF-8; save the file as UTF-8 to keep this row") from None
        raise RowError(
            f"{column} holds {escape_invalid(word[error.start])}, half a character"
        ) from None
    if "\0" in word:
        raise RowError(f"{column} holds a NUL character")
    return word


def _labels(value: Any) -> Labels:
    if isinstance(value, list | tuple):
        words = [_cell_text({"a label": label}, "a label") for label in value]
    elif value is None or isinstance(value, str | bytes) or value != value:
        words = _cell_text({"labels": value}, "labels").split("|")
    else:
        raise RowError(f"labels must be a text or a list of texts, not {shorten(str(value))}")
    return frozenset(word.strip() for word in words if word.strip())


def _flaw_of_file(path: Path) -> str:
    """What is wrong with a file before it is opened, or ""."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return "is a link to nothing" if os.path.islink(path) else "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be read ({os_reason(error)})"
    if not stat.S_ISREG(found.st_mode):
        return "is not a file"
    return "" if found.st_size else "is an empty file"


def _usable(manifest: Manifest, part: str, labelled: bool) -> list[_Row]:
    if part not in manifest.columns and manifest.rows:
        kinds = " and ".join(sorted(manifest.columns - {"id", "labels"}))
        raise DataError(
            f"{manifest.source} holds {kinds or 'no'} items where {part}s are needed; "
            f"add a column named {part} or give another file"
        )
    rows = [row for row in manifest.rows if getattr(row, part) is not None]
    if labelled and "labels" in manifest.columns:
        related = []
        for row in rows:
            if row.labels or (row.image is not None and row.text is not None):
                related.append(row)  # one with both is related by being one row
            else:
                manifest.report(row.id, "no label")
        rows = related
    if not rows:
        first = f"; first problem: {manifest.problems[0].reason}" if manifest.problems else ""
        raise DataError(f"{manifest.source} holds no usable {part}{first}")
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
