"""Converts Python values to collections: paths, bytes, PIL images, arrays, frames, data sets."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from transhash.data.collection import (
    AuxiliaryCollection,
    Collection,
    Images,
    ImageSource,
    Labels,
    Problem,
    Texts,
)
from transhash.data.feedback import Vote, parse_vote, read_votes
from transhash.data.manifest import (
    manifest_images,
    manifest_texts,
    read_images,
    read_manifest,
    read_texts,
)
from transhash.errors import DataError, type_name
from transhash.storage import content_digest


def to_images(source: Any, ids: Sequence[str] | None = None) -> Images:
    """Convert a folder or file, images, a frame or data set with a column image, or features."""
    if isinstance(source, Collection):
        return source
    if isinstance(source, str | Path) and (isinstance(source, Path) or not _is_url(source)):
        return read_images(source)
    if _is_features(source):
        return _from_features(source, ids, Path("."))
    if (rows := _to_rows(source)) is not None:
        _require_column(rows, "image")
        images = [to_image_source(row.get("image"), f"Row {i}") for i, row in enumerate(rows)]
        names = _item_ids(images, ids or _row_ids(rows))
        return Collection(names, images, _labels(rows), objects=_objects(source, rows))
    values = _list_values(source, "Images")
    images = [to_image_source(value, f"Image {i}") for i, value in enumerate(values)]
    return Collection(_item_ids(images, ids), images, objects=values)


def to_texts(source: Any, ids: Sequence[str] | None = None) -> Texts:
    """Convert a folder or file, texts, a frame or data set with a column text, or features."""
    if isinstance(source, Collection):
        return source
    if isinstance(source, Path):
        return read_texts(source)
    if isinstance(source, str):
        if not Path(source).exists() and (" " in source or not Path(source).suffix):
            raise DataError(f"{source[:40]!r} is one text. Pass a list of texts or a file.")
        return read_texts(source)
    if _is_features(source):
        return _from_features(source, ids, "")
    if (rows := _to_rows(source)) is not None:
        _require_column(rows, "text")
        cells = [row.get("text") for row in rows]
        texts = [_to_text(_filled(cell), f"Row {i}") for i, cell in enumerate(cells)]
        names = _item_ids(texts, ids or _row_ids(rows))
        items = Collection(names, texts, _labels(rows), objects=_objects(source, rows))
        return _without_missing(items, cells)
    values = _list_values(source, "Texts")
    texts = [_to_text(_filled(value), f"Text {i}") for i, value in enumerate(values)]
    return _without_missing(Collection(_item_ids(texts, ids), texts, objects=values), values)


def to_text_list(texts: Any) -> list[str]:
    """Return texts from memory as a list; files and features are refused."""
    if isinstance(texts, np.ndarray) and texts.dtype.kind in "fiub":
        raise DataError(
            f"Texts are an array of {texts.dtype}. Pass a list of texts, or pass features to the "
            "encode_texts or project_texts of the hasher."
        )
    return [_to_text(value, f"Text {i}") for i, value in enumerate(_list_values(texts, "Texts"))]


def to_auxiliary(
    source: Any, triples: Sequence[tuple[str, str, float]] | None = None
) -> AuxiliaryCollection:
    """Convert rows of image and text, optionally with labels, to an auxiliary set."""
    if isinstance(source, AuxiliaryCollection):
        return source
    if isinstance(source, str | Path):
        manifest = read_manifest(source)
        labeled = triples is None
        return AuxiliaryCollection.from_collections(
            manifest_images(manifest, labeled=labeled),
            manifest_texts(manifest, labeled=labeled),
            triples,
        )
    rows = _tuples_to_rows(source, ("image", "text"))
    keys = _make_unique(_row_ids(rows) or [str(i) for i in range(len(rows))])
    images = [to_image_source(row.get("image"), f"Row {i}") for i, row in enumerate(rows)]
    texts = [_to_text(row.get("text"), f"Row {i}") for i, row in enumerate(rows)]
    labels = _labels(rows)
    return AuxiliaryCollection.from_collections(
        Collection(keys, images, labels), Collection(keys, texts, labels)
    )


def to_votes(source: Any) -> list[Vote]:
    """Convert a file from `transhash feedback`, or rows of image, text and vote."""
    if isinstance(source, str | Path):
        return read_votes(source)[0]
    return [
        Vote(
            to_image_source(row.get("image"), f"Vote {i}"),
            _to_text(row.get("text"), f"Vote {i}"),
            parse_vote(row.get("vote")),
        )
        for i, row in enumerate(_tuples_to_rows(source, ("image", "text", "vote")))
    ]


def drop_duplicates(images: Images) -> Images:
    """Drop rows that repeat an image without an id of its own, as a list of captions does."""
    if images.features is not None or Path(images.source or ".").is_dir():
        return images
    first: dict[str, str] = {}
    rows = []
    for row, name in enumerate(images.ids):
        first_name = first.setdefault(images.describe(row), name)
        if first_name == name or not name.startswith(f"{first_name}:"):
            rows.append(row)
    return images if len(rows) == len(images) else images.take(rows)


def to_image_source(value: Any, name: str = "The image") -> ImageSource:
    """Convert one image to a path or to the bytes of an image file."""
    if isinstance(value, str):
        if _is_url(value):
            raise DataError(f"{value[:80]} is a URL. Download the file and pass its path.")
        return Path(value)
    if isinstance(value, Path | bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):  # Hugging Face
        return to_image_source(value.get("bytes") or value["path"], name)
    if isinstance(value, Image.Image):
        return _encode_png(value)
    if hasattr(value, "__array__"):
        return _encode_png(_from_pixels(np.asarray(value), name))
    raise DataError(
        f"{name} is {type_name(value)}. Pass a path, bytes, a PIL image or an array of pixels."
    )


def _from_pixels(pixels: Any, name: str) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype == np.uint8 and is_image and pixels.size:
        return Image.fromarray(pixels)
    raise DataError(
        f"{name} is an array of type {pixels.dtype} and shape {pixels.shape}. Pass uint8 of shape "
        "(height, width) or (height, width, 3 or 4)."
    )


def _encode_png(image: Image.Image) -> bytes:
    """Encode without loss, with the Exif rotation that decoding applies."""
    buffer = io.BytesIO()
    exif = image.getexif()
    if image.mode not in ("L", "RGB", "RGBA", "P", "I;16", "1"):
        image = image.convert("RGB")
    image.save(buffer, "PNG", exif=exif, compress_level=1)
    return buffer.getvalue()


def _is_missing(value: Any) -> bool:
    """Whether a value is None or NaN, which is what pandas reads from an empty cell."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _filled(value: Any) -> Any:
    return "" if _is_missing(value) else value


