"""Image file -> RGB pixels, in this process or in workers; a bad file is a reason, not a crash."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = npt.NDArray[np.uint8]  # (size, size, 3)
MAX_PIXELS = 100_000_000  # a 100-megapixel photograph is real, a larger file is an attack or a slip
_CHUNK = 32
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")


def decode(source: Path | bytes, size: int) -> Pixels | str:
    """The image as (size, size, 3) RGB bytes, or the reason why it cannot be had."""
    opened = open_image(source, size)
    if isinstance(opened, str):
        return opened
    resized = opened.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized)  # a copy: torch warns of arrays it may not write to


def open_image(source: Path | bytes, size: int | None = None) -> Image.Image | str:
    """An upright RGB image of whatever mode and size the file has, or what is wrong with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own bomb warning; the check below decides
            file = io.BytesIO(source) if isinstance(source, bytes) else source
            image: Image.Image = Image.open(file, formats=_FORMATS)
            if image.width * image.height > MAX_PIXELS:
                return f"{image.width} x {image.height} pixels are more than {MAX_PIXELS:,}"
            if size is not None:
                image.draft("RGB", (size, size))  # JPEG only: decode at a fraction of the size
            image.load()
            image = ImageOps.exif_transpose(image)
            if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
                image = image.convert("RGBA")
                # Transparent pixels hide arbitrary colours; show what a viewer would: white paper.
                paper = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(paper, image)
            elif image.mode.startswith("I;16") or image.mode == "I":
                image = image.convert("I").point(lambda value: value / 256).convert("L")
            return image.convert("RGB")
    except UnidentifiedImageError:
        return "not an image (JPEG, PNG, WebP, BMP, GIF and TIFF are read)"
    except Image.DecompressionBombError:
        return f"more than {MAX_PIXELS:,} pixels"
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError) as error:
        return f"damaged image ({error})"


def decode_all(
    paths: Sequence[Path], size: int, workers: int | None = None
) -> Iterator[Pixels | str]:
    """decode() of every path, in order; large jobs are spread over worker processes."""
    workers = default_workers() if workers is None else workers
    if workers < 1 or len(paths) < 4 * _CHUNK:
        for path in paths:
            yield decode(path, size)
        return
    chunks = [paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK)]
    # spawn: a forked child of a process that has run torch threads can hang.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: list[Future[list[Pixels | str]]] = []
        for chunk in chunks:
            ahead.append(pool.submit(_decode_chunk, chunk, size))
            if len(ahead) > 2 * workers:  # bounded: decoded pixels must not pile up
                yield from ahead.pop(0).result()
        for future in ahead:
            yield from future.result()


def default_workers() -> int:
    return max(1, min(16, (os.cpu_count() or 2) - 1))


def _decode_chunk(paths: Sequence[Path], size: int) -> list[Pixels | str]:
    return [decode(path, size) for path in paths]
