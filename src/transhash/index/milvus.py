"""Milvus as an engine: binary vectors, Hamming distance, the same answers as `exact`.

Milvus ranks ties as it likes and returns at most 16,384 items a query; lists.py makes both good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import EngineError, IndexNotFoundError
from transhash.index.base import (
    Distances,
    Ids,
    RadiusResult,
    Ranking,
    check_items,
    check_length,
    check_query,
    check_radius,
    check_search,
    pad_rows,
    reject_existing,
    rerank,
    rerank_pool,
    to_ids,
)
from transhash.index.milvus_client import (
    COPYING,
    LOADING,
    Connection,
    MilvusUrl,
    open_collection,
    seconds,
)
from transhash.index.weighted import BitWeights
from transhash.progress import Track, no_progress

# What Milvus answered: cut to a range of distances, put in order, joined with its codes.

IdDistances = tuple[Ids, Distances]  # ids and distances of one query


def cut(found: IdDistances, inner: int, radius: int) -> IdDistances:
    kept = (found[1] >= inner) & (found[1] <= radius)
    return found[0][kept], found[1][kept]


def in_order(found: IdDistances, wanted: int | None) -> IdDistances:
    ids, distances = found
    order = np.lexsort((ids, distances))[:wanted]
    return ids[order], distances[order]


def join_codes(
    found: RadiusResult, known: Ids, packed: npt.NDArray[np.uint8]
) -> tuple[RadiusResult, npt.NDArray[np.uint8]]:
    """What was found of the `known` ids, which ascend, and for each its row of `packed`."""
    if not len(known):
        nothing = np.zeros_like(found.offsets)
        return RadiusResult(nothing, found.ids[:0], found.distances[:0]), packed
    place = np.minimum(np.searchsorted(known, found.ids), len(known) - 1)
    here = known[place] == found.ids
    passed = np.concatenate([[0], np.cumsum(here)])
    kept = RadiusResult(passed[found.offsets], found.ids[here], found.distances[here])
    return kept, packed[place[here]]


# Whole lists from answers that hold 16,384 items at most and rank ties as the server likes.
#
# A list is fetched until its last tie group is whole, and a group too large for one answer is fetched
# by ranges of ids.

MOST = 16_384  # what Milvus returns of one query at most
_ANSWER = 400_000  # hits of one answer at most, over its queries
_LAST_ID = 2**63 - 1


class QueryFn(Protocol):
    """A question to the server, each query's hits nearest first."""

    def __call__(
        self, queries: Codes, limit: int, radius: int, inner: int = 0, inside: str = ""
    ) -> list[IdDistances]: ...


class CompleteResults:
    """`ranges`: whether the server can be asked for a range of distances."""

    def __init__(self, ask: QueryFn, *, ranges: bool) -> None:
        self._ask, self._ranges = ask, ranges

    def of(self, codes: Codes, wanted: int | None, radius: int) -> tuple[Ids, Ids, Distances]:
        """Each query's nearest `wanted` (all, if None) within a radius, ties whole or cut by id."""
        results: list[IdDistances] = [(np.empty(0, np.int64), np.empty(0, np.int32))] * len(codes)
        begun: dict[int, IdDistances] = {}
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

    def _with_ties(self, query: Codes, hits: IdDistances, wanted: int) -> IdDistances:
        """The nearest `wanted`, when an answer has found how far the last of them is.

        Learned codes repeat, so there may be thousands more at that distance.
        """
        last = int(hits[1][wanted - 1])
        nearer = cut(hits, 0, last - 1)
        tied = self._by_ids(query, last, last, wanted - len(nearer[0]))
        ids = np.concatenate((nearer[0], tied[0]))
        return in_order((ids, np.concatenate((nearer[1], tied[1]))), wanted)

    def _walk(self, query: Codes, wanted: int | None, radius: int) -> IdDistances:
        """One query's list when a single answer cannot hold it: outwards, a full answer a time."""
        parts: list[IdDistances] = []
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

    def _by_ids(self, query: Codes, inner: int, radius: int, wanted: int | None) -> IdDistances:
        """Items with inner <= distance <= radius, those of smallest id, by ranges that fit."""
        parts: list[IdDistances] = [(np.empty(0, np.int64), np.empty(0, np.int32))]
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


BATCH = 10_000  # items of one request; 5 MB as rows, far below the 64 MB of a message


