"""Hits: what a search found, and how a notebook shows it."""

from __future__ import annotations

import base64
import io
import logging
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from transhash.codes import Codes
from transhash.errors import DataError
from transhash.index import Ranking
from transhash.search.catalog import Catalog, Item

if TYPE_CHECKING:
    from transhash.search.engine import SearchEngine

_log = logging.getLogger("transhash")
_SHOWN = 48  # thumbnails in a notebook
_CELL_STYLE = (
    "display:inline-block;width:140px;margin:4px;vertical-align:top;font:12px sans-serif;"
    "overflow-wrap:anywhere"
)


@dataclass(frozen=True)
class Hit:
    """One result."""

    item: Item
    distance: int  # Hamming, 0..bits
    differing: tuple[int, ...]  # the bits that differ from the query


class Hits(list[Hit]):
    """Hits, nearest first; a notebook shows them as a sheet of pictures and texts."""

    def __init__(self, hits: Iterable[Hit], catalog: Catalog) -> None:
        super().__init__(hits)
        self._catalog = catalog

    def __repr__(self) -> str:
        first = ", ".join(f"{hit.item.id} ({hit.distance})" for hit in self[:5])
        more = f", and {len(self) - 5} more" if len(self) > 5 else ""
        return f"<{len(self)} results: {first}{more}>" if self else "<no results>"

    def _repr_html_(self) -> str:
        cells = []
        for hit in self[:_SHOWN]:
            small = self._catalog.thumbnail(hit.item.number)
            if small is not None:
                data = base64.b64encode(small).decode()
                shown = f'<img style="max-width:140px" src="data:image/jpeg;base64,{data}">'
            else:
                shown = escape((hit.item.text or "")[:300])
            bits = f"{hit.distance} of {8 * len(hit.item.code)} bits"
            cells.append(
                f'<div style="{_CELL_STYLE}">{shown}<br>{escape(hit.item.id)}<br>'
                f'<span style="opacity:.6">{bits}</span></div>'
            )
        rest = f"<p>and {len(self) - _SHOWN} more</p>" if len(self) > _SHOWN else ""
        return f"<div>{''.join(cells) or 'no results'}{rest}</div>"


def resolve_hits(
    catalog: Catalog, engine: str, run: Path, queries: Codes, ranking: Ranking
) -> list[Hits]:
    """The catalog's items of a ranking; `engine` is what the catalog knows the index by."""
    items = catalog.get([int(n) for n in np.unique(ranking.ids) if n >= 0])
    found = []
    strangers = 0
    earlier: dict[int, bytes | None] | None = None
    for query, numbers, distances in zip(
        queries.packed, ranking.ids, ranking.distances, strict=True
    ):
        hits = []
        for number, distance in zip(map(int, numbers), map(int, distances)):
            item = items.get(number)
            if item is None:
                continue
            # The catalog knows each code: another distance means another code in the index.
            # It is an earlier one of the item's where a writer is between the two, or died.
            differing = _differing(query.tobytes(), item.code)
            if len(differing) != distance:
                if earlier is None:
                    earlier = catalog.pending(engine)
                differing = _differing(query.tobytes(), earlier.get(number) or item.code)
            if len(differing) == distance:
                hits.append(Hit(item, distance, differing))
            else:
                strangers += 1
        found.append(Hits(hits, catalog))
    if strangers:
        _log.warning(
            "%d results were left out: the index holds other codes of these items than %s; "
            "mend it with: transhash verify %s --repair, or index them there again",
            strangers, catalog.path, run,
        )  # fmt: skip
    return found


def _differing(a: bytes, b: bytes) -> tuple[int, ...]:
    """Positions of the bits in which two packed codes differ, first bit 0."""
    bits = len(a) * 8
    difference = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return tuple(i for i in range(bits) if difference >> (bits - 1 - i) & 1)


# Search results as one picture: thumbnails or texts with their distance and differing bits.

_CELL, _GAP, _STRIP = 200, 16, 10
_FOOT = 58  # bits, distance and id
_PAPER, _CARD, _INK, _SOFT = "#faf9f6", "#ffffff", "#1d2327", "#5d666d"
_ON, _OFF, _DIFFERS = "#b9c0c2", "#ebe9e4", "#e2562b"
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def write_contact_sheet(
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
        _foot(draw, hit, engine.query_encoder.bits, x, y + _CELL)
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
