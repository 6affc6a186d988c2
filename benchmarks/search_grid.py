"""Compare one-query search with FAISS flat, fresh and after removals, and the default ranking.

    python benchmarks/search_grid.py FOLDER                    # the grid, 1e6 items
    python benchmarks/search_grid.py FOLDER --default 1e7      # the default ranking only

FOLDER is a benchmark folder: "learned" are codes of THN for its images, resampled as in
benchmarks/search.py. Queries are like the items ("own"), texts of the benchmark ("other modality"),
or random ("far"). One thread, processor time, FAISS with use_heap=False in the same process, and
without the removed items; ratios above 1 are faster than FAISS. Mean ± deviation over the seeds.
--projections FILE keeps what was trained; --out FILE keeps ratios, and the grid has all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
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
Projected = tuple[np.ndarray, np.ndarray]  # of images and of texts


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


def cpu_seconds(search: Callable[[int], Any]) -> float:
    """Return the processor time of all queries, each the smallest of three turns."""
    turns = []
    for _ in range(3):
        times = []
        for q in range(QUERIES):
            start = time.process_time()
            search(q)
            times.append(time.process_time() - start)
        turns.append(times)
    return float(np.min(turns, axis=0).sum())


def compare(
    index: GroupedIndex, flat: Any, queries: Packed, k: int, weights: BitWeights | None = None
) -> tuple[float, float]:
    """Return (FAISS time / our time, our ms per query)."""
    codes = Codes(queries, index.bits)

    def ours(q: int) -> None:
        index.search(codes[q : q + 1], k, None if weights is None else weights[q : q + 1])

    def theirs(q: int) -> None:
        flat.search(queries[q : q + 1], k)

    for search in (ours, theirs):
        search(0)  # warm up
    mine, other = cpu_seconds(ours), cpu_seconds(theirs)
    return other / mine, mine / QUERIES * 1e3


def remove_nearest(index: GroupedIndex, packed: Packed, queries: Packed) -> Packed:
    """Remove the items nearest to the queries in small calls; return the other codes."""
    items = Codes(packed, index.bits)
    distance = np.full(len(packed), index.bits, np.uint16)
    for q in range(len(queries)):
        np.minimum(distance, Codes(queries[q : q + 1], index.bits).hamming(items)[0], out=distance)
    nearest = np.argsort(distance, kind="stable")[:REMOVED]
    for start in range(0, REMOVED, BATCH):
        index.remove(nearest[start : start + BATCH])
    return np.delete(packed, nearest, axis=0)


def measure_grid(
    items: int, projected: dict[int, Projected], seeds: range
) -> Iterator[dict[str, Any]]:
    """Yield a row per cell."""
    for seed, bits in product(seeds, BITS):
        for kind, packed, query_sets in cases(items, bits, projected[bits], 10 * seed):
            flat = flat_index(packed)
            for name, queries in query_sets.items():
                index = GroupedIndex(bits)
                index.threads = 1
                index.set_trial_queries(Codes(query_sets.get("other modality", queries), bits))
                index.add(np.arange(items), Codes(packed, bits))
                for state in ("fresh", "after"):
                    other = flat
                    if state == "after":
                        other = flat_index(remove_nearest(index, packed, queries))
                    for k in KS:
                        ratio, ms = compare(index, other, queries, k)
                        cell = {"codes": kind, "queries": name, "bits": bits, "state": state}
                        yield cell | {
                            "items": items,
                            "seed": seed,
                            "k": k,
                            "ratio": ratio,
                            "ms": ms,
                        }


def print_grid(rows: list[dict[str, Any]]) -> None:
    ratios: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = row["codes"], row["queries"], row["bits"], row["state"], row["k"]
        ratios.setdefault(key, []).append(row["ratio"])
    mean = {key: float(np.mean(values)) for key, values in ratios.items()}
    print(
        f"{rows[0]['items']:,} items, at the k of {KS} that is closest to FAISS flat: fresh / "
        f"after removing the {REMOVED:,} items nearest to the queries\n"
    )
    print("| codes | queries | " + " | ".join(f"{bits} bits" for bits in BITS) + " |")
    print("|---" * (2 + len(BITS)) + "|")
    for kind, name in dict.fromkeys(key[:2] for key in mean):
        lowest = [
            [min(mean[kind, name, bits, state, k] for k in KS) for state in ("fresh", "after")]
            for bits in BITS
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


def measure_default(items: int, projected: Projected, seeds: int, bits: int = 128) -> None:
    """Measure weighted ranking, k = 24, with real queries of both modalities."""
    results: dict[str, list[tuple[float, float]]] = {}
    images, texts = projected
    for seed in range(seeds):
        codes = Codes.from_projections(images).packed
        packed = resampled(codes, items, seed)
        generator = np.random.default_rng(seed)
        index, flat = GroupedIndex(bits), flat_index(packed)
        index.threads = 1
        other = texts[generator.permutation(len(texts))]
        index.set_trial_queries(Codes.from_projections(other[-64:]))
        index.add(np.arange(items), Codes(packed, bits))
        own = images[generator.permutation(len(images))[:QUERIES]]
        # The items are noisy copies; so is this query, with the confidence of its projection.
        nothing = np.zeros((1, bits // 8), np.uint8)
        flips = add_noise(nothing, QUERIES, nearest_differences(codes), seed + 5)
        noisy = np.where(np.unpackbits(flips, axis=1) == 1, -own, own)
        for name, z in (("own", own), ("own, noisy", noisy), ("other modality", other[:QUERIES])):
            query = Codes.from_projections(z)
            weights = query_weights(z, "weighted")
            results.setdefault(name, []).append(compare(index, flat, query.packed, 24, weights))
    print(f"{items:,} learned codes of {bits} bits, weighted ranking, k = 24\n")
    print("| queries | ms per query | ratio to FAISS flat (Hamming) |\n|---|---|---|")
    for name, rows in results.items():
        ratio, ms = np.array(rows).T
        ms_cell, ratio_cell = (f"{v.mean():.2f} ± {v.std():.2f}" for v in (ms, ratio))
        print(f"| {name} | {ms_cell} | {ratio_cell} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--items", type=float, default=1e6)
    parser.add_argument("--default", type=float, help="items; measure only the default ranking")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--projections", type=Path, help=".npz file")
    parser.add_argument("--out", type=Path, help=".jsonl file to append to")
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    projected = project(options.folder, options.projections)
    if not options.default:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        rows = []
        for row in measure_grid(int(options.items), projected, seeds):
            rows.append(row)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        if options.out:
            rows = [json.loads(line) for line in options.out.open()]
        print_grid(rows)
        print()
    measure_default(int(options.default or options.items), projected[128], options.seeds)


if __name__ == "__main__":
    main()
