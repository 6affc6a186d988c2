"""Measure memory and time of indexing N images, each N in a separate process.

    python benchmarks/indexing.py 1000 10000 100000 [--network]

The images are small JPEGs generated here, all different. Features are the colors of 8 x 8 pixels,
to measure reading, catalog and index. With --network they are those of EfficientNet-Lite0, which
add a fixed amount of memory. Prints a JSON line per N, and an estimate for a million images from
the last two.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from transhash.codes import Codes
from transhash.data.manifest import read_images
from transhash.data.training_set import Features
from transhash.features.decode import Pixels
from transhash.features.images import EfficientNetLite0, ImageFeatures
from transhash.index import open_index
from transhash.model.encoder import Encoder
from transhash.search.catalog import Catalog
from transhash.search.writer import IndexWriter


class ColorFeatures:
    """Image features without a network: the pixels of a small image."""

    name, size, device, batch_size = "colors", 8, "cpu", 4

    def cache_key(self) -> str:
        return "colors:1"

    def network(self) -> None:
        return None

    def extract(self, pixels: Pixels) -> Features:
        return pixels.reshape(len(pixels), 192).astype(np.float32)


class RandomHasher:
    """A hasher with random projections."""

    bits = 64

    def encode_images(self, rows: Features) -> Codes:
        rng = np.random.default_rng(0)
        axes = rng.standard_normal((rows.shape[1], self.bits)).astype(np.float32)
        return Codes.from_projections((rows - rows.mean()) @ axes)


def write_images(folder: Path, count: int) -> None:
    """Write `count` images to subfolders of a thousand."""
    rng = np.random.default_rng(0)
    for start in range(0, count, 1000):
        part = folder / f"{start // 1000:04d}"
        part.mkdir(parents=True, exist_ok=True)
        for i in range(start, min(start + 1000, count)):
            path = part / f"IMG_{i:07d}.jpg"
            if not path.exists():
                pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((64, 48)).save(path, quality=60)


def measure(folder: Path, network: bool) -> dict[str, float]:
    """Index the folder in this process; return seconds and megabytes."""
    features: ImageFeatures = EfficientNetLite0() if network else ColorFeatures()
    with tempfile.TemporaryDirectory() as run_folder:
        run = Path(run_folder)
        os.environ["TRANSHASH_CACHE"] = str(run / "cache")
        catalog = Catalog(run / "catalog.sqlite")
        index = open_index(f"grouped:{run / 'images'}", RandomHasher.bits)
        encoder = Encoder(RandomHasher(), features, None)  # type: ignore[arg-type]
        writer = IndexWriter(encoder, catalog, {"images": index})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.perf_counter()
        images = read_images(folder)
        listed = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        first = writer.add_images(images)
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        second = writer.add_images(images)
        unchanged = time.perf_counter() - start
        start = time.perf_counter()
        third = writer.add_images(images, reread=True)
        reread = time.perf_counter() - start
        assert first.added == second.unchanged == third.unchanged == len(images)
        index.close()
        catalog.close()
        return {
            "images": len(images),
            "seconds": round(seconds, 1),
            "seconds_unchanged": round(unchanged, 1),
            "seconds_unchanged_reread": round(reread, 1),
            "mb_before": round(before),
            "mb_listed": round(listed),
            "mb_peak": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "mb_catalog": round((run / "catalog.sqlite").stat().st_size / 1e6),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("counts", type=int, nargs="+", help="numbers of images")
    parser.add_argument("--network", action="store_true", help="use EfficientNet-Lite0")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.network)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in sorted(options.counts):
            write_images(Path(folder), count)
            command = [sys.executable, __file__, "0", "--measure", folder]
            command += ["--network"] if options.network else []
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(result.stdout))
            print(result.stdout.strip(), flush=True)
    if len(rows) > 1:
        a, b = rows[-2:]
        slope = (b["mb_peak"] - a["mb_peak"]) / (b["images"] - a["images"])
        print(json.dumps({"mb_at_1e6": round(b["mb_peak"] + slope * (1e6 - b["images"]))}))


if __name__ == "__main__":
    main()