class MilvusIndex:
    """One partition of a collection on a server, or one collection of a Milvus Lite file."""

    engine = "milvus"

    def __init__(self, connection: Connection, bits: int, *, read_only: bool = False) -> None:
        self._connection = connection
        self._place = connection.place
        self._bits = bits
        self._read_only = read_only
        partition = self._place.partition
        self._into = {"partition_name": partition} if partition else {}
        self._among = {"partition_names": [partition]} if partition else {}
        # A range search in IVF lists ends at the second list without a hit, whatever nprobe is.
        self._ranges = self._place.index_type == "BIN_FLAT"
        self._lists_looked_at = self._place.nprobe or self._place.nlist
        self._lists = CompleteResults(self._nearest, ranges=self._ranges)

    @classmethod
    def open(cls, location: str, bits: int | None, *, read_only: bool = False) -> Self:
        """The index at "file.db#part" or "http://host:19530/collection?index=BIN_IVF_FLAT#part"."""
        place = MilvusUrl.parse(location)
        if place.embedded and place.index_type != "BIN_FLAT":
            raise EngineError(
                f"{place}: Milvus Lite has BIN_FLAT only; use a server for the others"
            )
        if bits is not None:
            bits = check_length(bits)
        if read_only and place.embedded and not Path(place.uri).exists():
            # Asking Milvus Lite would make the file.
            raise IndexNotFoundError(place)
        connection = Connection(place, reading=read_only)
        try:
            stored = open_collection(connection, bits, read_only)
        except BaseException:
            connection.close()
            raise
        return cls(connection, stored, read_only=read_only)

    @property
    def bits(self) -> int:
        return self._bits

    def add(self, ids: npt.ArrayLike, codes: Codes) -> None:
        array = check_items(ids, codes, self._bits)
        reject_existing(array[np.isin(array, self._stored(array))])
        self._put(array, codes)

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        self._put(check_items(ids, codes, self._bits), codes)

    def ingest(self, ids: npt.ArrayLike, codes: Codes, track: Track = no_progress) -> int:
        """Asks what is there, batch by batch: a whole export would cost more than it saves."""
        array = check_items(ids, codes, self._bits)
        fresh = len(self) == 0
        sent = 0
        for start in track(range(0, len(array), BATCH), "sending codes"):
            rows = slice(start, start + BATCH)
            part, packed = array[rows], codes[rows]
            if not fresh:
                lacking = ~self._holds(part, packed)
                part, packed = part[lacking], packed[lacking]
            self._put(part, packed)
            sent += len(part)
        if sent and not self._place.embedded:
            # Seals what came in, so that the server indexes it and a restart replays nothing.
            table = self._place.table
            self._connection.retry(lambda client: client.flush(table, timeout=LOADING))
            # The server then loads what it sealed and lets searches wait, of 1e7 codes longer than
            # somebody who searches would: the wait is the copy's.
            self._nearest(codes[:1], 1, self._bits)
        return sent

    def wait_until_ready(self) -> None:
        """Until IVF lists are built: before, a server compares with every code, whatever nprobe."""
        if self._place.index_type == "BIN_FLAT":
            return
        table, deadline = self._place.table, time.monotonic() + LOADING
        while self._call("describe_index", index_name="code")["pending_index_rows"]:
            if time.monotonic() > deadline:
                raise EngineError(f"{self._place} did not build its index within {LOADING:.0f} s")
            time.sleep(0.5)
        # A collection that is loaded goes on without the lists until it is loaded anew.
        self._call("release_collection")
        self._connection.retry(lambda client: client.load_collection(table, timeout=LOADING))

    def remove(self, ids: npt.ArrayLike) -> int:
        known = self._stored(to_ids(ids))
        self._check_writable()
        for start in range(0, len(known), BATCH):
            self._call("delete", ids=known[start : start + BATCH].tolist(), **self._into)
        return len(known)

    def candidates(self, k: int) -> int:
        return rerank_pool(k)

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        """With weights: of the `candidates(k)` nearest, whose codes are fetched, the k cheapest."""
        k, weights = check_search(codes, self._bits, k, weights)
        if weights is None:
            return pad_rows(*self._lists.of(codes, k, self._bits), k)
        found = RadiusResult(*self._lists.of(codes, rerank_pool(k), self._bits))
        return rerank(*self._with_codes(found), codes, weights, k)

    def search_radius(self, codes: Codes, radius: int) -> RadiusResult:
        check_query(codes, self._bits)
        radius = min(check_radius(radius), self._bits)
        return RadiusResult(*self._lists.of(codes, None, radius))

    def export(self) -> tuple[Ids, Codes]:
        ids, packed = [np.empty(0, np.int64)], [self._no_codes()]
        for part, codes in self.export_blocks():
            ids.append(part)
            packed.append(codes.packed)
        return np.concatenate(ids), Codes(np.concatenate(packed), self._bits)

    def export_blocks(self) -> Iterator[tuple[Ids, Codes]]:
        """Every item by ascending id, a block at a time; a lost server is waited for."""
        last = -1
        while rows := self._page(last):
            rows.sort(key=lambda row: int(row["id"]))
            yield self._columns(rows)
            last = int(rows[-1]["id"])

    def verify(self) -> None:
        """Milvus checks its own files; this checks that it answers."""
        len(self)

    def __len__(self) -> int:
        return int(self._query(filter="", output_fields=["count(*)"])[0]["count(*)"])

    def close(self) -> None:
        self._connection.close()

    def _nearest(
        self, queries: Codes, limit: int, radius: int, inner: int = 0, inside: str = ""
    ) -> list[IdDistances]:
        """Up to `limit` items of each query, nearest first, the nearest with distance >= inner.

        Without range search (BIN_IVF_FLAT) nearer and farther ones are among them.
        """
        if not len(queries):
            return []
        params: dict[str, Any] = {} if self._ranges else {"nprobe": self._lists_looked_at}
        if self._ranges and (inner or radius < self._bits):
            params = {"range_filter": inner, "radius": radius + 1}  # [range_filter, radius)
        answers = self._call(
            "search",
            data=[row.tobytes() for row in queries.packed],
            anns_field="code",
            limit=limit,
            filter=inside,
            search_params={"metric_type": "HAMMING", "params": params},
            consistency_level=self._place.consistency,
            **self._among,
        )
        return [
            (
                np.array([hit["id"] for hit in hits], np.int64),
                np.array([round(hit["distance"]) for hit in hits], np.int32),
            )
            for hits in answers
        ]

    def _with_codes(self, found: RadiusResult) -> tuple[RadiusResult, npt.NDArray[np.uint8]]:
        """What was found and its codes, but for what was removed meanwhile."""
        wanted, parts = np.unique(found.ids), [(np.empty(0, np.int64), self._no_codes())]
        for start in range(0, len(wanted), BATCH):
            some = wanted[start : start + BATCH].tolist()
            # As fresh as the search that found them, which need not wait for other clients.
            rows = self._query(self._place.consistency, ids=some, output_fields=["id", "code"])
            ids, codes = self._columns(rows)
            order = np.argsort(ids)
            parts.append((ids[order], codes.packed[order]))
        known, packed = (np.concatenate(column) for column in zip(*parts, strict=True))
        return join_codes(found, known, packed)

    def _stored(self, ids: Ids) -> Ids:
        """Those of `ids` that are in the index."""
        parts = [np.empty(0, np.int64)]
        for start in range(0, len(ids), BATCH):
            rows = self._query(ids=ids[start : start + BATCH].tolist(), output_fields=["id"])
            parts.append(np.array([row["id"] for row in rows], np.int64))
        return np.unique(np.concatenate(parts))

    def _holds(self, ids: Ids, codes: Codes) -> npt.NDArray[np.bool_]:
        """Which of these items are stored with these very codes."""
        rows = self._query(ids=ids.tolist(), output_fields=["id", "code"])
        known = {int(row["id"]): row["code"][0] for row in rows}
        return np.array(
            [known.get(int(i)) == code.tobytes() for i, code in zip(ids, codes.packed)], np.bool_
        )

    def _put(self, ids: Ids, codes: Codes) -> None:
        self._check_writable()
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH].tolist()
            packed = codes.packed[start : start + BATCH]
            rows = [{"id": i, "code": code.tobytes()} for i, code in zip(part, packed)]
            # Never insert: a request whose answer was lost is sent again, and must not double.
            self._call("upsert", data=rows, **self._into)

    def _page(self, last: int) -> list[Any]:
        """The next rows after an id. A plain query with a limit may leave out rows between."""

        def first_batch(client: Any) -> list[Any]:
            iterator = client.query_iterator(
                collection_name=self._place.table,
                batch_size=BATCH,
                filter=f"id > {last}",
                output_fields=["id", "code"],
                timeout=self._connection.timeout,
                consistency_level="Strong",
                **self._among,
            )
            try:
                return list(iterator.next())
            finally:
                iterator.close()

        return self._connection.retry(first_batch, seconds("MILVUS_PATIENCE", COPYING))

    def _no_codes(self) -> npt.NDArray[np.uint8]:
        return np.empty((0, self._bits // 8), np.uint8)

    def _columns(self, rows: Sequence[Any]) -> tuple[Ids, Codes]:
        packed = np.frombuffer(b"".join(row["code"][0] for row in rows), np.uint8)
        ids = np.array([row["id"] for row in rows], np.int64)
        return ids, Codes(packed.reshape(len(rows), -1), self._bits)

    def _query(self, consistency: str = "Strong", **arguments: Any) -> Any:
        return self._call("query", consistency_level=consistency, **arguments, **self._among)

    def _call(self, verb: str, **arguments: Any) -> Any:
        return self._connection.call(verb, collection_name=self._place.table, **arguments)

    def _check_writable(self) -> None:
        if self._read_only:
            raise EngineError(f"the index at {self._place} was opened read-only")
