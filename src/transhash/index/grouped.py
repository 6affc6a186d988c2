"""The default engine. For now it ranks with FAISS; the native kernel takes its place."""

from __future__ import annotations

from transhash.index.faiss_index import FaissIndex


class GroupedIndex(FaissIndex):
    engine = "grouped"
