"""How long a query takes that asks many shards and waits for the slowest of them: a simulation.

    python benchmarks/fanout.py --items 1e10 --ms-per-million 0.5 --shard 1e8

A shard's time is its scan (items times the measured unit cost), stretched by a lognormal noise of
the given spread, plus, rarely, a pause (garbage collection, compaction, a busy neighbour), plus a
network round trip. Merging k results of n shards costs n log k steps and is counted, too.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

MERGE_NS = 50.0  # one comparison and move while merging sorted lists, measured in NumPy


def shard_times(
    rng: np.random.Generator, shape: tuple[int, ...], options: argparse.Namespace
) -> npt.NDArray[np.float64]:
    """Milliseconds of each asked shard."""
    scan = options.ms_per_million * options.shard / 1e6
    times: npt.NDArray[np.float64] = scan * rng.lognormal(0.0, options.spread, shape)
    times += options.network_ms * rng.lognormal(0.0, 0.25, shape)
    paused = rng.random(shape) < options.pause_rate
    times += paused * rng.exponential(options.pause_ms, shape)
    return times


def simulate(options: argparse.Namespace) -> list[dict[str, float]]:
    """Percentiles of the query time for 1, 10, ... shards, without and with a hedged request."""
    rng = np.random.default_rng(options.seed)
    most = max(1, -(-int(options.items) // int(options.shard)))
    rows = []
    for shards in sorted({10**power for power in range(12) if 10**power < most} | {most}):
        times = shard_times(rng, (options.queries, shards), options)
        # Hedging: what is not back by the 95th percentile of a shard is asked of a replica.
        probe_budget = float(np.quantile(times, 0.95))
        second = probe_budget + shard_times(rng, times.shape, options)
        merge = shards * options.k * np.log2(max(2, options.k)) * MERGE_NS / 1e6
        row = {"shards": float(shards)}
        for name, part in (("plain", times), ("hedged", np.minimum(times, second))):
            slowest = part.max(axis=1) + merge
            for percent in (50, 99, 99.9):
                row[f"{name} p{percent:g}"] = float(np.percentile(slowest, percent))
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=float, default=1e10)
    parser.add_argument("--shard", type=float, default=1e8, help="items a shard holds")
    parser.add_argument("--ms-per-million", type=float, default=0.5, help="see docs/scale.md")
    parser.add_argument("--spread", type=float, default=0.15, help="sigma of the lognormal noise")
    parser.add_argument("--pause-rate", type=float, default=0.002, help="share of slow answers")
    parser.add_argument("--pause-ms", type=float, default=50.0, help="mean of a pause")
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
