"""Measure the latency of text queries among a million images, from text to results.

    python benchmarks/text_latency.py                                   # words, 128 bits
    python benchmarks/text_latency.py --text-features all-MiniLM-L6-v2/  # a model folder
    python benchmarks/text_latency.py --codes uniform --bits 64

A THN model of the synthetic data set encodes the queries, and `SearchEngine.similar_to_text`
searches a `grouped:` index on disk with k = 24, like the search page. Codes of the items are
"learned", those of synthetic images with bits flipped as often as between nearest codes, or
"uniform", random ones, which is the hardest case.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transhash.codes import Codes
from transhash.data.manifest import read_images
from transhash.datasets.synthetic import CLASSES, make_synthetic
from transhash.features.images import image_features
from transhash.hashers.thn import THN
from transhash.index.weighted import RANKING_MODES
from transhash.model.shards import CodeShard
from transhash.search.engine import SearchEngine
from transhash.training.fit import Fit
from transhash.training.fit_data import read_fit_data

_CHUNK_ROWS = 100_000
_WORDS = ("small", "blue", "old", "by the door", "in the rain", "at night", "with sails", "asleep")


def make_codes(learned: Codes, items: int, kind: str) -> Iterator[CodeShard]:
    rng = np.random.default_rng(0)
    distances = learned.hamming(learned).astype(np.int64)
    np.fill_diagonal(distances, learned.bits)
    signs = learned.signs()
    differs = (signs != signs[distances.argmin(axis=1)]).mean(axis=0)  # by bit
    for start in range(0, items, _CHUNK_ROWS):
        count = min(_CHUNK_ROWS, items - start)
        if kind == "uniform":
            packed = rng.integers(0, 256, (count, learned.bits // 8), dtype=np.uint8)
        else:
            flips = np.packbits(rng.random((count, learned.bits)) < differs, axis=1)
            packed = learned.packed[rng.integers(0, len(learned), count)] ^ flips
        names = [f"image-{start + i}" for i in range(count)]
        yield CodeShard("generated", names, names, Codes(packed, learned.bits))


def make_queries(count: int) -> list[str]:
    rng = random.Random(0)
    words = [(rng.choice(CLASSES), rng.choice(_WORDS), rng.choice(CLASSES)) for _ in range(count)]
    return [f"a {a} {modifier}, and a {b}" for a, modifier, b in words]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=128)
    parser.add_argument("--codes", choices=["learned", "uniform"], default="learned")
    parser.add_argument("--text-features", help="as for transhash fit")
    parser.add_argument("--queries", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        data, run = make_synthetic(Path(name) / "synthetic", per_class=20), Path(name) / "run"
        inputs = read_fit_data(data / "auxiliary.tsv", data / "images.tsv", data / "texts.tsv")
        hasher = THN(bits=options.bits, steps=100)
        features = image_features("efficientnet-lite0")
        fitted = Fit(hasher, "THN", run, features, options.text_features).run_files(inputs)
        encoder, report = fitted.encoder, fitted.report
        learned, _, _ = encoder.encode_images(read_images(data / "images.tsv"))
        engine = SearchEngine.open(run, writable=True)
        engine.writer.add_codes("images", make_codes(learned, options.items, options.codes))
        engine.close()
        engine = SearchEngine.open(run)
        stored = engine.indexes["images"].export()[1].distinct()
        print(
            f"{len(engine.indexes['images']):,} images, {options.codes} codes of "
            f"{options.bits} bits ({stored:,} distinct), text features "
            f"{report['text_features']}, {len(os.sched_getaffinity(0))} cores"
        )
        queries = make_queries(options.queries)
        for mode in RANKING_MODES:
            seconds = []
            for text in queries[:5] + queries:  # five to warm up
                start = time.perf_counter(), time.process_time()
                hits = engine.similar_to_text(text, 24, "images", mode)
                seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
                assert len(hits) == 24
            (p50, cpu50), (p95, cpu95) = np.percentile(
                1000 * np.array(seconds[5:]), [50, 95], axis=0
            )
            print(
                f"ranking {mode:<8} p50 {p50:6.2f} ms   p95 {p95:6.2f} ms   "
                f"processor time {cpu50:.2f} and {cpu95:.2f} ms",
                flush=True,
            )
        engine.close()


if __name__ == "__main__":
    main()
