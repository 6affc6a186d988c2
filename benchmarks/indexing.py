"""Memory and time of indexing N pictures, each N in a process of its own.

    python benchmarks/indexing.py 1000 10000 100000 [--network]

The pictures are small JPEGs made here, all different. Features are the colours of 8 x 8 pixels, so
that what is measured is the way from files to catalog and index; with --network they are those of
EfficientNet-Lite0, which add a fixed amount. Prints a JSON line for each N and, from the last two,
what a million would need.
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
from transhash.model.query_encoder import QueryEncoder
from transhash.search.catalog import Catalog
from transhash.search.engine import SearchEngine


class Colours:
    """Stand-in features: the pixels of a small picture."""

    name, size, device, step = "colours", 8, "cpu", 4

    def key(self) -> str:
        return "colours:1"

    def network(self) -> None:
        return None

    def extract(self, pixels: Pixels) -> Features:
        return pixels.reshape(len(pixels), 192).astype(np.float32)


class Signs:
    """Stand-in hasher: random directions."""

    bits = 64

    def encode_images(self, rows: Features) -> Codes:
        rng = np.random.default_rng(0)
        directions = rng.standard_normal((rows.shape[1], self.bits)).astype(np.float32)
        return Codes.from_projections((rows - rows.mean()) @ directions)


def draw(folder: Path, count: int) -> None:
    """`count` pictures in folders of a thousand."""
    rng = np.random.default_rng(0)
    for start in range(0, count, 1000):
        part = folder / f"{start // 1000:04d}"
        part.mkdir(parents=True, exist_ok=True)
        for i in range(start, min(start + 1000, count)):
            path = part / f"IMG_{i:07d}.jpg"
            if not path.exists():
                pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((64, 48)).save(path, quality=60)


def measure(pictures: Path, network: bool) -> dict[str, float]:
    """In this process: index the folder; seconds, and megabytes before and at most."""
    features: ImageFeatures = EfficientNetLite0() if network else Colours()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        os.environ["TRANSHASH_CACHE"] = str(run / "cache")
        engine = SearchEngine(
            QueryEncoder.of(Encoder(Signs(), features, None), run),  # type: ignore[arg-type]
            Catalog(run / "catalog.sqlite"),
            {"images": open_index(f"grouped:{run / 'images'}", Signs.bits)},
            run,
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.perf_counter()
        images = read_images(pictures)
        listed = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        done = engine.add_images(images)
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        again = engine.add_images(images)
        unchanged = time.perf_counter() - start
        start = time.perf_counter()
        checked = engine.add_images(images, reread=True)
        reread = time.perf_counter() - start
        assert done.added == again.unchanged == checked.unchanged == len(images)
        engine.close()
        return {
            "pictures": len(images),
            "seconds": round(seconds, 1),
            "seconds_unchanged": round(unchanged, 1),
            "seconds_unchanged_reread": round(reread, 1),
            "mb_before": round(before),
            "mb_listed": round(listed),
            "mb_at_most": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "mb_catalog": round((run / "catalog.sqlite").stat().st_size / 1e6),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.network)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in sorted(options.counts):
            draw(Path(folder), count)
            command = [sys.executable, __file__, "0", "--measure", folder]
            command += ["--network"] if options.network else []
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout))
            print(done.stdout.strip(), flush=True)
    if len(rows) > 1:
        a, b = rows[-2:]
        slope = (b["mb_at_most"] - a["mb_at_most"]) / (b["pictures"] - a["pictures"])
        print(json.dumps({"mb_at_1e6": round(b["mb_at_most"] + slope * (1e6 - b["pictures"]))}))


if __name__ == "__main__":
    main()
