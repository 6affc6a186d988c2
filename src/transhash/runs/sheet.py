"""Search results as one picture: thumbnails or texts with their distance and differing bits."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from transhash.errors import DataError
from transhash.runs.hits import Hit
from transhash.runs.search import SearchEngine

_CELL, _GAP, _STRIP = 200, 16, 10
_FOOT = 58  # bits, distance and id
_PAPER, _CARD, _INK, _SOFT = "#faf9f6", "#ffffff", "#1d2327", "#5d666d"
_ON, _OFF, _DIFFERS = "#b9c0c2", "#ebe9e4", "#e2562b"
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def contact_sheet(
    hits: Sequence[Hit], engine: SearchEngine, path: str | Path, columns: int = 6
) -> Path:
    """Draw the hits in order, row by row, and write them to `path` (PNG by its extension)."""
    if not hits:
        raise DataError("there is no result to draw; search for something else or add items")
    columns = min(columns, len(hits))
    rows = -(-len(hits) // columns)
    width = columns * (_CELL + _GAP) + _GAP
    height = rows * (_CELL + _FOOT + _GAP) + _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for place, hit in enumerate(hits):
        row, column = divmod(place, columns)
        x = _GAP + column * (_CELL + _GAP)
        y = _GAP + row * (_CELL + _FOOT + _GAP)
        draw.rectangle((x, y, x + _CELL - 1, y + _CELL + _FOOT - 1), _CARD, _OFF)
        if hit.item.modality == "images":
            _picture(sheet, draw, hit, engine, x, y)
        else:
            _words(draw, hit.item.text or hit.item.id, x, y)
        _foot(draw, hit, engine.asker.bits, x, y + _CELL)
    path = Path(path)
    try:
        sheet.save(path)
    except ValueError as error:
        raise DataError(f"cannot write {path} ({error}); give a name ending in .png") from None
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"cannot write {path} ({why}); choose another place for it") from None
    return path


def _picture(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, hit: Hit, engine: SearchEngine, x: int, y: int
) -> None:
    data = engine.catalog.thumbnail(hit.item.number)
    if data is None:
        _words(draw, "no picture kept", x, y)
        return
    with Image.open(io.BytesIO(data)) as image:
        sheet.paste(ImageOps.fit(image, (_CELL, _CELL), Image.Resampling.LANCZOS), (x, y))


def _words(draw: ImageDraw.ImageDraw, text: str, x: int, y: int) -> None:
    font = _font(15)
    text = " ".join(text[:1000].split()) or "-"  # more than a cell holds; fonts measure one line
    # As many letters as fit the cell, counted in this text's own average letter.
    letters = max(4, int((_CELL - 28) / max(1.0, font.getlength(text) / len(text)) * 0.92))
    lines = textwrap.wrap(text, letters, max_lines=8, placeholder=" …")
    draw.multiline_text((x + 14, y + 16), "\n".join(lines), _INK, font, spacing=7)


def _foot(draw: ImageDraw.ImageDraw, hit: Hit, bits: int, x: int, y: int) -> None:
    code = int.from_bytes(hit.item.code, "big")
    far = set(hit.differing)
    step = (_CELL - 20) / bits
    for i in range(bits):
        on = code >> (bits - 1 - i) & 1
        left = x + 10 + i * step
        colour = _DIFFERS if i in far else _ON if on else _OFF
        top = y + 8 + (0 if on else _STRIP // 2)
        draw.rectangle((left, top, left + max(1.0, step - 1.5), y + 8 + _STRIP), colour)
    draw.text((x + 10, y + 22), f"{hit.distance} of {bits} bits", _SOFT, _font(12))
    draw.text(
        (x + 10, y + 38), textwrap.shorten(hit.item.id, 28, placeholder="…"), _SOFT, _font(12)
    )


def _font(size: int) -> _Font:
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)  # knows most alphabets
    except OSError:
        return ImageFont.load_default(size)  # inside Pillow
