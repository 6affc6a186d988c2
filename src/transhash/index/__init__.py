"""Exact Hamming search behind one protocol; `open_index` picks the backend from a URL."""

from __future__ import annotations

from pathlib import Path

from transhash.errors import DataError
from transhash.index.base import Index, Ranking

__all__ = ["Index", "Ranking", "open_index"]

BACKENDS = ("grouped", "exact", "faiss", "milvus")


def open_index(url: str | Path, bits: int | None = None, *, read_only: bool = False) -> Index:
    """Open the index at `url`; create it with `bits`-bit codes if it does not exist.

    "grouped:DIR" is the default backend and what a bare path means; "exact:DIR" and "faiss:DIR" are
    for small sets; "milvus:URI" is a server or a Milvus Lite file. Without DIR the index is kept in
    memory. `bits` is only needed for a new index. Use `read_only` while another process writes.
    """
    if not isinstance(url, str | Path):
        raise DataError(f"An index URL must be a string or a path, got {url!r}.")
    backend, location = split_url(str(url))
    folder = Path(location) if location else None
    if backend == "grouped":
        from transhash.index.grouped.grouped import GroupedIndex

        return GroupedIndex.open(folder, bits, read_only=read_only)
    if backend == "exact":
        from transhash.index.exact import ExactIndex

        return ExactIndex.open(folder, bits, read_only=read_only)
    if backend == "faiss":
        from transhash.index.faiss_index import FaissIndex

        return FaissIndex.open(folder, bits, read_only=read_only)
    from transhash.index.milvus import MilvusIndex

    return MilvusIndex.open(location, bits, read_only=read_only)


def split_url(url: str) -> tuple[str, str]:
    """Split "grouped:DIR" into ("grouped", "DIR"); a bare path is a grouped index."""
    backend, colon, location = url.partition(":")
    if colon and backend in BACKENDS:
        return backend, location
    # A single letter before the colon is a Windows drive, anything longer a misspelled backend.
    if colon and len(backend) > 1 and backend.isalnum():
        raise DataError(
            f"Unknown index backend {backend!r} in {url!r}. Choose from: {', '.join(BACKENDS)}."
        )
    if not url:
        raise DataError('The index URL is empty. Pass a folder, or "grouped:" to use memory.')
    return "grouped", url