def _without_missing(texts: Texts, values: Sequence[Any]) -> Texts:
    missing = {row for row, value in enumerate(values) if _is_missing(value)}
    if not missing:
        return texts
    if len(missing) == len(values):
        raise DataError("No row has a text. Pass texts.")
    problems = tuple(Problem("texts", f"row {row}", "it has no text") for row in sorted(missing))
    present = [row for row in range(len(values)) if row not in missing]
    return replace(texts.take(present), problems=problems)


def _to_text(value: Any, name: str) -> str:
    if isinstance(value, np.str_):
        value = str(value)
    if not isinstance(value, str):
        raise DataError(f"{name} is {type_name(value)}, not a text. Omit or correct it.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{name} contains half a character. Decode it as UTF-8.") from None
    return value


def _tuples_to_rows(source: Any, columns: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """Return the rows of a frame, a data set, or a list of dictionaries or tuples."""
    rows = _to_rows(source)
    if rows is None:
        rows = []
        for i, row in enumerate(_list_values(source, "Rows")):
            if (
                isinstance(row, str | bytes)
                or not isinstance(row, Sequence)
                or len(row) != len(columns)
            ):
                raise DataError(
                    f"Row {i} is {type_name(row)}. Pass ({', '.join(columns)}), or a file, a "
                    "frame or dictionaries with these columns."
                )
            rows.append(dict(zip(columns, row)))
    for column in columns:
        _require_column(rows, column)
    return rows


def _to_rows(source: Any) -> list[Mapping[str, Any]] | None:
    """Return the rows of a frame, a data set or a list of dictionaries, None for other values."""
    if hasattr(source, "to_dicts"):  # polars
        return list(source.to_dicts())
    if hasattr(source, "to_pylist") and hasattr(source, "column_names"):  # Arrow
        return list(source.to_pylist())
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # pandas
        return list(source.to_dict("records"))
    if hasattr(source, "column_names") and hasattr(source, "__getitem__"):  # Hugging Face
        return [source[i] for i in range(len(source))]
    if isinstance(source, Sequence) and len(source) and isinstance(source[0], Mapping):
        if "bytes" in source[0] or "path" in source[0]:  # images of a data set
            return None
        for i, row in enumerate(source):
            if not isinstance(row, Mapping):
                raise DataError(f"Row {i} is {type_name(row)}. Pass dictionaries only.")
        return list(source)
    return None


def _require_column(rows: Sequence[Mapping[str, Any]], column: str) -> None:
    if not rows:
        raise DataError(f"There are no rows. Pass at least one with a column {column}.")
    if not any(column in row for row in rows):
        names = ", ".join(map(repr, list(rows[0])[:8])) or "none"
        raise DataError(f"The column {column!r} is missing (columns: {names}). Rename a column.")


def _objects(source: Any, rows: Sequence[Any]) -> Sequence[Any]:
    """Return what a search result gives back: the rows, or a data set that reads them again."""
    return source if hasattr(source, "column_names") and hasattr(source, "features") else rows


def _list_values(source: Any, name: str) -> Sequence[Any]:
    """Return the values of an iterable, and refuse a single item."""
    if isinstance(source, bytes | bytearray | Image.Image | str | Mapping) or not isinstance(
        source, Iterable
    ):
        raise DataError(
            f"{name} cannot be read from {type_name(source)}. "
            "Pass a list, a file, a frame or a data set."
        )
    return list(source)


def _labels(rows: Sequence[Mapping[str, Any]]) -> list[Labels] | None:
    column = "labels" if any("labels" in row for row in rows) else "label"
    if not any(column in row for row in rows):
        return None
    return [_label_set(row.get(column), f"row {i}") for i, row in enumerate(rows)]


def _label_set(value: Any, name: str) -> Labels:
    """Parse labels from a string ("dog|park"), a class number, or a list of either."""
    if value is None or (isinstance(value, float) and value != value):
        return frozenset()
    if isinstance(value, str):
        return frozenset(label.strip() for label in value.split("|") if label.strip())
    if isinstance(value, int | np.integer):
        return frozenset({str(int(value))})
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return frozenset().union(*(_label_set(label, name) for label in value))
    raise DataError(
        f"The labels of {name} are {type_name(value)}. Pass strings, integers or lists."
    )


def _row_ids(rows: Sequence[Mapping[str, Any]]) -> list[str] | None:
    if not any("id" in row for row in rows):
        return None
    ids = [str(row["id"]) if row.get("id") is not None else "" for row in rows]
    repeated = next((name for name, count in Counter(ids).items() if name and count > 1), None)
    if repeated is not None:
        raise DataError(f"The id {repeated!r} occurs twice. Use unique ids.")
    return [name or f"row-{i}" for i, name in enumerate(ids)]


def _item_ids(items: Sequence[ImageSource | str], ids: Sequence[str] | None) -> list[str]:
    """Return `ids` if given, else paths, and digests of the content of items without a path."""
    if ids is not None:
        if len(ids) != len(items):
            raise DataError(f"There are {len(ids)} ids for {len(items)} items. Pass one per item.")
        if len(set(ids)) != len(items):
            raise DataError("An id occurs twice. Use unique ids.")
        return [str(name) for name in ids]
    return _make_unique(
        [
            str(item)
            if isinstance(item, Path)
            else content_digest(item if isinstance(item, bytes) else item.encode()).hex()[:12]
            for item in items
        ]
    )


def _make_unique(names: Sequence[str]) -> list[str]:
    counts: Counter[str] = Counter()
    unique = []
    for name in names:
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name}:{counts[name]}")
    return unique


def _is_features(source: Any) -> bool:
    return isinstance(source, np.ndarray) and source.ndim == 2 and source.dtype.kind == "f"


def _from_features(array: Any, ids: Sequence[str] | None, item: Any) -> Collection[Any]:
    features = np.asarray(array, np.float32)
    if not np.isfinite(features).all():
        row = int(np.argmin(np.isfinite(features).all(axis=1)))
        raise DataError(f"Row {row} of the features is not finite. Remove or correct it.")
    names = list(ids) if ids is not None else [str(i) for i in range(len(features))]
    return Collection(
        names, [item] * len(features), features=features, ids_are_row_numbers=ids is None,
        objects=array,
    )  # fmt: skip


def _is_url(text: str) -> bool:
    return text.partition("://")[0].lower() in ("http", "https", "s3", "gs", "ftp") and (
        "://" in text
    )
