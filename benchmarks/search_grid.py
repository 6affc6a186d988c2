"""Compare one-query search with FAISS flat, fresh and after removals, and the default ranking.

    python benchmarks/search_grid.py FOLDER                    # the grid, 1e6 items
    python benchmarks/search_grid.py FOLDER --threads 2        # two threads, elapsed time
    python benchmarks/search_grid.py FOLDER --default 1e7      # the default ranking only
    python benchmarks/search_grid.py FOLDER --default 1e6 --bits 128 256 --k 24 1000
    python benchmarks/search_grid.py --removals                # next to new indexes of the rest

FOLDER is a benchmark folder: "learned" are codes of THN for its images, resampled as in
benchmarks/search.py. Queries are like the items ("own"), texts of the benchmark ("other modality"),
or random ("far"). One thread, processor time, FAISS with use_heap=False in the same process, and
without the removed items; ratios above 1 are faster than FAISS. Mean ± deviation over the seeds.
With several threads, time of single queries and of a batch of all of them: FAISS divides only
batches among threads. --projections FILE keeps what was trained; --out FILE keeps ratios, and the
grid has all of them. --removals needs no FOLDER and compares with no FAISS.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from search_engines import Packed, add_noise, clustered, nearest_differences, resampled, uniform

from transhash.codes import Codes
from transhash.features.images import EfficientNetLite0
from transhash.hashers.thn import THN
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.weighted import BitWeights, query_weights
from transhash.training.split_data import build_split, load_benchmark_features

BITS, KS = (16, 32, 64, 128, 256), (1, 10, 100, 1000)
QUERIES = 20
REMOVED, BATCH = 75_000, 1_500  # nearest to the queries, and how many in one call
REMOVALS = (1_000, 5_000, 25_000, 75_000, 200_000)
Projected = tuple[np.ndarray, np.ndarray]  # of images and of texts
Clock = Callable[[], float]


def project(folder: Path, file: Path | None) -> dict[int, Projected]:
    """Return projections of a THN trained on the labels of the benchmark, by code length."""
    if file is not None and file.exists():
        arrays = np.load(file)
        return {bits: (arrays[f"images{bits}"], arrays[f"texts{bits}"]) for bits in BITS}
    benchmark, _ = load_benchmark_features(folder, EfficientNetLite0())
    data = build_split(benchmark, 0)
    projected, arrays = {}, {}
    for bits in BITS:
        hasher = THN(bits=bits, seed=0).fit(data.training)
        images = np.asarray(hasher.project_images(data.test.database_images.features))
        texts = np.asarray(hasher.project_texts(data.test.database_texts.features))
        projected[bits] = images, texts
        arrays |= {f"images{bits}": images, f"texts{bits}": texts}
    if file is not None:
        np.savez(file, **arrays)
    return projected


def cases(
    items: int, bits: int, learned: Projected, seed: int
) -> Iterator[tuple[str, Packed, dict[str, Packed]]]:
    """Yield kind of codes, codes, and queries by name."""
    far = uniform(QUERIES, bits, seed + 3)
    yield "uniform", uniform(items, bits, seed), {"far": far}
    own = clustered(QUERIES, bits, seed + 2, 0.02)
    yield "clustered", clustered(items, bits, seed, 0.02), {"own": own, "far": far}
    images, texts = learned
    codes = Codes.from_projections(images).packed
    chosen = np.random.default_rng(seed).permutation(len(texts))[:QUERIES]
    queries = {
        "own": resampled(codes, QUERIES, seed + 2),
        "other modality": Codes.from_projections(texts[chosen]).packed,
        "far": far,
    }
    yield "learned", resampled(codes, items, seed), queries


def flat_index(packed: Packed) -> Any:
    flat: Any = faiss.IndexBinaryFlat(packed.shape[1] * 8)
    flat.use_heap = False
    flat.add(packed)
    return flat


def measure_seconds(search: Callable[[slice], Any], batch: int, clock: Clock) -> float:
    """Return the time of all queries, each call the smallest of three turns."""
    turns = []
    for _ in range(3):
        times = []
        for q in range(0, QUERIES, batch):
            start = clock()
            search(slice(q, q + batch))
            times.append(clock() - start)
        turns.append(times)
    return float(np.min(turns, axis=0).sum())


def searcher(
    index: GroupedIndex, queries: Packed, k: int, weights: BitWeights | None
) -> Callable[[slice], None]:
    codes = Codes(queries, index.bits)

    def search(rows: slice) -> None:
        index.search(codes[rows], k, None if weights is None else weights[rows])

    return search


def compare(
    index: GroupedIndex,
    flat: Any,
    queries: Packed,
    k: int,
    weights: BitWeights | None = None,
    batch: int = 1,
) -> tuple[float, float]:
    """Return (FAISS time / our time, our ms per query)."""
    clock = time.process_time if index.threads == 1 else time.perf_counter

    ours = searcher(index, queries, k, weights)

    def theirs(rows: slice) -> None:
        flat.search(queries[rows], k)

    for search in (ours, theirs):
        search(slice(batch))  # warm up
    mine, other = (measure_seconds(search, batch, clock) for search in (ours, theirs))
    return other / mine, mine / QUERIES * 1e3


def order_by_distance(packed: Packed, queries: Packed, bits: int) -> np.ndarray:
    """Return rows by the distance to the nearest of the queries."""
    items, distance = Codes(packed, bits), np.full(len(packed), bits, np.uint16)
    for q in range(len(queries)):
        np.minimum(distance, Codes(queries[q : q + 1], bits).hamming(items)[0], out=distance)
    return np.argsort(distance, kind="stable")


def remove_nearest(index: GroupedIndex, packed: Packed, queries: Packed) -> Packed:
    """Remove the items nearest to the queries in small calls; return the other codes."""
    nearest = order_by_distance(packed, queries, index.bits)[:REMOVED]
    for start in range(0, REMOVED, BATCH):
        index.remove(nearest[start : start + BATCH])
    return np.delete(packed, nearest, axis=0)


def measure_grid(
    items: int,
    projected: dict[int, Projected],
    seeds: range,
    lengths: Sequence[int],
    threads: int,
) -> Iterator[dict[str, Any]]:
    """Yield a row per cell."""
    for seed, bits in product(seeds, lengths):
        for kind, packed, query_sets in cases(items, bits, projected[bits], 10 * seed):
            flat = flat_index(packed)
            for name, queries in query_sets.items():
                index = GroupedIndex(bits)
                index.threads = threads
                index.set_trial_queries(Codes(query_sets.get("other modality", queries), bits))
                index.add(np.arange(items), Codes(packed, bits))
                for state in ("fresh", "after"):
                    other = flat
                    if state == "after":
                        other = flat_index(remove_nearest(index, packed, queries))
                    for k, batch in product(KS, (1,) if threads == 1 else (1, QUERIES)):
                        ratio, ms = compare(index, other, queries, k, batch=batch)
                        yield {
                            "codes": kind,
                            "queries": name if batch == 1 else f"{name}, batch",
                            "bits": bits,
                            "state": state,
                            "items": items,
                            "seed": seed,
                            "k": k,
                            "ratio": ratio,
                            "ms": ms,
                        }


def print_grid(rows: list[dict[str, Any]]) -> None:
    lengths = sorted({row["bits"] for row in rows})
    ratios: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = row["codes"], row["queries"], row["bits"], row["state"], row["k"]
        ratios.setdefault(key, []).append(row["ratio"])
    mean = {key: float(np.mean(values)) for key, values in ratios.items()}
    print(
        f"{rows[0]['items']:,} items, at the k of {KS} that is closest to FAISS flat: fresh / "
        f"after removing the {REMOVED:,} items nearest to the queries\n"
    )
    print("| codes | queries | " + " | ".join(f"{bits} bits" for bits in lengths) + " |")
    print("|---" * (2 + len(lengths)) + "|")
    for kind, name in dict.fromkeys(key[:2] for key in mean):
        lowest = [
            [min(mean[kind, name, bits, state, k] for k in KS) for state in ("fresh", "after")]
            for bits in lengths
        ]
        pairs = [f"{fresh:.2f} / {after:.2f}" for fresh, after in lowest]
        print(f"| {kind} | {name} | " + " | ".join(pairs) + " |")
    print(f"\nclosest of {len(mean)} cells to FAISS flat:")
    for key in sorted(mean, key=lambda each: mean[each])[:3]:
        kind, name, bits, state, k = key
        print(
            f"- {kind} codes, {name} queries, {bits} bits, k = {k}, {state}: "
            f"{mean[key]:.2f} ± {np.std(ratios[key]):.2f}"
        )


def measure_default(
    items: int, projected: Projected, seeds: range, bits: int, ks: Sequence[int], threads: int
) -> None:
    """Measure weighted ranking with real queries of both modalities, and with random ones."""
    results: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    images, texts = projected
    for seed in seeds:
        codes = Codes.from_projections(images).packed
        packed = resampled(codes, items, seed)
        generator = np.random.default_rng(seed)
        index, flat = GroupedIndex(bits), flat_index(packed)
        index.threads = threads
        other = texts[generator.permutation(len(texts))]
        index.set_trial_queries(Codes.from_projections(other[-64:]))
        index.add(np.arange(items), Codes(packed, bits))
        own = images[generator.permutation(len(images))[:QUERIES]]
        # The items are noisy copies; so is this query, with the confidence of its projection.
        nothing = np.zeros((1, bits // 8), np.uint8)
        flips = add_noise(nothing, QUERIES, nearest_differences(codes), seed + 5)
        noisy = np.where(np.unpackbits(flips, axis=1) == 1, -own, own)
        far = generator.normal(size=own.shape)
        queries = {"own": own, "own, noisy": noisy, "other modality": other[:QUERIES], "far": far}
        for state in ("fresh", "after removals"):
            if state != "fresh":
                flat = flat_index(
                    remove_nearest(index, packed, Codes.from_projections(other[:QUERIES]).packed)
                )
            for (name, z), k in product(queries.items(), ks):
                query = Codes.from_projections(z)
                weights = query_weights(z, "weighted")
                row = compare(index, flat, query.packed, k, weights)
                results.setdefault((name, state, k), []).append(row)
    print(f"{items:,} learned codes of {bits} bits, weighted ranking, {threads} threads\n")
    print("| queries | items | k | ms per query | ratio to FAISS flat (Hamming) |")
    print("|---|---|---|---|---|")
    for (name, state, k), rows in results.items():
        ratio, ms = np.array(rows).T
        ms_cell, ratio_cell = (f"{v.mean():.2f} ± {v.std():.2f}" for v in (ms, ratio))
        print(f"| {name} | {state} | {k} | {ms_cell} | {ratio_cell} |", flush=True)


def measure_removals(items: int, seeds: range) -> None:
    """Compare clustered codes of 128 bits after removals with a new index of the other items."""
    bits, ratios = 128, dict[tuple[str, int], list[float]]()
    counts = [count for count in REMOVALS if count < items]
    for seed in seeds:
        packed = clustered(items, bits, 10 * seed, 0.02)
        queries = clustered(QUERIES, bits, 10 * seed + 2, 0.02)
        weights = np.random.default_rng(seed).integers(1, 60_000, (QUERIES, bits))
        nearest = order_by_distance(packed, queries, bits)
        index = GroupedIndex(bits)
        index.threads, done = 1, 0
        index.add(np.arange(items), Codes(packed, bits))
        for count in counts:
            for start in range(done, count, BATCH):
                index.remove(nearest[start : min(start + BATCH, count)])
            done = count
            new = GroupedIndex(bits)
            new.threads = 1
            new.add(*index.export())
            for name, k in product(("hamming", "weighted"), (1, 24, 1000)):
                used = weights if name == "weighted" else None
                ours, theirs = (
                    measure_seconds(searcher(each, queries, k, used), 1, time.process_time)
                    for each in (index, new)
                )
                ratios.setdefault((f"{name}, k = {k}", count), []).append(ours / theirs)
    print(f"{items:,} clustered codes of {bits} bits: time / time of a new index of the rest\n")
    print("| search | " + " | ".join(f"{count:,} removed" for count in counts) + " |")
    print("|---" * (1 + len(counts)) + "|")
    for name in dict.fromkeys(key[0] for key in ratios):
        cells = [ratios[name, count] for count in counts]
        line = " | ".join(f"{np.mean(cell):.2f} ± {np.std(cell):.2f}" for cell in cells)
        print(f"| {name} | {line} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--removals", action="store_true", help="measure only these")
    parser.add_argument("--items", type=float, default=1e6)
    parser.add_argument("--default", type=float, help="items; measure only the default ranking")
    parser.add_argument("--bits", type=int, nargs="+", help="code lengths; only these")
    parser.add_argument("--k", type=int, nargs="+", default=[24], help="of the default ranking")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--projections", type=Path, help=".npz file")
    parser.add_argument("--out", type=Path, help=".jsonl file to append to")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.removals:
        measure_removals(int(options.items), seeds)
        return
    if options.folder is None:
        parser.error("FOLDER is missing")
    faiss.omp_set_num_threads(options.threads)
    projected = project(options.folder, options.projections)
    if not options.default:
        rows = []
        lengths = options.bits or BITS
        for row in measure_grid(int(options.items), projected, seeds, lengths, options.threads):
            rows.append(row)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        if options.out:
            rows = [json.loads(line) for line in options.out.open()]
        print_grid(rows)
        return
    for bits in options.bits or [128]:
        measure_default(
            int(options.default), projected[bits], seeds, bits, options.k, options.threads
        )


if __name__ == "__main__":
    main()
