"""Hits: search results, their display in notebooks, and contact sheets."""

from __future__ import annotations

import base64
import io
import logging
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from transhash.codes import Codes, chance_distance
from transhash.errors import DataError
from transhash.index import Ranking
from transhash.search.catalog import Catalog, Item

if TYPE_CHECKING:
    from transhash.search.engine import SearchEngine
    from transhash.search.writer import ItemObjects

_log = logging.getLogger("transhash")
_MAX_NOTEBOOK_ITEMS = 48
MIN_COVERAGE = 0.5  # of the query's words, from which an item is a result whatever its code
_CELL_STYLE = (
    "display:inline-block;width:140px;margin:4px;vertical-align:top;font:12px sans-serif;"
    "overflow-wrap:anywhere"
)


@dataclass(frozen=True)
class Hit:
    """One result.

    For items that the program passed to `transhash.fit` or `SearchEngine.add_images`, `object` is
    what it passed (a PIL image, a text, a row of features, a dictionary with the row of a frame)
    and `row` the position in that list or frame. Both are None for items from files, and for
    items of an engine that was opened from a run folder.
    """

    item: Item
    distance: int  # Hamming, 0..bits
    differing_bits: tuple[int, ...]  # positions in which its code and the query differ
    row: int | None = None
    object: Any = field(default=None, compare=False, repr=False)
    matched: tuple[str, ...] = ("similar",)  # why: fields with words of the query, or its code
    coverage: float = 0.0  # 0 to 1: of the query's words, rare words counting more
    duplicates: tuple[Item, ...] = ()  # copies of the item, which would come later


class Hits(list[Hit]):
    """Results, nearest first; notebooks show them as thumbnails and texts."""

    def __init__(self, hits: Iterable[Hit], catalog: Catalog) -> None:
        super().__init__(hits)
        self._catalog = catalog

    def __repr__(self) -> str:
        first = ", ".join(f"{hit.item.id} ({hit.distance})" for hit in self[:5])
        more = f", and {len(self) - 5} more" if len(self) > 5 else ""
        return f"<{len(self)} results: {first}{more}>" if self else "<no results>"

    def _repr_html_(self) -> str:
        cells = []
        for hit in self[:_MAX_NOTEBOOK_ITEMS]:
            small = self._catalog.thumbnail(hit.item.number)
            if small is not None:
                data = base64.b64encode(small).decode()
                content = f'<img style="max-width:140px" src="data:image/jpeg;base64,{data}">'
            else:
                content = escape((hit.item.text or "")[:300])
            bits = f"{hit.distance} of {8 * len(hit.item.code)} bits"
            cells.append(
                f'<div style="{_CELL_STYLE}">{content}<br>{escape(hit.item.id)}<br>'
                f'<span style="opacity:.6">{bits}</span></div>'
            )
        more = len(self) - _MAX_NOTEBOOK_ITEMS
        rest = f"<p>and {more} more</p>" if more > 0 else ""
        return f"<div>{''.join(cells) or 'no results'}{rest}</div>"


def is_chance(hits: Sequence[Hit], count: int) -> bool:
    """Return whether no hit has most of the query's words or a code nearer than random ones.

    `count` is the number of items that were searched.
    """
    return bool(hits) and all(
        hit.coverage < MIN_COVERAGE
        and hit.distance >= chance_distance(count, 8 * len(hit.item.code))
        for hit in hits
    )


def resolve_hits(
    catalog: Catalog,
    index_url: str,
    run: Path,
    queries: Codes,
    ranking: Ranking,
    objects: ItemObjects | None = None,
) -> list[Hits]:
    """Look up the items of a ranking; `index_url` is the name of its index in the catalog.

    A distance that does not match the catalog's code means another code in the index. If that is
    an outdated code of the item, a writer is at work or was killed. Other items are left out.
    """
    items = catalog.get([int(n) for n in np.unique(ranking.ids) if n >= 0])
    results = []
    mismatched = 0
    outdated: dict[int, bytes | None] | None = None
    for query, numbers, distances in zip(
        queries.packed, ranking.ids, ranking.distances, strict=True
    ):
        hits = []
        code = query.tobytes()
        for number, distance in zip(numbers.tolist(), distances.tolist()):
            item = items.get(number)
            if item is None:
                continue
            differing = _differing_bits(code, item.code)
            if len(differing) != distance:
                if outdated is None:
                    outdated = catalog.pending(index_url)
                differing = _differing_bits(code, outdated.get(number) or item.code)
            if len(differing) == distance:
                hits.append(make_hit(item, distance, differing, objects or {}))
            else:
                mismatched += 1
        results.append(Hits(hits, catalog))
    if mismatched:
        _log.warning(
            "Left out %d results because the index and %s have different codes for them. "
            "Run: transhash verify %s --repair",
            mismatched, catalog.path, run,
        )  # fmt: skip
    return results


