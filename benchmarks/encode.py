"""Items a second of encoding, beside the backbone's bare forward pass on the same machine.

    python benchmarks/encode.py RUN PICTURES [--device cuda] [--items 500]

The bare pass runs on pixels that are already decoded, in batches of 32, before and after the
encoding; the better of the two counts, so that a busy machine does not flatter the ratio.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from transhash.data.collection import Collection
from transhash.data.manifest import read_images
from transhash.encoder import Encoder
from transhash.encoding import encode_shards
from transhash.features.decode import decode


def bare_rate(encoder: Encoder, seconds: float = 8.0) -> float:
    features = encoder.image_features
    assert features is not None, "the run must read images, not precomputed features"
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (32, features.size, features.size, 3), dtype=np.uint8)
    features.of_pixels(pixels)  # loads the network
    start, batches = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        features.of_pixels(pixels)
        batches += 1
    return 32 * batches / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    encoder = Encoder.load(options.run, options.device)
    images = read_images(options.pictures)
    rows = np.resize(np.arange(len(images)), options.items)  # repeated where there are too few
    many: Collection[Path] = Collection(
        [str(i) for i in range(len(rows))], [images.items[int(row)] for row in rows]
    )
    size = encoder.image_features.size if encoder.image_features else 224
    start = time.perf_counter()
    for path in many.items[:64]:
        decode(path, size)
    decoded = 64 / (time.perf_counter() - start)
    bare = bare_rate(encoder)
    with tempfile.TemporaryDirectory() as folder:
        start, cpu = time.perf_counter(), time.process_time()
        outcome = encode_shards(
            options.run, many, "images", folder, device=options.device, workers=options.workers
        )
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        kept = sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))
    bare = max(bare, bare_rate(encoder))
    texts = [f"a note about thing {i} in the garden" for i in range(20_000)]
    start = time.perf_counter()
    encoder.encode_texts(texts)
    report = {
        "images_per_second": round(outcome.codes / seconds, 1),
        "bare_forward_per_second": round(bare, 1),
        "share_of_bare": round(outcome.codes / seconds / bare, 3),
        "decodes_per_second_one_core": round(decoded, 1),
        "cpu_seconds_of_this_process": round(cpu, 1),
        "texts_per_second": round(len(texts) / (time.perf_counter() - start)),
        "bytes_per_item_on_disk": round(kept / max(outcome.codes, 1), 1),
        "device": options.device,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
