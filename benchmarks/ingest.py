"""Measure how fast index backends ingest, search and export codes.

    python benchmarks/ingest.py grouped: faiss: milvus:./lite.db milvus:http://host:19530/bench

Codes of 64 bits around 1,000 centers, means and standard deviations over --seeds data sets. The
indexes must be empty, and are emptied after each data set.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.index import open_index


def clustered(count: int, bits: int, rng: np.random.Generator) -> Codes:
    """Return copies of 1,000 random codes with a tenth of the bits flipped."""
    centers = rng.random((1000, bits)) < 0.5
    codes = centers[rng.integers(0, len(centers), count)]
    codes ^= rng.random(codes.shape) < 0.1
    return Codes(np.packbits(codes, axis=1), bits)


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(url: str, options: argparse.Namespace, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    codes = clustered(options.items, options.bits, rng)
    queries = clustered(options.queries, options.bits, rng)
    ids = np.arange(options.items)
    index = open_index(url, options.bits)
    try:
        if len(index):
            raise SystemExit(f"{url} has {len(index):,} codes. Pass an empty index.")
        ingest = timed(lambda: index.ingest(ids, codes))
        index.search(queries[:1], 10)
        single = timed(lambda: [index.search(queries[i : i + 1], 10) for i in range(len(queries))])
        batch = timed(lambda: index.search(queries, 10))
        export = timed(index.export)
        index.remove(ids)
    finally:
        index.close()
    return {
        "ingest/s": options.items / ingest,
        "ms/query": 1e3 * single / options.queries,
        "ms/query in a batch": 1e3 * batch / options.queries,
        "export/s": options.items / export,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("urls", nargs="+", help="index URLs")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {url: [] for url in options.urls}
    for seed in range(options.seeds):  # backends take turns, so that a busy machine slows all
        for url, results in rows.items():
            results.append(measure(url, options, seed))
    columns = list(rows[options.urls[0]][0])
    print(f"{options.items:,} codes of {options.bits} bits, k = 10, {options.seeds} data sets\n")
    print("| index | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for url, results in rows.items():
        cells = []
        for column in columns:
            values = [row[column] for row in results]
            digits = 0 if column.endswith("/s") else 2
            cells.append(f"{np.mean(values):,.{digits}f} ± {np.std(values):,.{digits}f}")
        print(f"| `{url}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
