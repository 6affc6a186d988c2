"""Codes and search libraries that benchmarks/search.py compares."""

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
from transhash.threads import cpu_count

Packed = np.ndarray
Search = Callable[[Packed, int, int], tuple[np.ndarray, np.ndarray]]  # queries, k, threads


class Engine(NamedTuple):
    name: str
    search: Search  # -> distances, ids
    build_s: float  # processor time
    bytes_per_item: float
    exact: bool


def uniform(count: int, bits: int, seed: int) -> Packed:
    return np.random.default_rng(seed).integers(0, 256, (count, bits // 8), dtype=np.uint8)


def add_noise(centers: Packed, count: int, flip: np.ndarray, seed: int) -> Packed:
    """Return copies of random centers, bit j flipped with probability flip[j] (to 1/256)."""
    generator = np.random.default_rng(seed)
    limit = np.maximum(np.round(flip * 256), 0)
    parts = []
    for start in range(0, count, 1 << 18):
        size = min(1 << 18, count - start)
        flips = generator.integers(0, 256, (size, len(flip)), dtype=np.uint8) < limit
        parts.append(centers[generator.integers(0, len(centers), size)] ^ np.packbits(flips, 1))
    return np.concatenate(parts)


def clustered(count: int, bits: int, seed: int, flip: float) -> Packed:
    """Return copies of 1,000 random codes, bits flipped with probability `flip`."""
    return add_noise(uniform(1000, bits, 12345), count, np.full(bits, flip), seed)


def nearest_differences(codes: Packed) -> np.ndarray:
    """Return how often each bit differs between a code and the nearest other one."""
    sample = codes[np.random.default_rng(1).permutation(len(codes))[:2000]]
    bits = sample.shape[1] * 8
    distance = Codes(sample, bits).hamming(Codes(sample, bits)).astype(int)
    np.fill_diagonal(distance, bits + 1)
    return np.asarray(np.unpackbits(sample ^ sample[distance.argmin(1)], axis=1).mean(0))


def resampled(codes: Packed, count: int, seed: int) -> Packed:
    """Return copies of a model's codes, each bit flipped as often as between nearest codes."""
    return add_noise(codes, count, nearest_differences(codes), seed)


def build_engines(packed: Packed, args: argparse.Namespace) -> Iterator[Engine]:
    """Yield transhash, then other exact engines, then approximate ones, built on all cores."""
    count, bits = len(packed), packed.shape[1] * 8
    faiss.omp_set_num_threads(cpu_count())

    def build_grouped() -> GroupedIndex:
        index = GroupedIndex(bits)
        index.add(np.arange(count), Codes(packed, bits))
        return index

    index, seconds = _timed(build_grouped)

    def search_grouped(queries: Packed, k: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
        index.threads = threads
        ranking = index.search(Codes(queries, bits), k)
        return ranking.distances, ranking.ids

    yield Engine("ours", search_grouped, seconds, index.nbytes / count, True)
    if native is not None and index._state.parts:  # a small index has no segment
        segment = index._state.parts[0].segment

        def scan(queries: Packed, k: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
            ranking = segment.search(to_words(queries), k, threads, 0.0)
            return ranking.distances, ranking.ids

        yield Engine("ours, scan only", scan, seconds, segment.words.nbytes / count, True)
    yield _faiss("faiss flat", lambda: faiss.IndexBinaryFlat(bits), packed, 0.0)
    if args.required:
        return
    if count <= 10**6:

        def numpy_search(queries: Packed, k: int, _: int) -> tuple[np.ndarray, np.ndarray]:
            distances = Codes(queries, bits).hamming(Codes(packed, bits))
            ids = np.argpartition(distances, k, axis=1)[:, :k]
            return np.take_along_axis(distances, ids, 1), ids

        yield Engine("numpy", numpy_search, 0.0, bits / 8, True)

    def ivf() -> Any:
        index = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(bits), bits, 1024)
        index.own_fields, index.nprobe = False, 16
        index.train(packed[: 1 << 16])
        return index

    def multihash() -> Any:
        index = faiss.IndexBinaryMultiHash(bits, max(1, bits // 16), 16)
        index.nflip = 1
        return index

    yield from _usearch(packed, graph=False)
    yield _faiss("faiss ivf", ivf, packed, 8.0)
    yield _faiss("faiss multihash", multihash, packed, 8.0 * max(1, bits // 16))
    if count <= args.graphs_up_to:
        yield _faiss("faiss hnsw", lambda: faiss.IndexBinaryHNSW(bits, 16), packed, 16 * 2 * 4.0)
        yield from _usearch(packed, graph=True)


def _timed(make: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return make(), time.process_time() - start


def _faiss(name: str, make: Callable[[], Any], packed: Packed, extra: float) -> Engine:
    def build() -> Any:
        index = make()
        index.add(packed)
        return index

    index, seconds = _timed(build)

    def search(queries: Packed, k: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
        faiss.omp_set_num_threads(threads)
        distances, ids = index.search(queries, k)
        return distances, ids

    return Engine(name, search, seconds, packed.shape[1] + extra, name == "faiss flat")


def _usearch(packed: Packed, *, graph: bool) -> Iterator[Engine]:
    try:
        from usearch.index import Index, MetricKind, ScalarKind, search
    except ImportError:
        return
    if not graph:

        def flat(queries: Packed, k: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
            matches = search(packed, queries, k, MetricKind.Hamming, exact=True, threads=threads)
            return _to_rows(matches, len(queries))

        yield Engine("usearch exact", flat, 0.0, packed.shape[1], True)
        return
    index = Index(ndim=packed.shape[1] * 8, metric=MetricKind.Hamming, dtype=ScalarKind.B1)
    _, seconds = _timed(lambda: index.add(np.arange(len(packed)), packed, threads=cpu_count()))

    def walk(queries: Packed, k: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
        return _to_rows(index.search(queries, k, threads=threads), len(queries))

    yield Engine("usearch hnsw", walk, seconds, index.memory_usage / len(packed), False)


def _to_rows(matches: Any, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and ids; missing results have distance -1, as in FAISS."""
    shape = (queries, -1)
    distances = np.asarray(matches.distances).reshape(shape)
    if queries > 1:
        empty = np.arange(distances.shape[1])[None] >= np.asarray(matches.counts)[:, None]
        distances = np.where(empty, -1, distances)
    return distances, np.asarray(matches.keys).reshape(shape)
