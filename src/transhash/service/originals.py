"""Open the file of an indexed image by its number, if it is still the file that was indexed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO
from urllib.parse import quote

from transhash.errors import DataError
from transhash.features.decode import MAX_FILE_BYTES, ImageTask, Render
from transhash.search.catalog import Catalog, Item
from transhash.storage import open_regular

_PREVIEW_PIXELS = 1600  # longer side: more than most screens show
_CHUNK_BYTES = 1 << 18
_MEMORY_BYTES = 1 << 24  # a longer copy is a temporary file on disk
# Image types that browsers may be told; none of these formats can have a script.
_IMAGE_TYPES = ("jpeg", "png", "webp", "bmp", "gif", "tiff", "avif", "heic", "heif")
_SUFFIX_TYPES = {"jpg": "jpeg", "tif": "tiff"}  # suffixes that are not the name of the type


class OriginalNotAvailableError(DataError):
    """The original file cannot be sent; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Original:
    """A copy of a file whose content has the digest stored in the catalog."""

    def __init__(self, file: IO[bytes], size: int, name: str, digest: str) -> None:
        self._file, self._size, self._name = file, size, name
        self.digest = digest

    def headers(self, *, download: bool) -> dict[str, str]:
        disposition = "attachment" if download else "inline"
        suffix = Path(self._name).suffix.lower().removeprefix(".")
        kind = _SUFFIX_TYPES.get(suffix, suffix)
        return {
            "Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(self._name, safe='')}",
            "Content-Length": str(self._size),
            "Content-Type": f"image/{kind}" if kind in _IMAGE_TYPES else "application/octet-stream",
        }

    def chunks(self) -> Iterator[bytes]:
        """Yield as many bytes as Content-Length says, then close the file."""
        remaining = self._size
        with self._file:
            while remaining and (chunk := self._file.read(min(remaining, _CHUNK_BYTES))):
                remaining -= len(chunk)
                yield chunk

    def preview(self, render: Render) -> bytes:
        """Return a JPEG of up to 1,600 pixels, re-encoded so that no metadata remains."""
        side = _PREVIEW_PIXELS
        task = ImageTask(side, pixels=False, jpeg_side=side, jpeg_quality=88)
        result = render(self._file.read(), task)
        if isinstance(result, str) or result.jpeg is None:
            raise OriginalNotAvailableError(409, f"The image cannot be shown. Reason: {result}")
        return result.jpeg

    def close(self) -> None:
        self._file.close()


def open_original(
    catalog: Catalog, item: Item, is_cancelled: Callable[[], bool] = lambda: False
) -> Original:
    """Return a copy of the item's file, after comparing its digest with the catalog.

    The file itself may change after it was compared. `is_cancelled` ends a long copy.
    """
    digest = catalog.digest(item.number)
    if item.modality != "images" or item.path is None or digest is None:
        raise OriginalNotAvailableError(404, f"Item {item.number} has no file. Choose an image.")
    try:
        file = open_regular(item.path)
    except OSError:
        raise _missing(item) from None
    copy = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 (the caller closes it)
    try:
        state, size = hashlib.blake2b(digest_size=len(digest)), 0  # as content_digest
        with file:
            is_indexable = os.fstat(file.fileno()).st_size <= MAX_FILE_BYTES
            while is_indexable and (chunk := file.read(_CHUNK_BYTES)):
                if is_cancelled():
                    raise OriginalNotAvailableError(503, "The service stops. Try again later.")
                size += len(chunk)
                is_indexable = size <= MAX_FILE_BYTES
                state.update(chunk)
                copy.write(chunk)
        if not is_indexable or state.digest() != digest:
            raise OriginalNotAvailableError(
                409, f"The file of item {item.number} has changed. Index it again."
            )
        copy.seek(0)
        return Original(copy, size, Path(item.path).name, digest.hex())
    except BaseException:
        copy.close()
        raise


def _missing(item: Item) -> OriginalNotAvailableError:
    message = f"The file of item {item.number} is missing. Restore it or index it again."
    return OriginalNotAvailableError(410, message)
