"""Recognize copies of one image among results, and show them as one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from transhash.search.catalog import Content
from transhash.search.hits import Hit

# Of 255, in any of the 8 x 8 RGB pixels. Measured by benchmarks/duplicates.py: copies that were
# encoded again and scaled differ by at most 11, different images of that set by 24 or more.
_MAX_DIFFERENCE = 12


def collapse_duplicates(hits: Sequence[Hit], contents: Mapping[int, Content]) -> list[Hit]:
    """Return the hits without copies of earlier ones, which are listed in `duplicates`.

    A copy has the same content, or its tiny image differs by little in every pixel. A hit is
    compared with the first of each group only, so that a chain of similar images is not one group.
    """
    first_of: dict[bytes, int] = {}
    groups: list[list[Hit]] = []
    tiny = np.empty((len(hits), 0), np.int16)
    owners: list[int] = []  # group of each row of `tiny`
    for hit in hits:
        digest, fingerprint = contents.get(hit.item.number, Content(None, None))
        group = None if digest is None else first_of.get(digest)
        row = None if fingerprint is None else np.frombuffer(fingerprint, np.uint8)
        if group is None and row is not None and owners:
            difference = np.abs(tiny[: len(owners)] - row.astype(np.int16)).max(axis=1)
            nearest = int(difference.argmin())
            group = owners[nearest] if difference[nearest] <= _MAX_DIFFERENCE else None
        if group is None:
            group = len(groups)
            groups.append([])
            if row is not None:
                if not owners:
                    tiny = np.empty((len(hits), len(row)), np.int16)
                tiny[len(owners)] = row
                owners.append(group)
        if digest is not None:
            first_of.setdefault(digest, group)
        groups[group].append(hit)
    return [
        replace(first, duplicates=tuple(hit.item for hit in others)) for first, *others in groups
    ]
