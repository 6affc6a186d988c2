"""One image file -> an upright RGB picture, pixels and thumbnail, or what is wrong with it."""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError
from PIL import features as built_in

Pixels = npt.NDArray[np.uint8]  # (size, size, 3)
_MAX_PIXELS = 100_000_000  # decoded: 300 MB; a larger file that is no JPEG is an attack or a slip
_MAX_JPEG_PIXELS = 1_000_000_000  # a JPEG is decoded at an eighth of its size
_THUMBNAIL = 256  # pixels of the longer side
_FORMATS = ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]
_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"hevm", b"mif1", b"msf1")  # of HEIF

if built_in.check("avif"):
    _FORMATS.append("AVIF")
with suppress(ImportError):  # an extra
    import pillow_heif

    pillow_heif.register_heif_opener()
    _FORMATS.append("HEIF")


def content_digest(content: bytes) -> bytes:
    """What tells one content from another."""
    return hashlib.blake2b(content, digest_size=16).digest()


def readable_formats() -> str:
    """As a sentence says them."""
    names = {"WEBP": "WebP", "HEIF": "HEIC"}
    *most, last = (names.get(name, name) for name in _FORMATS)
    return f"{', '.join(most)} and {last}"


def decode(source: Path | bytes, size: int) -> Pixels | str:
    """The image as (size, size, 3) RGB bytes, or the reason why it cannot be had."""
    opened = open_image(source, size)
    return opened if isinstance(opened, str) else square(opened, size)


def square(image: Image.Image, size: int) -> Pixels:
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized)  # a copy: torch warns of arrays it may not write to


def thumbnail_of(image: Image.Image) -> bytes:
    """A small JPEG, encoded anew so that nothing of the original file but pixels survives."""
    image.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def thumbnail(source: bytes) -> bytes | None:
    """A small JPEG of an image file's bytes."""
    image = open_image(source, 512)
    return None if isinstance(image, str) else thumbnail_of(image)


def open_image(source: Path | bytes, size: int | None = None) -> Image.Image | str:
    """An upright RGB image of whatever mode and size the file has, or what is wrong with it.

    With `size` a JPEG, whatever its size, is decoded no larger than that needs.
    """
    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
        image = _opened(content, size)
        if image.width * image.height > _MAX_PIXELS:
            return (
                f"{image.width} x {image.height} pixels are more than {_MAX_PIXELS:,}; save it "
                "smaller, or as JPEG"
            )
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            # Transparent pixels hide arbitrary colours; show what a viewer would: white paper.
            paper = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(paper, image)
        elif image.mode.startswith("I;16") or image.mode == "I":
            image = image.convert("I").point(lambda value: value / 256).convert("L")
        return image if image.mode == "RGB" else image.convert("RGB")
    except UnidentifiedImageError:
        return _unknown(content)
    except Image.DecompressionBombError:
        return f"more than {_MAX_PIXELS:,} pixels; save it smaller, or as JPEG"
    except (
        OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, Warning
    ) as error:  # fmt: skip  # Warning: where a caller has made errors of them
        return f"damaged image ({' '.join(str(error).split())})"  # some libraries break lines


def _opened(content: bytes, size: int | None) -> Image.Image:
    if content[:3] != b"\xff\xd8\xff":
        return Image.open(io.BytesIO(content), formats=_FORMATS)
    # Not by Image.open, which refuses large files before they can be asked for a smaller picture.
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(content))
    if image.width * image.height > _MAX_JPEG_PIXELS:
        raise Image.DecompressionBombError
    if size is not None:
        image.draft("RGB", (size, size))
    return image


def _unknown(content: bytes) -> str:
    """What to do about a file that no reader knows."""
    start = content[:256].lstrip().lower()
    if content[4:8] == b"ftyp" and content[8:12] in _BRANDS:
        return "a HEIC picture; pip install 'transhash[heic]' reads those"
    if start.startswith((b"<svg", b"<?xml")) and b"<svg" in content[:4096].lower():
        return "an SVG drawing, which has no pixels; export it as PNG"
    return f"not an image ({readable_formats()} are read)"
