"""Times exact Hamming search: ours, FAISS, USearch and NumPy in one process, interleaved.

    python benchmarks/search.py --quick          a minute, 1e6 items
    python benchmarks/search.py                  the full grid: hours on two cores
    python benchmarks/search.py --must           ours and FAISS flat alone
    python benchmarks/search.py --codes codes.npy   also codes of a trained model, resampled
    python benchmarks/search.py --growth --sizes 1e6,1e7,1e8 --bits 32   cost against size
    python benchmarks/search_report.py OUT.jsonl    tables and figure of what --out has kept

Times a query: of the processor with one thread, of the clock with several; the smallest of the
repeats, engines taking turns, so that a busy machine slows all alike.
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
from search_engines import Engine, Packed, clustered, engines, resampled, uniform
from search_report import verdict

from transhash.codes import Codes
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.kernel import core_count, kernel_status

CAP = 0.7  # seconds one measurement of a slow engine may take; then fewer queries are asked


def bandwidth() -> float:
    """GB/s of a plain sum over 400 MB, the best of ten."""
    data = np.ones(50_000_000, np.uint64)
    best = min(_cpu(data.sum)[0] for _ in range(10))
    return data.nbytes / best / 1e9


def _cpu(work: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.process_time() - cpu, time.perf_counter() - wall, result


def measure(
    cell: dict[str, Any], made: list[Engine], queries: Packed, repeats: int
) -> list[dict[str, Any]]:
    batch, k, threads = cell["batch"], cell["k"], cell["threads"]
    asked = {engine.name: batch for engine in made}
    times: dict[str, list[tuple[float, float]]] = {engine.name: [] for engine in made}
    recall = dict.fromkeys(asked, 1.0)
    loops = dict(asked)
    for engine in made:  # warm up, then see how much fits into one turn
        warm: list[float] = []
        while len(warm) < 4 or (len(warm) < 100 and sum(warm) < CAP / 2):
            some = queries[len(warm) : len(warm) + 1]
            warm.append(_cpu(partial(engine.search, some, k, threads))[0])
        cpu = min(warm)
        asked[engine.name] = max(1, min(batch, int(CAP / max(cpu, 1e-6))))
        # A fast engine answers call after call, each with other queries: a turn takes 10 ms.
        loops[engine.name] = max(1, min(50, int(0.01 / (cpu * asked[engine.name]))))
    truth = made[0].search(queries[:64], k, threads)[0]
    for engine in made[1:]:
        n = 64 if not engine.exact else min(asked[engine.name], 64)
        found = engine.search(queries[:n], k, threads)[0]
        if engine.exact and not np.array_equal(np.sort(found), truth[:n]):
            raise SystemExit(f"{engine.name} disagrees with ours in {cell}")
        recall[engine.name] = float(np.mean((found >= 0) & (found <= truth[:n, -1:])))
    for turn in range(repeats):
        for engine in made:
            n, calls = asked[engine.name], loops[engine.name]
            starts = [(turn * calls + call) * n % (len(queries) - n + 1) for call in range(calls)]

            def work(engine: Engine = engine, n: int = n, starts: list[int] = starts) -> None:
                for start in starts:
                    engine.search(queries[start : start + n], k, threads)

            cpu, wall, _ = _cpu(work)
            times[engine.name].append((cpu / n / calls, wall / n / calls))
    rows = []
    for engine in made:
        cpu, wall = (min(values) * 1e3 for values in zip(*times[engine.name]))
        rows.append(
            cell
            | {"engine": engine.name, "ms": cpu if threads == 1 else wall}
            | {"cpu_ms": cpu, "wall_ms": wall, "asked": asked[engine.name]}
            | {"recall": recall[engine.name], "build_s": engine.build_s}
            | {"bytes_an_item": engine.bytes_an_item}
        )
    return rows


def cells(args: argparse.Namespace) -> Iterator[tuple[str, int, int, Packed, Packed]]:
    """(kind, items, bits, codes, queries)."""
    for count in args.sizes:
        for bits in args.bits:
            for kind in args.kinds:
                drawn = [
                    uniform(n, bits, seed)
                    if kind == "uniform"
                    else clustered(n, bits, seed, args.flip)
                    for n, seed in ((count, 1), (2000, 2))
                ]
                yield kind, count, bits, drawn[0], drawn[1]
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


def disk(count: int, bits: int = 64) -> dict[str, Any]:
    """Opening an index of `count` items from disk, and its first search."""
    folder = Path(tempfile.mkdtemp(prefix="transhash-"))
    try:
        with_index = GroupedIndex.open(folder / "index", bits)
        with_index.add(np.arange(count), Codes(uniform(count, bits, 1), bits))
        memory = with_index.nbytes / count
        with_index.close()
        opened = []
        for _ in range(5):
            start = time.perf_counter()
            index = GroupedIndex.open(folder / "index", None)
            opened.append(time.perf_counter() - start)
            index.close()
        return {"items": count, "bits": bits, "open_ms": min(opened) * 1e3, "bytes_an_item": memory}
    finally:
        shutil.rmtree(folder)


def growth(sizes: list[int], bits: int, flip: float) -> None:
    """Cost of a query on clustered codes as the index grows; ours alone, so that 1e8 fits."""
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

        cost = min(_cpu(work)[0] for _ in range(3)) / 200 * 1e6
        first = first or cost
        print(
            f"growth  {count:.0e} items {bits} bits: {cost:8.1f} us a query (x{cost / first:.2f}), "
            f"{rows} distinct codes, {index.nbytes / count:.2f} B/item",
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
    parser.add_argument("--codes", type=Path, nargs="*", default=[], help="packed codes, .npy")
    parser.add_argument("--flip", type=float, default=0.02, help="noise of clustered codes")
    parser.add_argument("--threads", type=numbers, default=[1], help="1,0: one, then all cores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--graphs-up-to", type=lambda t: int(float(t)), default=10**6)
    parser.add_argument("--must", action="store_true", help="ours and FAISS flat only")
    parser.add_argument("--quick", action="store_true", help="1e6 items, few cells")
    parser.add_argument("--growth", action="store_true", help="only: cost against --sizes")
    parser.add_argument("--out", type=Path, help="append results as JSON lines")
    args = parser.parse_args()
    args.threads = list(dict.fromkeys(threads or core_count() for threads in args.threads))
    if args.quick:
        args.sizes, args.bits, args.batches, args.k = [10**6], [32, 64], [1, 64], [10, 100]
        args.graphs_up_to = 0  # building a graph of 1e6 codes takes minutes
    print(kernel_status())
    if args.growth:
        for bits in args.bits:
            growth(args.sizes, bits, args.flip)
        return
    speed = bandwidth()
    print(f"read bandwidth {speed:.1f} GB/s (NumPy's sum, one thread)")
    results: list[dict[str, Any]] = []
    for kind, count, bits, packed, queries in cells(args):
        made = list(engines(packed, args))
        for threads, k, batch in product(args.threads, args.k, args.batches):
            cell = {"kind": kind, "items": count, "bits": bits, "batch_size": batch, "k": k}
            cell |= {"threads": threads, "bandwidth": speed}
            rows = measure(cell, made, queries, args.repeats)
            results += rows
            flat = next(row["ms"] for row in rows if row["engine"] == "faiss flat")
            for row in rows:
                print(
                    f"{kind:10} {count:.0e} {bits:3} bits  threads {threads} batch {batch:4} "
                    f"k {k:4}  {row['engine']:16} {row['ms']:9.4f} ms  x{flat / row['ms']:8.2f}  "
                    f"recall {row['recall']:.3f}  build {row['build_s']:6.1f} s  "
                    f"{row['bytes_an_item']:6.1f} B/item",
                    flush=True,
                )
            if args.out:
                with args.out.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
    on_disk = disk(max(args.sizes))
    print(verdict(results, on_disk))


if __name__ == "__main__":
    main()