def without_item(hits: Iterable[Hit], number: int, k: int) -> list[Hit]:
    """Return the first k hits without an item, in whose place its first copy comes."""
    others = []
    for hit in hits:
        copies = tuple(item for item in hit.duplicates if item.number != number)
        if hit.item.number != number:
            others.append(replace(hit, duplicates=copies))
        elif copies:
            others.append(replace(hit, item=copies[0], duplicates=copies[1:]))
    return others[:k]


def make_hit(
    item: Item, distance: int, differing_bits: tuple[int, ...], objects: ItemObjects
) -> Hit:
    """Return a hit with the object that a program passed as the item, if there is one."""
    if item.number not in objects:
        return Hit(item, distance, differing_bits)
    values, row = objects[item.number]
    return Hit(item, distance, differing_bits, row, values[row])


def _differing_bits(a: bytes, b: bytes) -> tuple[int, ...]:
    """Return the positions in which two packed codes differ; the first bit is 0."""
    return tuple(
        8 * i + bit for i, (x, y) in enumerate(zip(a, b)) if x != y for bit in _SET_BITS[x ^ y]
    )


_SET_BITS = [[bit for bit in range(8) if byte >> (7 - bit) & 1] for byte in range(256)]


_CELL, _GAP, _STRIP = 200, 16, 10
_FOOTER = 58  # height of bits, distance and id
_PAPER, _CARD, _INK, _SOFT = "#faf9f6", "#ffffff", "#1d2327", "#5d666d"
_ON, _OFF, _DIFFERS = "#b9c0c2", "#ebe9e4", "#e2562b"
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def write_contact_sheet(
    hits: Sequence[Hit], engine: SearchEngine, path: str | Path, columns: int = 6
) -> Path:
    """Draw the hits row by row and write the image to `path` (PNG by its extension)."""
    if not hits:
        raise DataError("There are no results to draw. Use another query or index more items.")
    columns = min(columns, len(hits))
    rows = -(-len(hits) // columns)
    width = columns * (_CELL + _GAP) + _GAP
    height = rows * (_CELL + _FOOTER + _GAP) + _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for position, hit in enumerate(hits):
        row, column = divmod(position, columns)
        x = _GAP + column * (_CELL + _GAP)
        y = _GAP + row * (_CELL + _FOOTER + _GAP)
        draw.rectangle((x, y, x + _CELL - 1, y + _CELL + _FOOTER - 1), _CARD, _OFF)
        if hit.item.modality == "images":
            _draw_image(sheet, draw, hit, engine, x, y)
        else:
            _draw_text(draw, hit.item.text or hit.item.id, x, y)
        _draw_footer(draw, hit, engine.query_encoder.bits, x, y + _CELL)
    path = Path(path)
    try:
        sheet.save(path)
    except ValueError as error:
        raise DataError(f"{path} cannot be written ({error}). Use a name ending in .png.") from None
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} cannot be written ({reason}). Choose another path.") from None
    return path


def _draw_image(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, hit: Hit, engine: SearchEngine, x: int, y: int
) -> None:
    data = engine.catalog.thumbnail(hit.item.number)
    if data is None:
        _draw_text(draw, "no thumbnail", x, y)
        return
    with Image.open(io.BytesIO(data)) as image:
        sheet.paste(ImageOps.fit(image, (_CELL, _CELL), Image.Resampling.LANCZOS), (x, y))


def _draw_text(draw: ImageDraw.ImageDraw, text: str, x: int, y: int) -> None:
    font = _font(15)
    text = " ".join(text[:1000].split()) or "-"  # fonts measure one line only
    # Characters per line, from the average width of a character in this text.
    letters = max(4, int((_CELL - 28) / max(1.0, font.getlength(text) / len(text)) * 0.92))
    lines = textwrap.wrap(text, letters, max_lines=8, placeholder=" …")
    draw.multiline_text((x + 14, y + 16), "\n".join(lines), _INK, font, spacing=7)


def _draw_footer(draw: ImageDraw.ImageDraw, hit: Hit, bits: int, x: int, y: int) -> None:
    code = int.from_bytes(hit.item.code, "big")
    differing = set(hit.differing_bits)
    step = (_CELL - 20) / bits
    for i in range(bits):
        on = code >> (bits - 1 - i) & 1
        left = x + 10 + i * step
        color = _DIFFERS if i in differing else _ON if on else _OFF
        top = y + 8 + (0 if on else _STRIP // 2)
        draw.rectangle((left, top, left + max(1.0, step - 1.5), y + 8 + _STRIP), color)
    draw.text((x + 10, y + 22), f"{hit.distance} of {bits} bits", _SOFT, _font(12))
    draw.text(
        (x + 10, y + 38), textwrap.shorten(hit.item.id, 28, placeholder="…"), _SOFT, _font(12)
    )


def _font(size: int) -> _Font:
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)  # has most alphabets
    except OSError:
        return ImageFont.load_default(size)  # comes with Pillow
