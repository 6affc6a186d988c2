"""Compare the speed of exact Hamming search: transhash, FAISS, USearch and NumPy.

    python benchmarks/search.py --quick          a minute, 1e6 items
    python benchmarks/search.py                  the full grid: hours on two cores
    python benchmarks/search.py --required       only transhash and FAISS flat
    python benchmarks/search.py --codes codes.npy   add resampled codes of a trained model
    python benchmarks/search.py --growth --sizes 1e6,1e7,1e8 --bits 32   cost against size
    python benchmarks/search_report.py OUT.jsonl    tables and figure of the results in --out

Time per query: processor time with one thread, wall time with several, the smallest of the
repeats. Libraries take turns in one process, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from search_engines import Engine, Packed, build_engines, clustered, resampled, uniform
from search_report import check_targets

from transhash.codes import Codes
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.kernel import kernel_status
from transhash.threads import cpu_count

MAX_SECONDS = 0.7  # of one measurement; a slow engine gets fewer queries


def bandwidth() -> float:
    """Return GB/s of a sum over 400 MB, the best of ten."""
    data = np.ones(50_000_000, np.uint64)
    best = min(_timed(data.sum)[0] for _ in range(10))
    return data.nbytes / best / 1e9


def _timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.process_time() - cpu, time.perf_counter() - wall, result


def measure(
    cell: dict[str, Any], engines: list[Engine], queries: Packed, repeats: int
) -> list[dict[str, Any]]:
    batch, k, threads = cell["batch"], cell["k"], cell["threads"]
    sizes = {engine.name: batch for engine in engines}
    times: dict[str, list[tuple[float, float]]] = {engine.name: [] for engine in engines}
    recall = dict.fromkeys(sizes, 1.0)
    loops = dict(sizes)
    for engine in engines:  # warm up, then choose the work of one turn
        warm: list[float] = []
        while len(warm) < 4 or (len(warm) < 100 and sum(warm) < MAX_SECONDS / 2):
            query = queries[len(warm) : len(warm) + 1]
            warm.append(_timed(partial(engine.search, query, k, threads))[0])
        cpu = min(warm)
        sizes[engine.name] = max(1, min(batch, int(MAX_SECONDS / max(cpu, 1e-6))))
        # A fast engine gets several calls with different queries: a turn takes 10 ms.
        loops[engine.name] = max(1, min(50, int(0.01 / (cpu * sizes[engine.name]))))
    exact = engines[0].search(queries[:64], k, threads)[0]
    for engine in engines[1:]:
        n = 64 if not engine.exact else min(sizes[engine.name], 64)
        distances = engine.search(queries[:n], k, threads)[0]
        if engine.exact and not np.array_equal(np.sort(distances), exact[:n]):
            raise SystemExit(f"{engine.name} gives other results in {cell}. Report this as a bug.")
        hits = (distances >= 0) & (distances <= exact[:n, -1:])
        recall[engine.name] = float(np.mean(hits))
    for turn in range(repeats):
        for engine in engines:
            n, calls = sizes[engine.name], loops[engine.name]
            starts = [(turn * calls + call) * n % (len(queries) - n + 1) for call in range(calls)]

            def work(engine: Engine = engine, n: int = n, starts: list[int] = starts) -> None:
                for start in starts:
                    engine.search(queries[start : start + n], k, threads)

            cpu, wall, _ = _timed(work)
            times[engine.name].append((cpu / n / calls, wall / n / calls))
    rows = []
    for engine in engines:
        cpu, wall = (min(values) * 1e3 for values in zip(*times[engine.name]))
        rows.append(
            cell
            | {"engine": engine.name, "ms": cpu if threads == 1 else wall}
            | {"cpu_ms": cpu, "wall_ms": wall, "queries": sizes[engine.name]}
            | {"recall": recall[engine.name], "build_s": engine.build_s}
            | {"bytes_per_item": engine.bytes_per_item}
        )
    return rows


def cells(args: argparse.Namespace) -> Iterator[tuple[str, int, int, Packed, Packed]]:
    """Yield kind, number of items, bits, codes and queries."""
    for count in args.sizes:
        for bits in args.bits:
            for kind in args.kinds:
                packed = [
                    uniform(n, bits, seed)
                    if kind == "uniform"
                    else clustered(n, bits, seed, args.flip)
                    for n, seed in ((count, 1), (2000, 2))
                ]
                yield kind, count, bits, packed[0], packed[1]
        for path in args.codes:
            codes = np.load(path)
            bits = codes.shape[1] * 8
            yield (
                f"learned:{path.stem}",
                count,
                bits,
                resampled(codes, count, 1),
                resampled(codes, 2000, 2),
            )


def measure_disk(count: int, bits: int = 64) -> dict[str, Any]:
    """Measure opening an index from disk."""
    folder = Path(tempfile.mkdtemp(prefix="transhash-"))
    try:
        index = GroupedIndex.open(folder / "index", bits)
        index.add(np.arange(count), Codes(uniform(count, bits, 1), bits))
        memory = index.nbytes / count
        index.close()
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            index = GroupedIndex.open(folder / "index", None)
            seconds.append(time.perf_counter() - start)
            index.close()
        milliseconds = min(seconds) * 1e3
        return {
            "items": count, "bits": bits, "open_ms": milliseconds, "bytes_per_item": memory
        }  # fmt: skip
    finally:
        shutil.rmtree(folder)


def measure_growth(sizes: list[int], bits: int, flip: float) -> None:
    """Print the cost of a query on clustered codes by size; only of transhash, so that 1e8 fit."""
    queries = clustered(2000, bits, 2, flip)
    first = 0.0
    for count in sizes:
        index = GroupedIndex(bits)
        index.threads = 1
        index.add(np.arange(count), Codes(clustered(count, bits, 1, flip), bits))
        rows = len(index._state.parts[0].segment.words)

        def work(index: GroupedIndex = index) -> None:
            for q in range(200):
                index.search(Codes(queries[q : q + 1], bits), 100)

        cost = min(_timed(work)[0] for _ in range(3)) / 200 * 1e6
        first = first or cost
        print(
            f"growth  {count:.0e} items {bits} bits: {cost:8.1f} us per query "
            f"(x{cost / first:.2f}), {rows} distinct codes, {index.nbytes / count:.2f} B/item",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    numbers = lambda text: [int(float(part)) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--sizes", type=numbers, default=[10**6, 10**7])
    parser.add_argument("--bits", type=numbers, default=[16, 32, 64, 128, 256])
    parser.add_argument("--batches", type=numbers, default=[1, 64, 1000])
    parser.add_argument("--k", type=numbers, default=[10, 100, 1000])
    parser.add_argument(
        "--kinds", type=lambda text: text.split(","), default=["uniform", "clustered"]
    )
    parser.add_argument(
        "--codes", type=Path, nargs="*", default=[], help=".npy files of packed codes"
    )
    parser.add_argument("--flip", type=float, default=0.02, help="noise of clustered codes")
    parser.add_argument("--threads", type=numbers, default=[1], help="1,0: one, then all cores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--graphs-up-to", type=lambda t: int(float(t)), default=10**6)
    parser.add_argument("--required", action="store_true", help="only transhash and FAISS flat")
    parser.add_argument("--quick", action="store_true", help="1e6 items, few cells")
    parser.add_argument(
        "--growth", action="store_true", help="only measure the cost against --sizes"
    )
    parser.add_argument("--out", type=Path, help="append results as JSON lines")
    args = parser.parse_args()
    args.threads = list(dict.fromkeys(threads or cpu_count() for threads in args.threads))
    if args.quick:
        args.sizes, args.bits, args.batches, args.k = [10**6], [32, 64], [1, 64], [10, 100]
        args.graphs_up_to = 0  # building a graph of 1e6 codes takes minutes
    print(kernel_status())
    if args.growth:
        for bits in args.bits:
            measure_growth(args.sizes, bits, args.flip)
        return
    speed = bandwidth()
    print(f"read bandwidth {speed:.1f} GB/s (sum in NumPy, one thread)")
    results: list[dict[str, Any]] = []
    for kind, count, bits, packed, queries in cells(args):
        engines = list(build_engines(packed, args))
        for threads, k, batch in product(args.threads, args.k, args.batches):
            cell = {"kind": kind, "items": count, "bits": bits, "batch": batch, "k": k}
            cell |= {"threads": threads, "bandwidth": speed}
            rows = measure(cell, engines, queries, args.repeats)
            results += rows
            flat = next(row["ms"] for row in rows if row["engine"] == "faiss flat")
            for row in rows:
                print(
                    f"{kind:10} {count:.0e} {bits:3} bits  threads {threads} batch {batch:4} "
                    f"k {k:4}  {row['engine']:16} {row['ms']:9.4f} ms  x{flat / row['ms']:8.2f}  "
                    f"recall {row['recall']:.3f}  build {row['build_s']:6.1f} s  "
                    f"{row['bytes_per_item']:6.1f} B/item",
                    flush=True,
                )
            if args.out:
                with args.out.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
    print(check_targets(results, measure_disk(max(args.sizes))))


if __name__ == "__main__":
    main()
