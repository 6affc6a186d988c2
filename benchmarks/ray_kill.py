"""Two Ray workers encode a folder of pictures, one of them is killed midway: is anything lost?

    python benchmarks/ray_kill.py --pictures 20000

`transhash encode --engine ray --workers 2` on small pictures made here, all different. When a third
of the shards is there, one of the two worker processes gets SIGKILL. Afterwards every picture must
be there once, with the code that one process without Ray gives it. Exits with 1 if not.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from transhash.model.shards import read_shards

HERE = Path(__file__).resolve().parents[1]
_SIZE = 96  # of a picture, as its codes are asked for


def draw(folder: Path, count: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        picture = coarse.resize((_SIZE, _SIZE), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:06}.jpg", quality=85)


def command(run: Path, pictures: Path, to: Path, shard: int, *more: str) -> list[str]:
    told = ("encode", str(run), "--images", str(pictures), "--out", str(to))
    return [sys.executable, "-m", "transhash", *told, "--shard-size", str(shard), *more]


def workers() -> list[int]:
    """Processes of Ray's actors that encode."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # gone meanwhile
            if name.startswith(b"ray::") and b"_RayWorker" in name:
                found.append(int(entry.name))
    return sorted(found)


def codes_of(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    doubled = 0
    for part in read_shards(folder):
        for name, code in zip(part.ids, part.codes.packed, strict=True):
            doubled += name in found
            found[name] = code.tobytes()
    if doubled:
        raise SystemExit(f"{doubled} pictures are there twice")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", type=int, default=20_000)
    arguments = parser.parse_args()
    count = arguments.pictures
    shard = max(1, count // 40)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        with tarfile.open(HERE / "tests/runs/run-2163542.tar.xz") as packed:
            packed.extractall(place, filter="data")
        run, pictures = place / "run", place / "pictures"
        draw(pictures, count)
        start = time.perf_counter()
        subprocess.run(command(run, pictures, place / "alone", shard), check=True)
        alone = time.perf_counter() - start
        start = time.perf_counter()
        on_ray = command(run, pictures, place / "ray", shard, "--engine", "ray", "--workers", "2")
        job = subprocess.Popen(on_ray)
        while len(list((place / "ray").glob("*.parquet"))) < 13:
            if job.poll() is not None:
                raise SystemExit("the job ended before a worker could be killed")
            time.sleep(0.2)
        before = workers()
        os.kill(before[0], signal.SIGKILL)
        there = len(list((place / "ray").glob("*.parquet")))
        print(
            f"killed one of {len(before)} workers when {there} of 40 shards were there", flush=True
        )
        if job.wait():
            raise SystemExit(f"the job ended with {job.returncode}")
        seconds = time.perf_counter() - start
        wanted, found = codes_of(place / "alone"), codes_of(place / "ray")
        lost = wanted.keys() - found.keys()
        other = sum(found[name] != code for name, code in wanted.items() if name in found)
        print(
            f"{len(found):,} of {count:,} pictures, {len(lost):,} lost, {other:,} with another "
            f"code; {seconds:.0f} s on Ray with the kill, {alone:.0f} s alone"
        )
        if lost or other or len(found) != count:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
