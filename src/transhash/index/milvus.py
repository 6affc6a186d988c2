"""Milvus as a backend: binary vectors, Hamming distance, the same results as `exact`.

Milvus returns at most 16,384 items per query and orders ties arbitrarily. `CompleteResults` fetches
the rest and sorts the ties.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import EngineError, IndexNotFoundError
from transhash.index.base import (
    NO_IDS,
    Distances,
    HitLists,
    Ids,
    Index,
    Packed,
    Ranking,
    check_items,
    check_length,
    check_search,
    pad_rows,
    reject_existing,
    rerank,
    rerank_pool,
    to_ids,
)
from transhash.index.milvus_client import (
    COPY_WAIT,
    LOAD_TIMEOUT,
    Connection,
    MilvusUrl,
    open_collection,
    seconds,
)
from transhash.index.weighted import BitWeights
from transhash.progress import Track, no_progress

MAX_RESULTS = 16_384  # per query, a limit of Milvus
_CHUNK_HITS = 400_000  # per request, over all its queries
_CHUNK_ROWS = 10_000  # items per request; 5 MB as rows, far below the 64 MB of a message
_MAX_ID = 2**63 - 1

IdDistances = tuple[Ids, Distances]  # hits of one query
QueryFn = Callable[..., list[IdDistances]]  # MilvusIndex._nearest


class CompleteResults:
    """Rankings of any length with ties by id.

    Results are fetched until the last tie group is complete; a group that is too large for one
    request is fetched by ranges of ids. `has_ranges`: whether the server has range search.
    """

    def __init__(self, query: QueryFn, bits: int, *, has_ranges: bool) -> None:
        self._query, self._bits, self._has_ranges = query, bits, has_ranges

    def nearest(self, codes: Codes, k: int) -> HitLists:
        """Return the k nearest items of each query, ties by id."""
        results: list[IdDistances] = [(NO_IDS, np.empty(0, np.int32))] * len(codes)
        partial: dict[int, IdDistances] = {}
        remaining = np.arange(len(codes))
        limit = first_limit = min(MAX_RESULTS, 2 * k + 62)
        can_fetch_ties = False
        while len(remaining):
            partial.clear()
            for block in np.array_split(remaining, -(-len(remaining) * limit // _CHUNK_HITS)):
                for query, hits in zip(block, self._query(codes[block], limit), strict=True):
                    ids, distances = hits
                    last = int(distances[k - 1]) if len(ids) >= k else self._bits
                    if len(ids) < limit or distances[-1] > last:
                        results[query] = _sort_hits(hits, k)
                    else:
                        partial[int(query)] = hits
            remaining = np.array(list(partial), np.int64)
            can_fetch_ties = self._has_ranges and limit >= k
            if limit == MAX_RESULTS or (can_fetch_ties and limit > first_limit):
                break
            limit = min(MAX_RESULTS, 8 * limit)
        for query, hits in partial.items():
            one = codes[query : query + 1]
            results[query] = self._add_ties(one, hits, k) if can_fetch_ties else self._walk(one, k)
        offsets = np.cumsum([0, *(len(ids) for ids, _ in results)], dtype=np.int64)
        return HitLists(offsets, *_concatenate(results))

    def _add_ties(self, query: Codes, hits: IdDistances, k: int) -> IdDistances:
        """Complete hits that include the k-th nearest item with all items at its distance.

        Learned codes repeat, so there may be thousands of them.
        """
        last = int(hits[1][k - 1])
        nearer = _select(hits, 0, last - 1)
        ties = self._by_ids(query, last, last, k - len(nearer[0]))
        return _sort_hits(_concatenate([nearer, ties]), k)

    def _walk(self, query: Codes, k: int) -> IdDistances:
        """Fetch results that exceed one request by growing distance."""
        parts: list[IdDistances] = []
        count, inner = 0, 0
        while inner <= self._bits and count < k:
            if inner and not self._has_ranges:
                parts.append(self._by_ids(query, inner, self._bits, None))
                break
            hits = self._query(query, MAX_RESULTS, inner)[0]
            last = int(hits[1][-1]) if len(hits[0]) == MAX_RESULTS else self._bits + 1
            parts.append(_select(hits, inner, last - 1))
            count += len(parts[-1][0])
            if last <= self._bits:
                parts.append(self._by_ids(query, last, last, max(0, k - count)))
                count += len(parts[-1][0])
            inner = last + 1
        return _sort_hits(_concatenate(parts), k)

    def _by_ids(self, query: Codes, inner: int, outer: int, count: int | None) -> IdDistances:
        """Return the `count` smallest ids with inner <= distance <= outer; None: all of them."""
        parts: list[IdDistances] = []
        ranges, total = [(0, _MAX_ID)], 0
        while ranges and (count is None or total < count):
            first, last = ranges.pop()
            id_filter = f"id >= {first} and id <= {last}"
            hits = self._query(query, MAX_RESULTS, inner, outer, id_filter)[0]
            ids, distances = hits
            if len(ids) == MAX_RESULTS and distances[-1] <= outer:
                # Both halves contain returned ids, so each is smaller. The returned ids are an
                # arbitrary choice, so a range with enough items for `count` may be much smaller.
                middle = MAX_RESULTS // 2
                if count is not None:
                    middle = min(middle, 4 * (count - total))
                split = int(np.sort(ids)[middle])
                ranges += [(split, last), (first, split - 1)]
            else:
                parts.append(_select(hits, inner, outer))
                total += len(parts[-1][0])
        ids, distances = _concatenate(parts)
        order = np.argsort(ids)[:count]
        return ids[order], distances[order]


def _select(hits: IdDistances, inner: int, outer: int) -> IdDistances:
    inside = (hits[1] >= inner) & (hits[1] <= outer)
    return hits[0][inside], hits[1][inside]


def _sort_hits(hits: IdDistances, k: int) -> IdDistances:
    ids, distances = hits
    order = np.lexsort((ids, distances))[:k]
    return ids[order], distances[order]


def _concatenate(parts: Sequence[IdDistances]) -> IdDistances:
    return (
        np.concatenate([NO_IDS, *(ids for ids, _ in parts)]),
        np.concatenate([np.empty(0, np.int32), *(distances for _, distances in parts)]),
    )


class MilvusIndex(Index):
    """One partition of a collection on a server, or one collection of a Milvus Lite file."""

    def __init__(self, connection: Connection, bits: int, *, read_only: bool = False) -> None:
        self._connection = connection
        self._url = url = connection.url
        self._bits = bits
        self._read_only = read_only
        self._write_to = {"partition_name": url.partition} if url.partition else {}
        self._read_from = {"partition_names": [url.partition]} if url.partition else {}
        # A range search in IVF lists ends at the second list without a hit, whatever nprobe is.
        self._has_ranges = url.index_type == "BIN_FLAT"
        self._results = CompleteResults(self._nearest, bits, has_ranges=self._has_ranges)

    @classmethod
    def open(cls, location: str, bits: int | None, *, read_only: bool = False) -> Self:
        """Open "file.db#part" or "http://host:19530/collection?index=BIN_IVF_FLAT#part"."""
        url = MilvusUrl.parse(location)
        if url.is_lite and url.index_type != "BIN_FLAT":
            raise EngineError(
                f"Milvus Lite has no {url.index_type} index. Use BIN_FLAT or a server."
            )
        if bits is not None:
            bits = check_length(bits)
        if read_only and url.is_lite and not Path(url.uri).exists():
            raise IndexNotFoundError(url)  # connecting would create the file
        connection = Connection(url, reading=read_only)
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
        reject_existing(np.array(sorted(self._stored_codes(array)), np.int64))
        self._write(array, codes)

    def update(self, ids: npt.ArrayLike, codes: Codes) -> None:
        self._write(check_items(ids, codes, self._bits), codes)

    def ingest(self, ids: npt.ArrayLike, codes: Codes, track: Track = no_progress) -> int:
        """Check batch by batch what is stored: exporting everything would cost more."""
        array = check_items(ids, codes, self._bits)
        is_empty = len(self) == 0
        sent = 0
        for start in track(range(0, len(array), _CHUNK_ROWS), "sending codes"):
            rows = slice(start, start + _CHUNK_ROWS)
            part, part_codes = array[rows], codes[rows]
            if not is_empty:
                stored = self._stored_codes(part)
                pairs = zip(part.tolist(), part_codes.packed, strict=True)
                changed = np.array([stored.get(i) != code.tobytes() for i, code in pairs], np.bool_)
                part, part_codes = part[changed], part_codes[changed]
            self._write(part, part_codes)
            sent += len(part)
        if sent and not self._url.is_lite:
            # Seals the data, so that the server indexes it and a restart replays nothing.
            name = self._url.collection_name
            self._connection.retry(lambda client: client.flush(name, timeout=LOAD_TIMEOUT))
            # The server then loads it and delays searches, for 1e7 codes longer than a user would
            # wait. So wait here.
            self._nearest(codes[:1], 1)
        return sent

    def wait_until_ready(self) -> None:
        """Wait until IVF lists are built: before that a server scans every code."""
        if self._url.index_type == "BIN_FLAT":
            return
        deadline = time.monotonic() + LOAD_TIMEOUT
        call = self._connection.call
        while call("describe_index", index_name="code")["pending_index_rows"]:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self._url} did not build its index within {LOAD_TIMEOUT:.0f} s. "
                    "Check the server and try again."
                )
            time.sleep(0.5)
        # A loaded collection does not use the lists until it is loaded again.
        call("release_collection")
        self._connection.load()

    def remove(self, ids: npt.ArrayLike) -> int:
        existing = list(self._stored_codes(to_ids(ids)))
        self._check_writable()
        for start in range(0, len(existing), _CHUNK_ROWS):
            part = existing[start : start + _CHUNK_ROWS]
            self._connection.call("delete", ids=part, **self._write_to)
        return len(existing)

    def candidates(self, k: int) -> int:
        return rerank_pool(k)

    def search(self, codes: Codes, k: int, weights: BitWeights | None = None) -> Ranking:
        """With weights, fetch the codes of the `candidates(k)` nearest items and rerank them."""
        k, weights = check_search(codes, self._bits, k, weights)
        if weights is None:
            return pad_rows(*self._results.nearest(codes, k), k)
        hits = self._results.nearest(codes, rerank_pool(k))
        return rerank(*self._fetch_codes(hits), codes, weights, k)

    def export(self) -> tuple[Ids, Codes]:
        parts = list(self.export_blocks())
        ids = np.concatenate([NO_IDS, *(ids for ids, _ in parts)])
        packed = [np.empty((0, self._bits // 8), np.uint8), *(codes.packed for _, codes in parts)]
        return ids, Codes(np.concatenate(packed), self._bits)

    def export_blocks(self) -> Iterator[tuple[Ids, Codes]]:
        """Yield every item by ascending id, in blocks; wait for a server that is restarting."""
        last = -1
        while rows := self._page(last):
            rows.sort(key=lambda row: int(row["id"]))
            packed = np.frombuffer(b"".join(row["code"][0] for row in rows), np.uint8)
            ids = np.array([row["id"] for row in rows], np.int64)
            yield ids, Codes(packed.reshape(len(rows), -1), self._bits)
            last = int(rows[-1]["id"])

    def verify(self) -> None:
        """Check that the server answers; Milvus checks its own files."""
        len(self)

    def __len__(self) -> int:
        return int(self._fetch(filter="", output_fields=["count(*)"])[0]["count(*)"])

    def close(self) -> None:
        self._connection.close()

    def _nearest(
        self,
        queries: Codes,
        limit: int,
        inner: int = 0,
        outer: int | None = None,
        id_filter: str = "",
    ) -> list[IdDistances]:
        """Return up to `limit` items of each query, nearest first, with distance >= inner.

        Without range search (BIN_IVF_FLAT) nearer and farther items are among them.
        """
        if not len(queries):
            return []
        outer = self._bits if outer is None else outer
        params: dict[str, Any] = {}
        if not self._has_ranges:
            params = {"nprobe": self._url.nprobe or self._url.nlist}
        elif inner or outer < self._bits:
            params = {"range_filter": inner, "radius": outer + 1}  # [range_filter, radius)
        results = self._connection.call(
            "search",
            data=[row.tobytes() for row in queries.packed],
            anns_field="code",
            limit=limit,
            filter=id_filter,
            search_params={"metric_type": "HAMMING", "params": params},
            consistency_level=self._url.consistency,
            **self._read_from,
        )
        return [
            (
                np.array([hit["id"] for hit in hits], np.int64),
                np.array([round(hit["distance"]) for hit in hits], np.int32),
            )
            for hits in results
        ]

    def _fetch_codes(self, hits: HitLists) -> tuple[HitLists, Packed]:
        """Return the hits and their codes, without items that were removed meanwhile."""
        # The consistency of the search is enough; "Strong" would wait for other clients.
        stored = self._stored_codes(np.unique(hits.ids), self._url.consistency)
        ids = hits.ids.tolist()
        present = np.array([i in stored for i in ids], np.bool_)
        counts = np.concatenate([[0], np.cumsum(present)])
        packed = np.frombuffer(b"".join(stored[i] for i in ids if i in stored), np.uint8)
        joined = HitLists(counts[hits.offsets], hits.ids[present], hits.distances[present])
        return joined, packed.reshape(-1, self._bits // 8)

    def _stored_codes(self, ids: Ids, consistency: str = "Strong") -> dict[int, bytes]:
        """Return the codes of those ids that are in the index."""
        codes: dict[int, bytes] = {}
        for start in range(0, len(ids), _CHUNK_ROWS):
            part = ids[start : start + _CHUNK_ROWS].tolist()
            rows = self._fetch(consistency, ids=part, output_fields=["id", "code"])
            codes |= {int(row["id"]): row["code"][0] for row in rows}
        return codes

    def _write(self, ids: Ids, codes: Codes) -> None:
        self._check_writable()
        for start in range(0, len(ids), _CHUNK_ROWS):
            part = ids[start : start + _CHUNK_ROWS].tolist()
            packed = codes.packed[start : start + _CHUNK_ROWS]
            rows = [{"id": i, "code": code.tobytes()} for i, code in zip(part, packed)]
            # Never insert: a request whose response was lost is sent again and must not duplicate.
            self._connection.call("upsert", data=rows, **self._write_to)

    def _page(self, last: int) -> list[Any]:
        """Return the next rows after an id. A plain query with a limit may skip rows."""

        def first_batch(client: Any) -> list[Any]:
            iterator = client.query_iterator(
                collection_name=self._url.collection_name,
                batch_size=_CHUNK_ROWS,
                filter=f"id > {last}",
                output_fields=["id", "code"],
                timeout=self._connection.timeout,
                consistency_level="Strong",
                **self._read_from,
            )
            try:
                return list(iterator.next())
            finally:
                iterator.close()

        return self._connection.retry(first_batch, seconds("MILVUS_PATIENCE", COPY_WAIT))

    def _fetch(self, consistency: str = "Strong", **arguments: Any) -> Any:
        return self._connection.call(
            "query", consistency_level=consistency, **arguments, **self._read_from
        )

    def _check_writable(self) -> None:
        if self._read_only:
            raise EngineError(f"{self._url} was opened read-only. Open it for writing.")
