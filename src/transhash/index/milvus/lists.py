"""Whole lists from answers that hold 16,384 items at most and rank ties as the server likes.

A list is fetched until its last tie group is whole, and a group too large for one answer is fetched
by ranges of ids.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from transhash.codes import Codes
from transhash.index.base import Distances, Ids
from transhash.index.milvus.found import Found, cut, in_order

MOST = 16_384  # what Milvus returns of one query at most
_ANSWER = 400_000  # hits of one answer at most, over its queries
_LAST_ID = 2**63 - 1


class Ask(Protocol):
    """A question to the server, each query's hits nearest first."""

    def __call__(
        self, queries: Codes, limit: int, radius: int, inner: int = 0, inside: str = ""
    ) -> list[Found]: ...


class WholeLists:
    """`ranges`: whether the server can be asked for a range of distances."""

    def __init__(self, ask: Ask, *, ranges: bool) -> None:
        self._ask, self._ranges = ask, ranges

    def of(self, codes: Codes, wanted: int | None, radius: int) -> tuple[Ids, Ids, Distances]:
        """Each query's nearest `wanted` (all, if None) within a radius, ties whole or cut by id."""
        results: list[Found] = [(np.empty(0, np.int64), np.empty(0, np.int32))] * len(codes)
        begun: dict[int, Found] = {}
        todo = np.arange(len(codes))
        limit = first = min(MOST, 1024 if wanted is None else 2 * wanted + 62)
        while len(todo):
            unfinished = []
            for block in np.array_split(todo, -(-len(todo) * limit // _ANSWER)):
                found = self._ask(codes[block], limit, radius)
                for query, hits in zip(block, found, strict=True):
                    bound = radius
                    if wanted is not None and len(hits[1]) >= wanted:
                        bound = int(hits[1][wanted - 1])
                    if len(hits[0]) < limit or hits[1][-1] > bound:
                        results[query] = in_order(cut(hits, 0, radius), wanted)
                    else:
                        unfinished.append(int(query))
                        begun[int(query)] = hits
            todo = np.array(unfinished, np.int64)
            enough = self._ranges and wanted is not None and limit >= wanted
            if limit == MOST or (enough and limit > first):
                break
            limit = min(MOST, 8 * limit)
        for query in todo.tolist():
            one = codes[query : query + 1]
            if enough and wanted is not None:
                results[query] = self._with_ties(one, begun[query], wanted)
            else:
                results[query] = self._walk(one, wanted, radius)
        offsets = np.cumsum([0, *(len(ids) for ids, _ in results)], dtype=np.int64)
        ids = [ids for ids, _ in results] or [np.empty(0, np.int64)]
        distances = [distances for _, distances in results] or [np.empty(0, np.int32)]
        return offsets, np.concatenate(ids), np.concatenate(distances)

    def _with_ties(self, query: Codes, hits: Found, wanted: int) -> Found:
        """The nearest `wanted`, when an answer has found how far the last of them is.

        Learned codes repeat, so there may be thousands more at that distance.
        """
        last = int(hits[1][wanted - 1])
        nearer = cut(hits, 0, last - 1)
        tied = self._by_ids(query, last, last, wanted - len(nearer[0]))
        ids = np.concatenate((nearer[0], tied[0]))
        return in_order((ids, np.concatenate((nearer[1], tied[1]))), wanted)

    def _walk(self, query: Codes, wanted: int | None, radius: int) -> Found:
        """One query's list when a single answer cannot hold it: outwards, a full answer a time."""
        parts: list[Found] = []
        have, inner = 0, 0
        while inner <= radius and (wanted is None or have < wanted):
            if inner and not self._ranges:
                parts.append(self._by_ids(query, inner, radius, None))
                break
            ids, distances = self._ask(query, MOST, radius, inner)[0]
            last = int(distances[-1]) if len(ids) == MOST else radius + 1
            parts.append(cut((ids, distances), inner, min(last - 1, radius)))
            have += len(parts[-1][0])
            if last <= radius:
                still = None if wanted is None else max(0, wanted - have)
                parts.append(self._by_ids(query, last, last, still))
                have += len(parts[-1][0])
            inner = last + 1
        ids, distances = (np.concatenate(column) for column in zip(*parts, strict=True))
        return in_order((ids, distances), wanted)

    def _by_ids(self, query: Codes, inner: int, radius: int, wanted: int | None) -> Found:
        """Items with inner <= distance <= radius, those of smallest id, by ranges that fit."""
        parts: list[Found] = [(np.empty(0, np.int64), np.empty(0, np.int32))]
        ranges, have = [(0, _LAST_ID)], 0
        while ranges and (wanted is None or have < wanted):
            first, last = ranges.pop()
            inside = f"id >= {first} and id <= {last}"
            ids, distances = self._ask(query, MOST, radius, inner, inside)[0]
            if len(ids) == MOST and distances[-1] <= radius:
                # Both parts hold found ids, so each is smaller than the whole; what was found are
                # any of the group, so a part with more than are wanted may be much smaller.
                part = MOST // 2 if wanted is None else min(MOST // 2, 4 * (wanted - have))
                middle = int(np.sort(ids)[part])
                ranges += [(middle, last), (first, middle - 1)]
            else:
                parts.append(cut((ids, distances), inner, radius))
                have += len(parts[-1][0])
        ids, distances = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(ids)[:wanted]
        return ids[order], distances[order]
