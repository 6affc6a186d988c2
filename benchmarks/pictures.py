"""Picture files -> codes in an index, beside another checkout on the same files and the same run.

    python benchmarks/pictures.py --beside CHECKOUT --pictures 800 --repeats 3

Both read a run that commit 2163542 wrote (tests/runs), with all cores, each time in a fresh
process with an empty feature cache, in turn. Seconds of `transhash index` as a user waits for it,
and processor time; the time of an index of 4 pictures, which is nearly all start, is taken off
for the rate.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parents[1]
_FEW = 4


def draw_pictures(folder: Path, count: int) -> None:
    """Photographs in size and compression: 640 x 480, smooth shapes and some noise."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((640, 480), Image.Resampling.BICUBIC), np.int16)
        noisy = pixels + rng.integers(-8, 9, pixels.shape, dtype=np.int16)
        picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{number:05}.jpg", quality=88)


def indexed(source: Path, run: Path, pictures: Path, place: Path) -> tuple[float, float]:
    """Seconds and processor seconds of an index into a copy of the run."""
    copy, cache = place / "copy", place / "cache"
    for old in (copy, cache):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "index")
    (copy / "catalog.sqlite").unlink()
    environment = {**os.environ, "PYTHONPATH": str(source), "TRANSHASH_CACHE": str(cache)}
    command = [sys.executable, "-m", "transhash", "index", str(copy), "--images", str(pictures)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=place)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{source}: {done.stderr[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--beside", type=Path, required=True, help="another checkout")
    parser.add_argument("--pictures", type=int, default=800)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    sources = {"this version": HERE / "src", "beside": arguments.beside.resolve() / "src"}
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        with tarfile.open(HERE / "tests/runs/run-2163542.tar.xz") as packed:
            packed.extractall(place, filter="data")
        draw_pictures(place / "many", arguments.pictures)
        draw_pictures(place / "few", _FEW)
        for _ in range(arguments.repeats):
            for name, source in sources.items():
                start, started = indexed(source, place / "run", place / "few", place)
                whole, worked = indexed(source, place / "run", place / "many", place)
                taken[name].append((whole, whole - start, worked - started))
    print(f"{arguments.pictures} pictures of 640 x 480, {os.cpu_count()} cores")
    for name, rows in taken.items():
        (whole, net, worked), spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
        count = arguments.pictures - _FEW
        print(
            f"{name:<14} {whole:5.1f} ± {spread[0]:.1f} s with its start; "
            f"{count / net:5.1f} /s, by processor time {count / worked:5.1f} /s"
        )
    ratios = np.array(taken["beside"]) / np.array(taken["this version"])
    mean, spread = ratios.mean(axis=0), ratios.std(axis=0, ddof=1)
    print(
        f"times as fast: {mean[0]:.2f} ± {spread[0]:.2f} with the start, {mean[1]:.2f} ± "
        f"{spread[1]:.2f} without, {mean[2]:.2f} ± {spread[2]:.2f} by processor time"
    )


if __name__ == "__main__":
    main()
