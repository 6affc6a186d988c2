"""The memory and time of `transhash fit` with many pairs and a million target items.

    python benchmarks/fit_scale.py FOLDER
    python benchmarks/fit_scale.py FOLDER --pairs 100000 --targets 1000000 --keep

Draws features into .npy files in FOLDER (float32, 1,280 numbers an image and 384 a text, as from an
image network and a sentence model: 7.3 GB), then runs the command that a user would type, without
and with the verdict, three times each, and prints its seconds, those of the fit itself and the
largest resident size, mapped pages included: mean and deviation. The files go unless --keep.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

IMAGE, TEXT, LATENT, BLOCK = 1280, 384, 40, 8192


def draw(folder: Path, pairs: int, targets: int) -> None:
    """Items of 50 kinds seen through two views; each pair shares what it is of."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((50, LATENT)).astype(np.float32)
    views = {"images": rng.standard_normal((LATENT, IMAGE)).astype(np.float32) / 6,
             "texts": rng.standard_normal((LATENT, TEXT)).astype(np.float32) / 6}  # fmt: skip

    def write(names: dict[str, str], count: int, shift: float) -> None:
        files = {
            name: np.lib.format.open_memmap(
                folder / f"{name}.npy", "w+", np.float32, (count, views[side].shape[1])
            )
            for name, side in names.items()
        }
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            own = centres[rng.integers(0, 50, size)]
            own = own + 0.7 * rng.standard_normal((size, LATENT), dtype=np.float32)
            for name, side in names.items():
                noise = rng.standard_normal((size, views[side].shape[1]), dtype=np.float32)
                files[name][start : start + size] = own @ views[side] + noise + shift

    write({"aux-images": "images", "aux-texts": "texts"}, pairs, 0.0)
    write({"images": "images"}, targets, 0.2)
    write({"texts": "texts"}, targets, 0.2)


def measured(command: list[str], out: Path) -> tuple[float, float, float]:
    """Seconds in all, those of the fit itself, and the largest size in GB."""
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    fit = json.loads((out / "report.json").read_text())["training_seconds"]
    return time.perf_counter() - start, fit, usage.ru_maxrss / 2**20


def told(command: list[str], folder: Path, repeats: int) -> None:
    """Each time into a folder of its own: a run that is there is not learned again."""
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found.append(measured(command, Path(place) / "run"))
    each = [f"{np.mean(one):.1f} ± {np.std(one, ddof=1):.1f}" for one in zip(*found)]
    print(f"{each[0]} s, THN {each[1]} s, peak {each[2]} GB: {' '.join(command[1:])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--targets", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the files and use those there")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        name: folder / f"{name}.npy" for name in ("aux-images", "aux-texts", "images", "texts")
    }
    if not all(file.exists() for file in files.values()):
        # By a process of its own: a child's largest size begins with its parent's.
        given = folder, arguments.pairs, arguments.targets
        drawing = multiprocessing.get_context("spawn").Process(target=draw, args=given)
        drawing.start()
        drawing.join()
    try:
        print(f"{arguments.pairs} pairs, {arguments.targets} target images and texts", flush=True)
        command = [
            sys.executable, "-m", "transhash", "fit", "thn", "--bits", "32",
            "--auxiliary-images", str(files["aux-images"]),
            "--auxiliary-texts", str(files["aux-texts"]),
            "--images", str(files["images"]), "--texts", str(files["texts"]),
        ]  # fmt: skip
        told([*command, "--no-verdict"], folder, arguments.repeats)
        told(command, folder, arguments.repeats)
    finally:
        if not arguments.keep:
            for file in files.values():
                file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
