"""Kill a Ray worker while it encodes images, and check that nothing is lost.

    python benchmarks/ray_kill.py --images 20000

Runs `transhash encode --executor ray --workers 2` on small generated images. When a third of the
shards is written, one of the two worker processes gets SIGKILL. Afterwards every image must have
one code, the same as without Ray. Exits with 1 if not.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from serve import build_run

from transhash.model.shards import read_shards

SIZE, SHARDS = 96, 40


def write_images(folder: Path, count: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        image = coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:06}.jpg", quality=85)


def encode_command(run: Path, images: Path, out: Path, shard: int, *options: str) -> list[str]:
    arguments = ("encode", str(run), "--images", str(images), "--out", str(out))
    return [sys.executable, "-m", "transhash", *arguments, "--shard-size", str(shard), *options]


def worker_ids() -> list[int]:
    """Return the process ids of Ray's encoding actors."""
    ids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # the process has ended
            if name.startswith(b"ray::") and b"_RayWorker" in name:
                ids.append(int(entry.name))
    return sorted(ids)


def read_codes(folder: Path) -> dict[str, bytes]:
    codes: dict[str, bytes] = {}
    duplicates = 0
    for shard in read_shards(folder):
        for name, code in zip(shard.ids, shard.codes.packed, strict=True):
            duplicates += name in codes
            codes[name] = code.tobytes()
    if duplicates:
        raise SystemExit(f"{duplicates} images have two codes. See {folder}.")
    return codes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=20_000)
    count = parser.parse_args().images
    shard = max(1, count // SHARDS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, images = build_run(folder, 100), folder / "images"
        write_images(images, count)
        start = time.perf_counter()
        subprocess.run(encode_command(run, images, folder / "local", shard), check=True)
        local_seconds = time.perf_counter() - start
        start = time.perf_counter()
        options = ("--executor", "ray", "--workers", "2")
        job = subprocess.Popen(encode_command(run, images, folder / "ray", shard, *options))
        while len(list((folder / "ray").glob("*.parquet"))) < SHARDS // 3:
            if job.poll() is not None:
                raise SystemExit("The job ended before a worker could be killed. Use more images.")
            time.sleep(0.2)
        workers = worker_ids()
        os.kill(workers[0], signal.SIGKILL)
        written = len(list((folder / "ray").glob("*.parquet")))
        print(
            f"killed one of {len(workers)} workers after {written} of {SHARDS} shards", flush=True
        )
        if job.wait():
            raise SystemExit(f"The job failed with exit code {job.returncode}. See above.")
        seconds = time.perf_counter() - start
        expected, codes = read_codes(folder / "local"), read_codes(folder / "ray")
        lost = expected.keys() - codes.keys()
        wrong = sum(codes[name] != code for name, code in expected.items() if name in codes)
        print(
            f"{len(codes):,} of {count:,} images, {len(lost):,} lost, {wrong:,} with another code; "
            f"{seconds:.0f} s on Ray with the kill, {local_seconds:.0f} s without Ray"
        )
        if lost or wrong or len(codes) != count:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
