"""The codes and the engines that benchmarks/search.py compares."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import faiss
import numpy as np

from transhash.codes import Codes
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.grouped.segment import to_words
from transhash.index.kernel import native

Packed = np.ndarray
Search = Callable[[Packed, int], tuple[np.ndarray, np.ndarray]]  # -> distances, ids


class Engine(NamedTuple):
    name: str
    search: Search
    build_s: float
    bytes_an_item: float
    exact: bool


# ---- codes ---------------------------------------------------------------------------------


def uniform(count: int, bits: int, seed: int) -> Packed:
    return np.random.default_rng(seed).integers(0, 256, (count, bits // 8), dtype=np.uint8)


def near(centres: Packed, count: int, flip: np.ndarray, seed: int) -> Packed:
    """Codes at random centres, bit j flipped with probability flip[j] (to 1/256)."""
    generator = np.random.default_rng(seed)
    limit = np.maximum(np.round(flip * 256), 0)
    parts = []
    for start in range(0, count, 1 << 18):
        size = min(1 << 18, count - start)
        flips = generator.integers(0, 256, (size, len(flip)), dtype=np.uint8) < limit
        parts.append(centres[generator.integers(0, len(centres), size)] ^ np.packbits(flips, 1))
    return np.concatenate(parts)


def clustered(count: int, bits: int, seed: int, flip: float) -> Packed:
    """1,000 random centres, every bit flipped with probability `flip`."""
    return near(uniform(1000, bits, 12345), count, np.full(bits, flip), seed)


def resampled(codes: Packed, count: int, seed: int) -> Packed:
    """A trained model's codes, and around them its own noise: how often each bit differs between
    a code and its nearest other one."""
    sample = codes[np.random.default_rng(1).permutation(len(codes))[:2000]]
    bits = sample.shape[1] * 8
    distance = Codes(sample, bits).hamming(Codes(sample, bits)).astype(int)
    np.fill_diagonal(distance, bits + 1)
    differs = np.unpackbits(sample ^ sample[distance.argmin(1)], axis=1).mean(0)
    return near(codes, count, differs, seed)


# ---- engines -------------------------------------------------------------------------------


def engines(packed: Packed, args: argparse.Namespace) -> Iterator[Engine]:
    count, bits = len(packed), packed.shape[1] * 8

    def timed(make: Callable[[], Any]) -> tuple[Any, float]:
        start = time.process_time()
        return make(), time.process_time() - start

    def ours() -> GroupedIndex:
        index = GroupedIndex(bits)
        index.threads = args.threads
        index.add(np.arange(count), Codes(packed, bits))
        return index

    def grow(index: Any) -> Any:
        index.add(packed)
        return index

    index, seconds = timed(ours)

    def search_ours(queries: Packed, k: int) -> tuple[np.ndarray, np.ndarray]:
        ranking = index.search(Codes(queries, bits), k)
        return ranking.distances, ranking.ids

    yield Engine("ours", search_ours, seconds, index.nbytes / count, True)
    if native is not None:
        segment = index._state.parts[0].segment

        def scan(queries: Packed, k: int) -> tuple[np.ndarray, np.ndarray]:
            ranking = segment.search(to_words(queries), k, args.threads, 0.0)
            return ranking.distances, ranking.ids

        yield Engine("ours, scan only", scan, seconds, segment.words.nbytes / count, True)
    flat, seconds = timed(lambda: grow(faiss.IndexBinaryFlat(bits)))
    yield Engine("faiss flat", flat.search, seconds, bits / 8, True)
    if args.must:
        return

    def numpy_search(queries: Packed, k: int) -> tuple[np.ndarray, np.ndarray]:
        distances = Codes(queries, bits).hamming(Codes(packed, bits))
        ids = np.argpartition(distances, k, axis=1)[:, :k]
        return np.take_along_axis(distances, ids, 1), ids

    yield Engine("numpy", numpy_search, 0.0, bits / 8, True)
    if count > args.approximate_up_to:
        return

    def ivf() -> Any:
        index = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(bits), bits, 1024)
        index.own_fields, index.nprobe = False, 16
        index.train(packed[: 1 << 16])
        return grow(index)

    def hashed() -> Any:
        index = grow(faiss.IndexBinaryMultiHash(bits, max(1, bits // 16), 16))
        index.nflip = 1
        return index

    for name, make, extra in (
        ("faiss ivf", ivf, 8.0),
        ("faiss multihash", hashed, 8.0 * max(1, bits // 16)),
        ("faiss hnsw", lambda: grow(faiss.IndexBinaryHNSW(bits, 16)), 16 * 2 * 4.0),
    ):
        made, seconds = timed(make)
        yield Engine(name, made.search, seconds, bits / 8 + extra, False)
    try:
        from usearch.index import Index as USearch
        from usearch.index import MetricKind, ScalarKind
        from usearch.index import search as usearch_exact
    except ImportError:
        return

    def usearch_flat(queries: Packed, k: int) -> tuple[np.ndarray, np.ndarray]:
        found = usearch_exact(
            packed, queries, k, MetricKind.Hamming, exact=True, threads=args.threads
        )
        return _rows(found, len(queries))

    yield Engine("usearch exact", usearch_flat, 0.0, bits / 8, True)
    graph = USearch(ndim=bits, metric=MetricKind.Hamming, dtype=ScalarKind.B1)
    _, seconds = timed(lambda: graph.add(np.arange(count), packed, threads=args.threads))

    def usearch_graph(queries: Packed, k: int) -> tuple[np.ndarray, np.ndarray]:
        return _rows(graph.search(queries, k, threads=args.threads), len(queries))

    yield Engine("usearch hnsw", usearch_graph, seconds, graph.memory_usage / count, False)


def _rows(found: Any, queries: int) -> tuple[np.ndarray, np.ndarray]:
    shape = (queries, -1)
    return np.asarray(found.distances).reshape(shape), np.asarray(found.keys).reshape(shape)
