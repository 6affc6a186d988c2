"""MAP of many queries: distance histograms against the per-query argsort that peers use.

    python benchmarks/map.py                     2,000 x 200,000 at 32 bits, two kinds of codes
    python benchmarks/map.py --large             2,000 x 2,000,000
    python benchmarks/map.py --queries 500 --items 50000 --bits 64 --codes clustered

Each contender runs in a process of its own, one after the other, on the same data from the same
seed, so that the peak memory is its own. Timed is the call alone: imports and data come before.
The argsort loop is DCMH's calc_map with the queries it needs; in --large it runs on a sample of
the queries and its time is scaled up, which the output says.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

# numpy is imported in the children only: a child's peak memory starts at its parent's.

LABELS = 16


def main() -> None:
    arguments = parse()
    if arguments.contender:
        print(json.dumps(CONTENDERS[arguments.contender](arguments)))
        return
    for codes in ["random", "clustered"] if arguments.codes == "both" else [arguments.codes]:
        print(
            f"{arguments.queries:,} queries x {arguments.items:,} items, {arguments.bits} bits, "
            f"{codes} codes"
        )
        ours = child(arguments, codes, "histogram")
        print(line("transhash.evaluate", ours), flush=True)
        loop = child(arguments, codes, "argsort")
        print(line("argsort per query", loop))
        sampled = loop["queries"] < arguments.queries
        scale = arguments.queries / loop["queries"]
        note = f", loop timed on {loop['queries']} queries and scaled" if sampled else ""
        print(
            f"  {ours['distinct']:,} distinct codes; "
            f"{scale * loop['wall'] / ours['wall']:.0f} times faster{note}"
        )
        same = ours["map_of_sample"] if sampled else ours["map"]
        print(
            f"  difference {loop['map'] - same:+.6f}; "
            f"by tie order alone MAP lies between {ours['worst']:.4f} and {ours['best']:.4f}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--codes", choices=["random", "clustered", "both"], default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None, help="threads; default: all cores")
    parser.add_argument("--loop-queries", type=int, default=None, help="queries for the loop")
    parser.add_argument("--large", action="store_true", help="2,000,000 items, loop on 20 queries")
    parser.add_argument("--contender", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.large:
        arguments.items, arguments.large = 2_000_000, False
        arguments.loop_queries = arguments.loop_queries or 20
    arguments.loop_queries = min(arguments.loop_queries or arguments.queries, arguments.queries)
    return arguments


def child(arguments: argparse.Namespace, codes: str, contender: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--contender", contender, "--codes", codes]
    for name in ("queries", "items", "bits", "seed", "workers", "loop_queries"):
        if (value := getattr(arguments, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def line(name: str, result: dict[str, Any]) -> str:
    return (
        f"  {name:<20} MAP {result['map']:.6f}  {result['wall']:8.2f} s "
        f"({result['cpu']:.2f} s of processor, {1e3 * result['wall'] / result['queries']:.2f} ms "
        f"a query)  peak {result['peak_mb']:.0f} MB, of it {result['before_mb']:.0f} MB "
        "imports and data"
    )


def draw(arguments: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """Multi-label items; clustered codes gather around a point for each label, as learned ones."""
    import numpy as np

    rng = np.random.default_rng(arguments.seed)
    bits = arguments.bits
    centres = 2 * rng.standard_normal((LABELS, bits), dtype=np.float32)

    def side(count: int) -> tuple[Any, Any]:
        labels = rng.random((count, LABELS), dtype=np.float32) < 0.05
        labels[np.arange(count), rng.integers(0, LABELS, count)] = True
        packed = np.empty((count, bits // 8), dtype=np.uint8)
        for start in range(0, count, 50_000):  # the floats of all items would hide the peak
            part = labels[start : start + 50_000]
            z = rng.standard_normal((len(part), bits), dtype=np.float32)
            if arguments.codes == "clustered":
                z += part.astype(np.float32) @ centres
            packed[start : start + 50_000] = np.packbits(z > 0, axis=1)
        return packed, labels

    return (*side(arguments.queries), *side(arguments.items))


def histogram(arguments: argparse.Namespace) -> dict[str, Any]:
    from transhash.codes import Codes
    from transhash.evaluation import DEFINITIONS, DistanceHistogram, Scores

    queries, query_labels, items, labels = draw(arguments)
    query_codes, codes = Codes(queries, arguments.bits), Codes(items, arguments.bits)
    clock = Clock()
    table = DistanceHistogram.of(
        query_codes, codes, query_labels, labels, workers=arguments.workers
    )
    scores = Scores.of(table)
    measured = clock.stop()
    first = slice(0, arguments.loop_queries)
    sample = DistanceHistogram(table.items[first], table.relevant[first])
    return measured | {
        "map": scores.map,
        "map_of_sample": DEFINITIONS["DCMH"].score(sample),
        "best": scores.best_tie_order,
        "worst": scores.worst_tie_order,
        "queries": arguments.queries,
        "distinct": codes.distinct(),
    }


def argsort(arguments: argparse.Namespace) -> dict[str, Any]:
    """The loop of DCMH's calc_map, which DeepHash-pytorch and UCMFH share but for the cut."""
    import numpy as np

    queries, query_labels, items, labels = draw(arguments)

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
        places = np.flatnonzero(ranking) + 1.0
        total += float(np.mean(np.arange(1, len(places) + 1) / places))
    measured = clock.stop()
    count = arguments.loop_queries
    return measured | {"map": total / count, "queries": count}


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
    """Largest resident memory so far, in megabytes (Linux counts kilobytes, macOS bytes)."""
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


CONTENDERS = {"histogram": histogram, "argsort": argsort}

if __name__ == "__main__":
    main()
