"""Items into an index that may hold some of them already."""

from __future__ import annotations

import numpy as np

from transhash.codes import Codes
from transhash.index.base import Ids, Index
from transhash.index.milvus.milvus import MilvusIndex
from transhash.progress import Track, silent

_BLOCK = 100_000  # items of one update: what an interruption repeats


def send(index: Index, ids: Ids, codes: Codes, track: Track = silent) -> int:
    """Stores what `index` lacks or holds with another code; returns how many items that were.

    So an interrupted call goes on where it stopped when it is made again.
    """
    if isinstance(index, MilvusIndex):
        return index.ingest(ids, codes, track)
    held, stored = index.export()
    sent = 0
    for start in track(range(0, len(ids), _BLOCK), "sending codes"):
        part, packed = ids[start : start + _BLOCK], codes[start : start + _BLOCK]
        lacking = np.ones(len(part), np.bool_)
        if len(held):
            place = np.minimum(np.searchsorted(held, part), len(held) - 1)
            same = (stored.packed[place] == packed.packed).all(axis=1)
            lacking = (held[place] != part) | ~same
        index.update(part[lacking], packed[lacking])
        sent += int(lacking.sum())
    return sent
