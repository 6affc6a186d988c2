"""Simulate the time of a query that waits for the slowest of many shards.

    python benchmarks/fanout.py --items 1e10 --ms-per-million 0.5 --shard 1e8

The time of a shard is its scan (items times the measured unit cost) with lognormal noise, plus a
network round trip, plus a rare pause (garbage collection, compaction, a busy neighbor). Merging k
results of n shards takes n log k steps.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

MERGE_NS = 50.0  # per comparison and move when merging sorted lists, measured in NumPy


def shard_times(
    rng: np.random.Generator, shape: tuple[int, ...], options: argparse.Namespace
) -> npt.NDArray[np.float64]:
    """Return milliseconds per shard."""
    scan = options.ms_per_million * options.shard / 1e6
    times: npt.NDArray[np.float64] = scan * rng.lognormal(0.0, options.spread, shape)
    times += options.network_ms * rng.lognormal(0.0, 0.25, shape)
    paused = rng.random(shape) < options.pause_rate
    times += paused * rng.exponential(options.pause_ms, shape)
    return times


def simulate(options: argparse.Namespace) -> list[dict[str, float]]:
    """Return percentiles of the query time for 1, 10, ... shards, without and with hedging."""
    rng = np.random.default_rng(options.seed)
    max_shards = max(1, -(-int(options.items) // int(options.shard)))
    rows = []
    for shards in sorted(
        {10**power for power in range(12) if 10**power < max_shards} | {max_shards}
    ):
        times = shard_times(rng, (options.queries, shards), options)
        # Hedging: a shard slower than the 95th percentile is queried on a replica as well.
        timeout = float(np.quantile(times, 0.95))
        second = timeout + shard_times(rng, times.shape, options)
        merge = shards * options.k * np.log2(max(2, options.k)) * MERGE_NS / 1e6
        row = {"shards": float(shards)}
        for name, values in (("plain", times), ("hedged", np.minimum(times, second))):
            slowest = values.max(axis=1) + merge
            for percent in (50, 99, 99.9):
                row[f"{name} p{percent:g}"] = float(np.percentile(slowest, percent))
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=float, default=1e10)
    parser.add_argument("--shard", type=float, default=1e8, help="items per shard")
    parser.add_argument("--ms-per-million", type=float, default=0.5, help="see docs/scale.md")
    parser.add_argument("--spread", type=float, default=0.15, help="sigma of the lognormal noise")
    parser.add_argument(
        "--pause-rate", type=float, default=0.002, help="fraction of slow responses"
    )
    parser.add_argument("--pause-ms", type=float, default=50.0, help="mean length of a pause")
    parser.add_argument("--network-ms", type=float, default=0.5)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = simulate(options)
    print("  ".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:12,.1f}" for value in row.values()))


if __name__ == "__main__":
    main()
