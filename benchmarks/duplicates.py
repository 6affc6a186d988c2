"""Choose the threshold below which two images are copies.

    python benchmarks/duplicates.py

Compares tiny images (features/decode.py) by their largest difference in any pixel: of copies of the
images of the synthetic data set, encoded again and scaled, and of all pairs of different images.
Prints quantiles of both for three draws of the data set.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from transhash.datasets.synthetic import make_synthetic
from transhash.features.decode import render, summary_task

COPIES = (
    ("JPEG", 95, 1.0),
    ("JPEG", 60, 1.0),
    ("JPEG", 85, 0.5),
    ("WEBP", 80, 0.7),
    ("PNG", 0, 0.3),
)


def fingerprint(content: bytes) -> np.ndarray:
    result = render(content, summary_task(224))
    assert not isinstance(result, str)
    return np.frombuffer(result.fingerprint, np.uint8).astype(np.int16)


def encode(image: Image.Image, name: str, quality: int, scale: float) -> bytes:
    buffer = io.BytesIO()
    width, height = (round(scale * side) for side in image.size)
    image.resize((width, height), Image.Resampling.LANCZOS).save(buffer, name, quality=quality)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--per-class", type=int, default=20)
    options = parser.parse_args()
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            data = make_synthetic(Path(folder) / "data", per_class=options.per_class, seed=seed)
            paths = sorted(data.rglob("*.jpg"))
            originals = np.stack([fingerprint(path.read_bytes()) for path in paths])
            copies = []
            for path, original in zip(paths, originals):
                with Image.open(path) as image:
                    image.load()
                for copy in COPIES:
                    tiny = fingerprint(encode(image.convert("RGB"), *copy))
                    copies.append(np.abs(tiny - original).max())
            others = []
            for i in range(len(originals) - 1):
                others.append(np.abs(originals[i + 1 :] - originals[i]).max(axis=1))
            different = np.concatenate(others)
        levels = np.percentile(copies, [50, 99, 100]), np.percentile(different, [0, 0.001, 0.01, 1])
        print(
            f"seed {seed}: {len(copies):,} copies, largest difference median {levels[0][0]:.0f}, "
            f"99% {levels[0][1]:.0f}, all {levels[0][2]:.0f}; "
            f"{len(different):,} pairs of different images, smallest {levels[1][0]:.0f}, "
            f"quantiles .00001 {levels[1][1]:.0f}, .0001 {levels[1][2]:.0f}, .01 {levels[1][3]:.0f}"
        )


if __name__ == "__main__":
    main()
