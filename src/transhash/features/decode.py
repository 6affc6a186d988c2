"""Decode image files to RGB pixels, digests and summaries.

Each file is read once. An unreadable file gives a reason instead of an exception.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError
from PIL import features as pillow_features

from transhash.features.metadata import ImageMetadata, read_metadata
from transhash.storage import content_digest, open_regular

Pixels = npt.NDArray[np.uint8]  # (size, size, 3)
MAX_DECODE_BYTES = 1 << 30  # of memory for one image, besides the content of its file
MAX_FILE_BYTES = 1 << 29  # enough for 100 megapixels without compression
# Decoding takes up to 8 bytes per pixel, so that these stay below MAX_DECODE_BYTES.
_MAX_PIXELS = 100_000_000
_MAX_PIXELS_OF = {  # their decoders hold several copies of the image
    "AVIF": 64_000_000,
    "HEIF": 64_000_000,
    "WEBP": 50_000_000,
}
_MAX_JPEG_PIXELS = 1_000_000_000  # a JPEG that is not progressive is decoded at an eighth
_MAX_SIDE = 65_535  # as in a JPEG; resizing an image of 99,000,000 x 1 pixels takes gigabytes
_TOO_MANY_BYTES = f"more than {MAX_FILE_BYTES >> 20} MB (save it smaller)"
_THUMBNAIL_SIZE = 256  # pixels of the longer side
_FINGERPRINT_SIZE = 8
_STRIP_PIXELS = 1 << 22  # converted at a time
_FORMATS = ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"hevm", b"mif1", b"msf1")

if pillow_features.check("avif"):
    _FORMATS.append("AVIF")
with suppress(ImportError):  # an extra
    import pillow_heif

    pillow_heif.register_heif_opener()
    _FORMATS.append("HEIF")


def decode(source: Path | bytes, size: int) -> Pixels | str:
    """Return RGB bytes (size, size, 3), or the reason why the image is unreadable."""
    image = open_image(source, size)
    return image if isinstance(image, str) else square(image, size)


def square(image: Image.Image, size: int) -> Pixels:
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized)  # a copy: torch warns about read-only arrays


class ImageTask(NamedTuple):
    """What to make of an image."""

    size: int  # pixels that are needed; a JPEG is decoded no larger
    pixels: bool = True  # RGB bytes, (size, size, 3)
    upscale: bool = True  # False: an image smaller than `size` keeps its size
    jpeg_side: int = 0  # longer side of a JPEG; 0 for none
    jpeg_quality: int = 85
    describe: bool = False  # whether fingerprint and metadata are needed


class ImageSummary(NamedTuple):
    """What an index stores of an image besides its code."""

    thumbnail: bytes  # a small JPEG
    fingerprint: bytes  # tiny RGB pixels, to recognize copies
    metadata: ImageMetadata


class ImageResult(NamedTuple):
    pixels: Pixels | None
    jpeg: bytes | None
    fingerprint: bytes = b""
    metadata: ImageMetadata | None = None

    @property
    def summary(self) -> ImageSummary | None:
        if self.jpeg is None or self.metadata is None:
            return None
        return ImageSummary(self.jpeg, self.fingerprint, self.metadata)


Render = Callable[[bytes, ImageTask], "ImageResult | str"]


def summary_task(size: int) -> ImageTask:
    """Return the task of an image that is indexed with a summary."""
    return ImageTask(size, jpeg_side=_THUMBNAIL_SIZE, describe=True)


def render(content: bytes, task: ImageTask) -> ImageResult | str:
    """Return what a task wants of an image file's bytes, or the reason why it is unreadable."""
    opened = _open_upright(content, task.size, describe=task.describe)
    if isinstance(opened, str):
        return opened
    image, metadata = opened
    pixels = jpeg = None
    fingerprint = b""
    if task.pixels:
        keeps_size = not task.upscale and max(image.size) <= task.size
        pixels = np.array(image) if keeps_size else square(image, task.size)
    if task.jpeg_side:
        # Encoding again drops everything but pixels, such as the place where a photo was taken.
        image.thumbnail((task.jpeg_side, task.jpeg_side), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=task.jpeg_quality)
        jpeg = buffer.getvalue()
    if task.describe:
        tiny = image.resize((_FINGERPRINT_SIZE, _FINGERPRINT_SIZE), Image.Resampling.BOX)
        fingerprint = tiny.tobytes()
    return ImageResult(pixels, jpeg, fingerprint, metadata)


def open_image(source: Path | bytes, size: int | None = None) -> Image.Image | str:
    """Return an upright RGB image, or the reason why it is unreadable.

    With `size`, a JPEG is decoded no larger than needed to resize it to that size. What takes
    more memory than MAX_DECODE_BYTES is refused by its header.
    """
    opened = _open_upright(source, size, describe=False)
    return opened if isinstance(opened, str) else opened[0]


