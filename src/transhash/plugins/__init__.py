"""A run inside other software: MCP clients, LangChain, LlamaIndex and scikit-learn.

Here are search results as plain values, which every plug-in returns in its own form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transhash.search.catalog import Item
from transhash.search.hits import Hit


def describe_item(item: Item) -> dict[str, Any]:
    """Return what is known about an item as JSON values; unknown fields are left out."""
    about = item.metadata
    fields = {
        "id": item.id,
        "modality": item.modality,
        "path": item.path,
        "text": item.text,
        "title": about.title,
        "caption": about.caption,
        "keywords": list(about.keywords),
        "taken": about.taken,
    }
    return {name: value for name, value in fields.items() if value}


def describe_hits(hits: Sequence[Hit], bits: int) -> list[dict[str, Any]]:
    """Return the items of hits with distance, score and the reasons why they were found."""
    return [
        {
            **describe_item(hit.item),
            "distance": hit.distance,
            "score": score,
            "matched": list(hit.matched),
        }
        for hit, score in zip(hits, scores(hits, bits), strict=True)
    ]


def scores(hits: Sequence[Hit], bits: int) -> list[float]:
    """Return the share of bits equal to the query's, from 0 to 1, never below that of later hits.

    Software that sorts by score keeps the order of the hits, in which words count as well.
    """
    equal = 1 - np.array([hit.distance for hit in hits], dtype=np.float64) / bits
    highest = np.maximum.accumulate(equal[::-1])[::-1]
    return [round(float(score), 4) for score in highest]


def content_of(item: Item) -> str:
    """Return the text of an item, or the words that come with an image, at least its id."""
    about = item.metadata
    words = [about.title, about.caption, ", ".join(about.keywords)]
    return item.text or "\n".join(filter(None, words)) or item.id
