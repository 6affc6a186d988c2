"""How much of an exact answer a graph index gives over codes that repeat.

    python benchmarks/graphs.py

Items are drawn from some distinct codes of 32 bits, 1,000 queries are flipped copies of items.
Recall: of the ten results, how many are as near as the tenth of the exact answer.
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
    kinds = rng.integers(0, 256, (distinct, BITS // 8), dtype=np.uint8)
    codes = kinds[rng.integers(0, distinct, ITEMS)] if distinct < ITEMS else kinds
    flips = np.packbits(rng.random((QUERIES, BITS)) < 0.05, axis=1)
    queries = codes[rng.integers(0, ITEMS, QUERIES)] ^ flips
    flat = faiss.IndexBinaryFlat(BITS)
    flat.add(codes)
    exact = flat.search(queries, K)[0]
    graph = faiss.IndexBinaryHNSW(BITS, 16)
    graph.add(codes)
    other = Index(ndim=BITS, metric=MetricKind.Hamming, dtype=ScalarKind.B1)
    other.add(np.arange(ITEMS), codes)
    found = other.search(queries, K)
    # A walk that ends early leaves places empty.
    lengths = np.arange(K)[None] < np.asarray(found.counts)[:, None]
    theirs = np.where(lengths, found.distances, BITS + 1)
    ours = graph.search(queries, K)
    return (
        recall(np.where(ours[1] < 0, BITS + 1, ours[0]), exact),
        recall(theirs, exact),
    )


if __name__ == "__main__":
    print(f"{ITEMS:,} items of {BITS} bits, {QUERIES:,} queries, k = {K}, seeds 0 to 2")
    for distinct in (ITEMS, 2_000, 200):
        each = np.array([measure(distinct, seed) for seed in range(3)])
        mean, spread = each.mean(axis=0), each.std(axis=0)
        print(
            f"{distinct:>6,} distinct codes   FAISS HNSW {mean[0]:.3f} ± {spread[0]:.3f}"
            f"   USearch HNSW {mean[1]:.3f} ± {spread[1]:.3f}"
        )
