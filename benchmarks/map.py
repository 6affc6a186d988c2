"""Compare MAP by distance histograms with the common argsort per query.

    python benchmarks/map.py                     2,000 x 200,000 at 32 bits, two kinds of codes
    python benchmarks/map.py --large             2,000 x 2,000,000
    python benchmarks/map.py --queries 500 --items 50000 --bits 64 --codes clustered

Each algorithm runs in a separate process on the same data, which gives its peak memory. The time
excludes imports and data. The argsort loop is DCMH's calc_map. With --large it runs on a sample of
the queries and its time is scaled up.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

# NumPy is imported in child processes only: the peak memory of a child includes its parent's.

LABELS = 16


def main() -> None:
    arguments = parse()
    if arguments.algorithm:
        print(json.dumps(ALGORITHMS[arguments.algorithm](arguments)))
        return
    for codes in ["random", "clustered"] if arguments.codes == "both" else [arguments.codes]:
        print(
            f"{arguments.queries:,} queries x {arguments.items:,} items, {arguments.bits} bits, "
            f"{codes} codes"
        )
        ours = run_child(arguments, codes, "histogram")
        print(format_row("transhash.evaluate", ours), flush=True)
        loop = run_child(arguments, codes, "argsort")
        print(format_row("argsort per query", loop))
        sampled = loop["queries"] < arguments.queries
        scale = arguments.queries / loop["queries"]
        note = f", loop timed on {loop['queries']} queries and scaled" if sampled else ""
        print(
            f"  {ours['distinct']:,} distinct codes; "
            f"{scale * loop['wall'] / ours['wall']:.0f} times faster{note}"
        )
        expected = ours["map_of_sample"] if sampled else ours["map"]
        print(
            f"  difference {loop['map'] - expected:+.6f}; "
            f"depending on tie order, MAP is {ours['worst']:.4f} to {ours['best']:.4f}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--codes", choices=["random", "clustered", "both"], default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None, help="threads; default: all cores")
    parser.add_argument("--loop-queries", type=int, default=None, help="queries for the loop")
    parser.add_argument("--large", action="store_true", help="2,000,000 items, loop on 20 queries")
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.large:
        arguments.items, arguments.large = 2_000_000, False
        arguments.loop_queries = arguments.loop_queries or 20
    arguments.loop_queries = min(arguments.loop_queries or arguments.queries, arguments.queries)
    return arguments


def run_child(arguments: argparse.Namespace, codes: str, algorithm: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--algorithm", algorithm, "--codes", codes]
    for name in ("queries", "items", "bits", "seed", "workers", "loop_queries"):
        if (value := getattr(arguments, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def format_row(name: str, result: dict[str, Any]) -> str:
    return (
        f"  {name:<20} MAP {result['map']:.6f}  {result['wall']:8.2f} s "
        f"({result['cpu']:.2f} s CPU, {1e3 * result['wall'] / result['queries']:.2f} ms per query)"
        f"  peak {result['peak_mb']:.0f} MB ({result['before_mb']:.0f} MB imports and data)"
    )


def make_data(arguments: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """Return codes and labels; clustered codes lie around a center per label, like learned ones."""
    import numpy as np

    rng = np.random.default_rng(arguments.seed)
    bits = arguments.bits
    centers = 2 * rng.standard_normal((LABELS, bits), dtype=np.float32)

    def make_items(count: int) -> tuple[Any, Any]:
        labels = rng.random((count, LABELS), dtype=np.float32) < 0.05
        labels[np.arange(count), rng.integers(0, LABELS, count)] = True
        packed = np.empty((count, bits // 8), dtype=np.uint8)
        for start in range(0, count, 50_000):  # bounds the memory of the floats
            part = labels[start : start + 50_000]
            z = rng.standard_normal((len(part), bits), dtype=np.float32)
            if arguments.codes == "clustered":
                z += part.astype(np.float32) @ centers
            packed[start : start + 50_000] = np.packbits(z > 0, axis=1)
        return packed, labels

    return (*make_items(arguments.queries), *make_items(arguments.items))


def histogram(arguments: argparse.Namespace) -> dict[str, Any]:
    from transhash.codes import Codes
    from transhash.evaluation import DEFINITIONS, DistanceHistogram, Scores

    queries, query_labels, items, labels = make_data(arguments)
    query_codes, codes = Codes(queries, arguments.bits), Codes(items, arguments.bits)
    clock = Clock()
    table = DistanceHistogram.from_codes(
        query_codes, codes, query_labels, labels, workers=arguments.workers
    )
    scores = Scores.from_counts(table)
    times = clock.stop()
    first = slice(0, arguments.loop_queries)
    sample = DistanceHistogram(table.items[first], table.relevant[first])
    return times | {
        "map": scores.map,
        "map_of_sample": DEFINITIONS["DCMH"].score(sample),
        "best": scores.best_tie_order,
        "worst": scores.worst_tie_order,
        "queries": arguments.queries,
        "distinct": codes.distinct(),
    }


def argsort(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the loop of DCMH's calc_map, which DeepHash-pytorch and UCMFH share except the cutoff."""
    import numpy as np

    queries, query_labels, items, labels = make_data(arguments)

    def signs(packed: Any) -> Any:
        return np.unpackbits(packed, axis=1).astype(np.float32) * 2 - 1

    query_signs, item_signs = signs(queries), signs(items)
    query_truth, truth = query_labels.astype(np.float32), labels.astype(np.float32)
    clock = Clock()
    total = 0.0
    for q in range(arguments.loop_queries):
        relevant = query_truth[q] @ truth.T > 0
        if not relevant.any():
            continue
        distances = 0.5 * (arguments.bits - query_signs[q] @ item_signs.T)
        ranking = relevant[np.argsort(distances)]
        ranks = np.flatnonzero(ranking) + 1.0
        total += float(np.mean(np.arange(1, len(ranks) + 1) / ranks))
    times = clock.stop()
    count = arguments.loop_queries
    return times | {"map": total / count, "queries": count}


class Clock:
    def __init__(self) -> None:
        self.before_mb = peak_mb()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        return {
            "wall": time.perf_counter() - self.wall,
            "cpu": time.process_time() - self.cpu,
            "before_mb": self.before_mb,
            "peak_mb": peak_mb(),
        }


def peak_mb() -> float:
    """Return the largest resident size so far (Linux reports kilobytes, macOS bytes)."""
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


ALGORITHMS = {"histogram": histogram, "argsort": argsort}

if __name__ == "__main__":
    main()
