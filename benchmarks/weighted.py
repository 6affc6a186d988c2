"""Measure the cost of ranking modes in a `grouped:` index: processor time per query.

    python benchmarks/weighted.py                  # 1e6 items, a minute or two
    python benchmarks/weighted.py --items 1e7

One thread, k = 24, median and 95th percentile of 40 queries near stored items, with half-normal
absolute projections. Clustered codes: 1,000 random centers, bits flipped with probability 0.02.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from transhash.codes import Codes
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.weighted import RANKING_MODES, query_weights

QUERIES = 40


def make_codes(kind: str, items: int, bits: int, rng: np.random.Generator) -> Codes:
    if kind == "uniform":
        return Codes(rng.integers(0, 256, (items, bits // 8), dtype=np.uint8), bits)
    packed = rng.integers(0, 256, (1000, bits // 8), dtype=np.uint8)[rng.integers(0, 1000, items)]
    for byte in range(bits // 8):  # a float per bit would take gigabytes
        packed[:, byte] ^= np.packbits(rng.random((items, 8)) < 0.02, axis=1)[:, 0]
    return Codes(packed, bits)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=float, default=1e6)
    items = int(parser.parse_args().items)
    rng = np.random.default_rng(0)
    print(f"| codes | bits | {' | '.join(RANKING_MODES)} |\n|---|---|---|---|---|")
    for kind in ("uniform", "clustered"):
        for bits in (32, 64, 128):
            codes = make_codes(kind, items, bits, rng)
            index = GroupedIndex(bits)
            index.add(np.arange(items), codes)
            index.threads = 1
            signs = codes[rng.integers(0, items, QUERIES)].signs()
            z = signs * np.abs(rng.normal(0, 1, signs.shape))
            z = np.where(rng.random(z.shape) < 0.05, -z, z)
            queries, cells = Codes.from_projections(z), []
            for mode in RANKING_MODES:
                weights, seconds = query_weights(z, mode), []
                for q in range(QUERIES):
                    bit_weights = None if weights is None else weights[q : q + 1]
                    start = time.process_time()
                    index.search(queries[q : q + 1], 24, bit_weights)
                    seconds.append(time.process_time() - start)
                p50, p95 = np.percentile(1000 * np.array(seconds), [50, 95])
                cells.append(f"{p50:.2f} ({p95:.2f})")
            print(f"| {kind} | {bits} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