def _open_upright(
    source: Path | bytes, size: int | None, *, describe: bool
) -> tuple[Image.Image, ImageMetadata | None] | str:
    """Return the image and, if requested, its metadata, which conversions would drop."""
    try:
        content = _read(source)
        if content is None:
            return _TOO_MANY_BYTES
        image = _open(content, size)
        if max(image.size) > _MAX_SIDE:
            return f"{image.width} x {image.height}, a side above {_MAX_SIDE:,} pixels (crop it)"
        most = _MAX_PIXELS_OF.get(image.format or "", _MAX_PIXELS)
        if image.width * image.height > most:
            return _too_large(most, f"{image.width} x {image.height}, ")
        image.load()
        metadata = read_metadata(image) if describe else None
        ImageOps.exif_transpose(image, in_place=True)  # else it is copied
        return _to_rgb(image), metadata
    except UnidentifiedImageError:
        return _unknown_format(content or b"")
    except Image.DecompressionBombError:
        return _too_large(_MAX_PIXELS)
    except MemoryError:
        return "decoding it takes too much memory (save it smaller, or as JPEG)"
    except Exception as error:  # a decoder may raise anything, and a bad file must not stop others
        return f"corrupt image ({' '.join(str(error).split())})"  # on one line


def read_content(source: Path | bytes) -> bytes | str:
    """Return the content of an image file, or the reason why it cannot be read."""
    try:
        content = _read(source)
    except (OSError, ValueError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    return _TOO_MANY_BYTES if content is None else content


def _read(source: Path | bytes) -> bytes | None:
    """Return the content of a file, or None if it is too long."""
    if isinstance(source, bytes):
        return source if len(source) <= MAX_FILE_BYTES else None
    with open_regular(source) as file:
        content = file.read(MAX_FILE_BYTES + 1)
    return content if len(content) <= MAX_FILE_BYTES else None


def _too_large(most: int, size: str = "") -> str:
    return f"{size}more than {most:,} pixels (save it smaller, or as JPEG)"


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert in strips, because copies of a large image would take gigabytes."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    result = Image.new("RGB", image.size)
    height = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, height):
        strip = image.crop((0, top, image.width, min(top + height, image.height)))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            strip = strip.convert("RGBA")
            # Transparent pixels have arbitrary colors. Viewers show them on white.
            background = Image.new("RGBA", strip.size, "white")
            strip = Image.alpha_composite(background, strip)
        elif image.mode.startswith("I;16") or image.mode == "I":
            strip = strip.convert("I").point(lambda value: value / 256).convert("L")
        result.paste(strip.convert("RGB"), (0, top))
    return result


def _open(content: bytes, size: int | None) -> Image.Image:
    if content[:3] != b"\xff\xd8\xff":
        return Image.open(io.BytesIO(content), formats=_FORMATS)
    # Image.open would refuse a large JPEG before `draft` can reduce it.
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(content))
    # A progressive JPEG is held in memory at its full size, whatever size is decoded.
    most = _MAX_PIXELS if image.info.get("progressive") else _MAX_JPEG_PIXELS
    if image.width * image.height > most:
        raise Image.DecompressionBombError
    if size is not None:
        image.draft("RGB", (size, size))
    return image


def _unknown_format(content: bytes) -> str:
    start = content[:256].lstrip().lower()
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        return "a HEIC image (to read it: pip install 'transhash[heic]')"
    if start.startswith((b"<svg", b"<?xml")) and b"<svg" in content[:4096].lower():
        return "an SVG drawing (export it as PNG)"
    names = {"WEBP": "WebP", "HEIF": "HEIC"}
    *most, last = (names.get(name, name) for name in _FORMATS)
    return f"not an image (supported: {', '.join(most)} and {last})"


class DecodedFile(NamedTuple):
    """The result of reading one file, except for its pixels."""

    state: Literal["decoded", "cached", "unchanged", "unreadable"]
    digest: bytes = b""  # of the content
    summary: ImageSummary | None = None
    vector: npt.NDArray[np.float32] | None = None  # features of a cached file
    reason: str = ""  # why it is unreadable
    shape: tuple[int, int] = (0, 0)  # height and width of decoded pixels


@dataclass(frozen=True)
class ImageReader:
    """Reads a file once: digest first, then pixels and summary if they are needed."""

    size: int
    summaries: bool = False
    cached: Callable[[bytes], npt.NDArray[np.float32] | None] | None = None  # vector by digest
    is_unchanged: Callable[[int, bytes], bool] | None = None  # by position and digest
    upscale: bool = True  # False: an image smaller than `size` keeps its size
    render: Render = render

    def __call__(self, position: int, source: Path | bytes) -> tuple[DecodedFile, Pixels | None]:
        content = read_content(source)
        if isinstance(content, str):
            return DecodedFile("unreadable", reason=content), None
        digest = content_digest(content)
        if self.is_unchanged is not None and self.is_unchanged(position, digest):
            return DecodedFile("unchanged", digest), None
        vector = None if self.cached is None else self.cached(digest)
        if vector is not None and not self.summaries:
            return DecodedFile("cached", digest, vector=vector), None
        task = ImageTask(self.size, vector is None, self.upscale)
        if self.summaries:
            task = summary_task(self.size)._replace(pixels=vector is None, upscale=self.upscale)
        result = self.render(content, task)
        if isinstance(result, str):
            return DecodedFile("unreadable", digest, reason=result), None
        if result.pixels is None:
            return DecodedFile("cached", digest, result.summary, vector), None
        shape = result.pixels.shape[:2]
        return DecodedFile("decoded", digest, result.summary, shape=shape), result.pixels
