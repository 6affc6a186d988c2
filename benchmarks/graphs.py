"""Measure the recall of graph indexes on codes that repeat.

    python benchmarks/graphs.py

Items have one of a number of distinct 32-bit codes, and 1,000 queries are copies of items with
flipped bits. Recall: the fraction of the ten results that are as near as the tenth exact result.
Needs `pip install 'transhash[usearch]'`.
"""

from __future__ import annotations

import faiss
import numpy as np
from usearch.index import Index, MetricKind, ScalarKind

ITEMS, QUERIES, K, BITS = 20_000, 1_000, 10, 32


def recall(distances: np.ndarray, exact: np.ndarray) -> float:
    return float((distances[:, :K] <= exact[:, -1:]).mean())


def measure(distinct: int, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (distinct, BITS // 8), dtype=np.uint8)
    if distinct < ITEMS:
        codes = codes[rng.integers(0, distinct, ITEMS)]
    flips = np.packbits(rng.random((QUERIES, BITS)) < 0.05, axis=1)
    queries = codes[rng.integers(0, ITEMS, QUERIES)] ^ flips
    flat = faiss.IndexBinaryFlat(BITS)
    flat.add(codes)
    exact = flat.search(queries, K)[0]
    faiss_graph = faiss.IndexBinaryHNSW(BITS, 16)
    faiss_graph.add(codes)
    usearch_graph = Index(ndim=BITS, metric=MetricKind.Hamming, dtype=ScalarKind.B1)
    usearch_graph.add(np.arange(ITEMS), codes)
    matches = usearch_graph.search(queries, K)
    # Both return fewer than K results if the graph search ends early.
    valid = np.arange(K)[None] < np.asarray(matches.counts)[:, None]
    usearch_distances = np.where(valid, matches.distances, BITS + 1)
    distances, ids = faiss_graph.search(queries, K)
    faiss_distances = np.where(ids < 0, BITS + 1, distances)
    return recall(faiss_distances, exact), recall(usearch_distances, exact)


if __name__ == "__main__":
    print(f"{ITEMS:,} items of {BITS} bits, {QUERIES:,} queries, k = {K}, seeds 0 to 2")
    for distinct in (ITEMS, 2_000, 200):
        values = np.array([measure(distinct, seed) for seed in range(3)])
        mean, deviation = values.mean(axis=0), values.std(axis=0)
        print(
            f"{distinct:>6,} distinct codes   FAISS HNSW {mean[0]:.3f} ± {deviation[0]:.3f}"
            f"   USearch HNSW {mean[1]:.3f} ± {deviation[1]:.3f}"
        )
