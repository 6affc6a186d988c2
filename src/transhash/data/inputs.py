"""What people hold in Python as collections: paths, bytes, PIL, arrays, frames, data sets.

This is the edge: behind it there are `Images`, `Texts` and `AuxiliaryCollection`, whatever came in.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    Texts,
)
from transhash.data.feedback import Vote, parse_vote, read_votes
from transhash.data.manifest import manifest_images, read_images, read_manifest, read_texts
from transhash.data.manifest import manifest_texts as manifest_texts
from transhash.errors import DataError
from transhash.storage import content_digest

_PICTURES = "a path, bytes, a PIL image or an array of pixels"
_PAIRS = (
    "a file, a frame or data set with columns image and text, or a list of (image, text) or of "
    "dictionaries"
)


def to_images(source: Any, ids: Sequence[str] | None = None) -> Images:
    """A folder or file, pictures, a frame or data set with a column image, or feature rows."""
    if isinstance(source, Collection):
        return source
    if isinstance(source, str | Path) and (isinstance(source, Path) or not _url(source)):
        return read_images(source)
    if _is_features(source):
        return _features(source, ids, Path("."))
    if (rows := _rows_of(source)) is not None:
        _need(rows, "image")
        pictures = [to_image_source(row.get("image"), f"row {i}") for i, row in enumerate(rows)]
        return Collection(_ids(pictures, ids or _given(rows)), pictures, _labels(rows))
    pictures = [
        to_image_source(one, f"image {i}") for i, one in enumerate(_listed(source, "images"))
    ]
    return Collection(_ids(pictures, ids), pictures)


def to_texts(source: Any, ids: Sequence[str] | None = None) -> Texts:
    """A file, texts, a frame or data set with a column text, or feature rows."""
    if isinstance(source, Collection):
        return source
    if isinstance(source, Path):
        return read_texts(source)
    if isinstance(source, str):
        if not Path(source).exists() and (" " in source or not Path(source).suffix):
            raise DataError(f"texts are a list or a file, got the one text {source[:40]!r}")
        return read_texts(source)
    if _is_features(source):
        return _features(source, ids, "")
    if (rows := _rows_of(source)) is not None:
        _need(rows, "text")
        texts = [_text(row.get("text"), f"row {i}") for i, row in enumerate(rows)]
        return Collection(_ids(texts, ids or _given(rows)), texts, _labels(rows))
    texts = [_text(one, f"text {i}") for i, one in enumerate(_listed(source, "texts"))]
    return Collection(_ids(texts, ids), texts)


def to_auxiliary(source: Any) -> AuxiliaryCollection:
    """The bridge: rows of image and text, and labels where there are some."""
    if isinstance(source, AuxiliaryCollection):
        return source
    if isinstance(source, str | Path):
        manifest = read_manifest(source)
        return AuxiliaryCollection.from_collections(
            manifest_images(manifest, labelled=True), manifest_texts(manifest, labelled=True)
        )
    rows = _rows_of(source)
    if rows is None:
        rows = []
        for i, pair in enumerate(_listed(source, "pairs")):
            if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise DataError(f"pair {i} is {_kind(pair)}; pairs are {_PAIRS}")
            rows.append({"image": pair[0], "text": pair[1]})
    _need(rows, "image")
    _need(rows, "text")
    keys = _given(rows) or [str(i) for i in range(len(rows))]
    pictures = [to_image_source(row.get("image"), f"row {i}") for i, row in enumerate(rows)]
    texts = [_text(row.get("text"), f"row {i}") for i, row in enumerate(rows)]
    labels = _labels(rows)
    return AuxiliaryCollection.from_collections(
        Collection(_distinct(keys), pictures, labels), Collection(_distinct(keys), texts, labels)
    )


def to_votes(source: Any) -> list[Vote]:
    """A file that `transhash feedback` wrote, rows of image, text and vote, or triples of them."""
    if isinstance(source, str | Path):
        return read_votes(source)[0]
    rows = _rows_of(source)
    if rows is None:
        rows = []
        for i, triple in enumerate(_listed(source, "votes")):
            if not isinstance(triple, Sequence) or len(triple) != 3:
                raise DataError(f"vote {i} is {_kind(triple)}; votes are (image, text, 0 or 1)")
            rows.append(dict(zip(("image", "text", "vote"), triple)))
    for column in ("image", "text", "vote"):
        _need(rows, column)
    return [
        Vote(
            to_image_source(row.get("image"), f"vote {i}"),
            _text(row.get("text"), f"vote {i}"),
            parse_vote(row.get("vote")),
        )
        for i, row in enumerate(rows)
    ]


def drop_duplicates(images: Images) -> Images:
    """Without rows that name a picture again and give it no id: a table of captions has many."""
    if images.features is not None or Path(images.source or ".").is_dir():
        return images
    first: dict[str, str] = {}
    rows = []
    for row, name in enumerate(images.ids):
        known = first.setdefault(images.describe(row), name)
        if known == name or not name.startswith(f"{known}:"):
            rows.append(row)
    return images if len(rows) == len(images) else images.take(rows)


def to_image_source(value: Any, where: str = "the image") -> ImageSource:
    """One picture as a path or as the bytes of an image file."""
    if isinstance(value, str):
        if _url(value):
            raise DataError(f"{where} is the address {value[:80]}; download it and give the file")
        return Path(value)
    if isinstance(value, Path | bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):  # data sets'
        return to_image_source(value.get("bytes") or value["path"], where)
    if isinstance(value, Image.Image):
        return _encoded(value)
    if hasattr(value, "__array__"):
        return _encoded(_of_pixels(np.asarray(value), where))
    raise DataError(f"{where} is {_kind(value)}; give {_PICTURES}")


def _of_pixels(pixels: Any, where: str) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    fits = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype == np.uint8 and fits and pixels.size:
        return Image.fromarray(pixels)
    raise DataError(
        f"{where} is an array of {pixels.dtype} of shape {pixels.shape}; pixels are uint8, "
        "(height, width) or (height, width, 3 or 4)"
    )


def _encoded(image: Image.Image) -> bytes:
    """As a file, without loss; what a file would say about rotation is applied when it is read."""
    buffer = io.BytesIO()
    keep = image if image.mode in ("L", "RGB", "RGBA", "P", "I;16", "1") else image.convert("RGB")
    keep.save(buffer, "PNG", exif=image.getexif(), compress_level=1)
    return buffer.getvalue()


def _text(value: Any, where: str) -> str:
    if isinstance(value, np.str_):
        value = str(value)
    if not isinstance(value, str):
        raise DataError(f"{where} is {_kind(value)}, not a text; leave it out or mend it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where} holds half a character; decode it as UTF-8") from None
    return value


def _rows_of(source: Any) -> list[Mapping[str, Any]] | None:
    """The rows of a frame (pandas, polars, Arrow), of a data set, or of a list of dictionaries."""
    if hasattr(source, "to_dicts"):  # polars
        return list(source.to_dicts())
    if hasattr(source, "to_pylist") and hasattr(source, "column_names"):  # Arrow
        return list(source.to_pylist())
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # pandas
        return list(source.to_dict("records"))
    if hasattr(source, "column_names") and hasattr(source, "__getitem__"):  # Hugging Face
        return [source[i] for i in range(len(source))]
    if isinstance(source, Sequence) and len(source) and isinstance(source[0], Mapping):
        if "bytes" in source[0] or "path" in source[0]:  # pictures of a data set
            return None
        for i, row in enumerate(source):
            if not isinstance(row, Mapping):
                raise DataError(f"row {i} is {_kind(row)}, the first one a dictionary")
        return list(source)
    return None


def _need(rows: Sequence[Mapping[str, Any]], column: str) -> None:
    if not rows:
        raise DataError(f"there is no row with a column {column}")
    if not any(column in row for row in rows):
        there = ", ".join(map(repr, list(rows[0])[:8])) or "none"
        raise DataError(
            f"there is no column named {column!r}, only {there}; rename the one that is meant"
        )


def _listed(source: Any, what: str) -> Iterator[Any]:
    if isinstance(source, bytes | bytearray | Image.Image | str | Mapping) or not isinstance(
        source, Iterable
    ):
        raise DataError(
            f"{what} must be a list, a file, a frame or a data set, got {_kind(source)}"
        )
    return iter(source)


def _labels(rows: Sequence[Mapping[str, Any]]) -> list[Labels] | None:
    column = "labels" if any("labels" in row for row in rows) else "label"
    if not any(column in row for row in rows):
        return None
    return [_label_set(row.get(column), f"row {i}") for i, row in enumerate(rows)]


def _label_set(value: Any, where: str) -> Labels:
    """Of a text ("dog|park"), a class number, or a list of either."""
    if value is None or (isinstance(value, float) and value != value):
        return frozenset()
    if isinstance(value, str):
        return frozenset(word.strip() for word in value.split("|") if word.strip())
    if isinstance(value, int | np.integer):
        return frozenset({str(int(value))})
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return frozenset().union(*(_label_set(one, where) for one in value))
    raise DataError(f"the labels of {where} are {_kind(value)}; give texts, numbers or a list")


def _given(rows: Sequence[Mapping[str, Any]]) -> list[str] | None:
    if not any("id" in row for row in rows):
        return None
    ids = [str(row["id"]) if row.get("id") is not None else "" for row in rows]
    twice = next((name for i, name in enumerate(ids) if name and name in ids[:i]), None)
    if twice is not None:
        raise DataError(f"the id {twice!r} occurs twice; ids tell items apart")
    return [name or f"row-{i}" for i, name in enumerate(ids)]


def _ids(items: Sequence[ImageSource | str], given: Sequence[str] | None) -> list[str]:
    """Given ones; else a path as it was written, else what the content is: it has no other name."""
    if given is not None:
        if len(given) != len(items):
            raise DataError(f"there are {len(given)} ids for {len(items)} items")
        if len(set(given)) != len(items):
            raise DataError("an id occurs twice; ids tell items apart")
        return [str(name) for name in given]
    return _distinct(
        [
            str(item)
            if isinstance(item, Path)
            else content_digest(item if isinstance(item, bytes) else item.encode()).hex()[:12]
            for item in items
        ]
    )


def _distinct(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        out.append(name if count == 1 else f"{name}:{count}")
    return out


def _is_features(source: Any) -> bool:
    return isinstance(source, np.ndarray) and source.ndim == 2 and source.dtype.kind == "f"


def _features(rows: Any, ids: Sequence[str] | None, item: Any) -> Collection[Any]:
    features = np.asarray(rows, np.float32)
    if not np.isfinite(features).all():
        row = int(np.argmin(np.isfinite(features).all(axis=1)))
        raise DataError(f"row {row} of the features has a value that is not a finite number")
    names = list(ids) if ids is not None else [str(i) for i in range(len(features))]
    return Collection(
        names, [item] * len(features), features=features, ids_are_row_numbers=ids is None
    )


def _url(text: str) -> bool:
    return text.partition("://")[0].lower() in ("http", "https", "s3", "gs", "ftp") and (
        "://" in text
    )


def _kind(value: Any) -> str:
    if value is None:
        return "nothing (None)"
    return f"a {type(value).__name__}"
