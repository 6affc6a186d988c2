"""How long a typed sentence takes to find pictures among a million, from words to the result list.

    python benchmarks/text_latency.py                                   # words, 128 bits
    python benchmarks/text_latency.py --text-features all-MiniLM-L6-v2/  # a sentence model's folder
    python benchmarks/text_latency.py --codes uniform --bits 64

THN learned from drawn things encodes the sentences; `SearchEngine.similar_to_text` answers them one
after the other from a `grouped:` index on disk and its catalog, k = 24, as the page does. Codes of
the items: "learned", those of drawn pictures with each bit flipped as often as it differs between
nearest codes, or "uniform", random ones, the hard case, since nothing is near anything.
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
from transhash.training.fit import InputPaths, fit_files, read_fit_data

_BLOCK = 100_000
_WORDS = ("small", "blue", "old", "by the door", "in the rain", "at night", "with sails", "asleep")


def million(learned: Codes, items: int, kind: str) -> Iterator[CodeShard]:
    """Codes of `items` pictures that nobody has."""
    rng = np.random.default_rng(0)
    distances = learned.hamming(learned).astype(np.int64)
    np.fill_diagonal(distances, learned.bits)
    signs = learned.signs()
    differs = (signs != signs[distances.argmin(axis=1)]).mean(axis=0)  # by bit
    for start in range(0, items, _BLOCK):
        count = min(_BLOCK, items - start)
        if kind == "uniform":
            packed = rng.integers(0, 256, (count, learned.bits // 8), dtype=np.uint8)
        else:
            flips = np.packbits(rng.random((count, learned.bits)) < differs, axis=1)
            packed = learned.packed[rng.integers(0, len(learned), count)] ^ flips
        names = [f"picture-{start + i}" for i in range(count)]
        yield CodeShard("nowhere", names, names, Codes(packed, learned.bits))


def sentences(count: int) -> list[str]:
    rng = random.Random(0)
    both = [(rng.choice(CLASSES), rng.choice(_WORDS), rng.choice(CLASSES)) for _ in range(count)]
    return [f"a {one} {how}, and a {other}" for one, how, other in both]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=128)
    parser.add_argument("--codes", choices=["learned", "uniform"], default="learned")
    parser.add_argument("--text-features", help="as `transhash fit` takes them")
    parser.add_argument("--queries", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        data, run = make_synthetic(Path(name) / "drawn", per_class=20), Path(name) / "run"
        sources = InputPaths(
            auxiliary=data / "auxiliary.tsv", images=data / "images.tsv", texts=data / "texts.tsv"
        )
        hasher = THN(bits=arguments.bits, steps=100)
        features = image_features("efficientnet-lite0")
        encoder, report = fit_files(
            hasher, "THN", read_fit_data(sources), run, features, texts=arguments.text_features
        )
        learned, _, _ = encoder.encode_images(read_images(data / "images.tsv"))
        engine = SearchEngine.open(run, writable=True)
        engine.add_codes("images", million(learned, arguments.items, arguments.codes))
        engine.close()
        engine = SearchEngine.open(run)
        stored = engine.indexes["images"].export()[1].distinct()
        print(
            f"{len(engine.indexes['images']):,} pictures, {arguments.codes} codes of "
            f"{arguments.bits} bits ({stored:,} distinct), texts read as "
            f"{report['text_features']}, {len(os.sched_getaffinity(0))} cores"
        )
        asked = sentences(arguments.queries)
        for mode in RANKING_MODES:
            took = []
            for text in asked[:5] + asked:  # five to warm up
                start = time.perf_counter(), time.process_time()
                hits = engine.similar_to_text(text, 24, "images", mode)
                took.append((time.perf_counter() - start[0], time.process_time() - start[1]))
                assert len(hits) == 24
            (p50, cpu50), (p95, cpu95) = np.percentile(1000 * np.array(took[5:]), [50, 95], axis=0)
            print(
                f"ranking {mode:<8} p50 {p50:6.2f} ms   p95 {p95:6.2f} ms   "
                f"of processor {cpu50:.2f} and {cpu95:.2f} ms",
                flush=True,
            )
        engine.close()


if __name__ == "__main__":
    main()
