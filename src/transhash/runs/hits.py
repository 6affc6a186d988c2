"""Hits: what a search found, and how a notebook shows it."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from transhash.codes import Codes
from transhash.index import Ranking
from transhash.runs.catalog import Catalog, Item

_log = logging.getLogger("transhash")
_SHOWN = 48  # thumbnails in a notebook
_CELL = (
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
                f'<div style="{_CELL}">{shown}<br>{escape(hit.item.id)}<br>'
                f'<span style="opacity:.6">{bits}</span></div>'
            )
        rest = f"<p>and {len(self) - _SHOWN} more</p>" if len(self) > _SHOWN else ""
        return f"<div>{''.join(cells) or 'no results'}{rest}</div>"


def hits_of(
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
