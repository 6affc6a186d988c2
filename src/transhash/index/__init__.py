"""Exact Hamming search behind one protocol; `open_index` picks the engine from a URL."""

from __future__ import annotations

from pathlib import Path

from transhash.errors import DataError
from transhash.index.base import Index, RadiusResult, Ranking

__all__ = ["Index", "RadiusResult", "Ranking", "open_index"]

BACKENDS = ("grouped", "exact", "faiss", "milvus")


def open_index(url: str | Path, bits: int | None = None, *, read_only: bool = False) -> Index:
    """The index at `url`, created with `bits`-bit codes where there is none yet.

    "grouped:DIR" is the default engine and what a bare path means; "exact:DIR" and "faiss:DIR" are
    the plain ones; "milvus:URI" speaks to a server. Without DIR the index lives in memory.
    An index that exists knows its bits; `read_only` opens it beside the process that writes it.
    """
    if not isinstance(url, str | Path):  # None would be a folder of that name
        raise DataError(f"an index needs a place, a folder or ENGINE:PLACE, got {url!r}")
    engine, location = split_url(str(url))
    folder = Path(location) if location else None
    if engine == "grouped":
        from transhash.index.grouped.grouped import GroupedIndex

        return GroupedIndex.open(folder, bits, read_only=read_only)
    if engine == "exact":
        from transhash.index.exact import ExactIndex

        return ExactIndex.open(folder, bits, read_only=read_only)
    if engine == "faiss":
        from transhash.index.faiss_index import FaissIndex

        return FaissIndex.open(folder, bits, read_only=read_only)
    from transhash.index.milvus import MilvusIndex

    return MilvusIndex.open(location, bits, read_only=read_only)


def split_url(url: str) -> tuple[str, str]:
    """("grouped", "DIR") of "grouped:DIR" or of the bare path "DIR"."""
    engine, colon, location = url.partition(":")
    if colon and engine in BACKENDS:
        return engine, location
    # A name of two letters or more before a colon was meant as an engine; one letter is a drive.
    if colon and len(engine) > 1 and engine.isalnum():
        raise DataError(
            f"there is no engine {engine!r} in {url!r}; use one of {', '.join(BACKENDS)}"
        )
    if not url:
        raise DataError('an index needs a place: a folder, or "grouped:" for one in memory')
    return "grouped", url
