"""The file of an item, found by its number alone, and only while it is the one that was indexed."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from PIL import Image

from transhash.errors import DataError
from transhash.features.decode import open_image
from transhash.search.catalog import Catalog, Item

_LARGE = 1600  # pixels of the longer side: more than most screens show
_PIECE = 1 << 18  # bytes sent at a time
# What browsers may be told that a file is; none of these can hold a script.
_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".avif": "image/avif",
    ".heic": "image/heic",
    ".heif": "image/heif",
}


class NoOriginalError(DataError):
    """The file cannot be given; `status` says why to programs, the message to people."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Original:
    """An open file whose content has the digest that the catalog knows."""

    def __init__(self, file: BinaryIO, name: str, tag: str) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.tag = tag
        self.name = name

    def headers(self, *, download: bool) -> dict[str, str]:
        how = "attachment" if download else "inline"
        return {
            "Content-Disposition": f"{how}; filename*=UTF-8''{quote(self.name, safe='')}",
            "Content-Length": str(self.size),
            "Content-Type": _TYPES.get(Path(self.name).suffix.lower(), "application/octet-stream"),
        }

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, as many as were announced; from the open file, which is closed at the end."""
        left = self.size
        with self._file:
            while left and (piece := self._file.read(min(left, _PIECE))):
                left -= len(piece)
                yield piece

    def preview(self) -> bytes:
        """A JPEG of up to 1,600 pixels, encoded anew: pixels and nothing else of the file."""
        image = open_image(self._file.read(), _LARGE)
        if isinstance(image, str):
            raise NoOriginalError(409, f"the file of this item cannot be shown: {image}")
        image.thumbnail((_LARGE, _LARGE), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=88)
        return buffer.getvalue()

    def close(self) -> None:
        self._file.close()


def open_original(catalog: Catalog, item: Item) -> Original:
    """The item's file, read once to see that it is the one that was indexed."""
    if item.modality != "images" or item.source is None:
        raise NoOriginalError(404, f"item {item.number} has no file of its own to give")
    digest = catalog.digest(item.number)
    if digest is None:
        raise NoOriginalError(
            409, f"item {item.number} was indexed before files could be told apart; index it again"
        )
    try:
        # Not to wait where something else than a file took its name, a pipe for example.
        number = os.open(item.source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        raise _gone(item) from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise _gone(item)
    file = os.fdopen(number, "rb")
    try:
        state = hashlib.blake2b(digest_size=len(digest))  # as content_digest, piece by piece
        while piece := file.read(_PIECE):
            state.update(piece)
        if state.digest() != digest:
            raise NoOriginalError(
                409, f"the file of item {item.number} has changed since; index it again"
            )
        file.seek(0)
        return Original(file, Path(item.source).name, digest.hex())
    except BaseException:
        file.close()
        raise


def _gone(item: Item) -> NoOriginalError:
    return NoOriginalError(410, f"the file of item {item.number} is gone from where it was indexed")
