"""Measure memory and time of `transhash fit` with many pairs and a million target items.

    python benchmarks/fit_scale.py FOLDER
    python benchmarks/fit_scale.py FOLDER --pairs 100000 --targets 1000000 --keep

Writes random features to .npy files in FOLDER (float32, 1,280 numbers per image and 384 per text,
7.3 GB), runs the command without and with validation, and prints its wall and CPU time, the
training time and the largest resident size including mapped pages: mean and deviation over
repeats. Deletes the files unless --keep is given.
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

IMAGE, TEXT, LATENT, CHUNK_ROWS = 1280, 384, 40, 8192


def write_features(folder: Path, pairs: int, targets: int) -> None:
    """Write two linear views of items of 50 classes; both items of a pair share a latent point."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((50, LATENT)).astype(np.float32)
    views = {"images": rng.standard_normal((LATENT, IMAGE)).astype(np.float32) / 6,
             "texts": rng.standard_normal((LATENT, TEXT)).astype(np.float32) / 6}  # fmt: skip

    def write(names: dict[str, str], count: int, shift: float) -> None:
        files = {
            name: np.lib.format.open_memmap(
                folder / f"{name}.npy", "w+", np.float32, (count, views[side].shape[1])
            )
            for name, side in names.items()
        }
        for start in range(0, count, CHUNK_ROWS):
            size = min(CHUNK_ROWS, count - start)
            latent = centers[rng.integers(0, 50, size)]
            latent = latent + 0.7 * rng.standard_normal((size, LATENT), dtype=np.float32)
            for name, side in names.items():
                noise = rng.standard_normal((size, views[side].shape[1]), dtype=np.float32)
                files[name][start : start + size] = latent @ views[side] + noise + shift

    write({"aux-images": "images", "aux-texts": "texts"}, pairs, 0.0)
    write({"images": "images"}, targets, 0.2)
    write({"texts": "texts"}, targets, 0.2)


def measure(command: list[str], out: Path) -> tuple[float, float, float, float]:
    """Return wall time, CPU time, training time and the largest resident size in GB."""
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed. See the message above.")
    training = json.loads((out / "report.json").read_text())["training_seconds"]
    cpu = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - start, cpu, training, usage.ru_maxrss / 2**20


def print_means(command: list[str], folder: Path, repeats: int) -> None:
    rows = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            rows.append(measure(command, Path(out) / "run"))
    cells = [
        f"{np.mean(values):.1f} ± {np.std(values, ddof=1) if repeats > 1 else 0:.1f}"
        for values in zip(*rows)
    ]
    print(
        f"{cells[0]} s, CPU {cells[1]} s, THN {cells[2]} s, peak {cells[3]} GB: "
        f"{' '.join(command[1:])}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--targets", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-validate", action="store_true", help="measure only without it")
    parser.add_argument(
        "--keep", action="store_true", help="keep the feature files, and use existing ones"
    )
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        name: folder / f"{name}.npy" for name in ("aux-images", "aux-texts", "images", "texts")
    }
    if not all(file.exists() for file in files.values()):
        # In another process: the peak size of a child process includes that of its parent.
        arguments = folder, options.pairs, options.targets
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=write_features, args=arguments)
        process.start()
        process.join()
    try:
        print(f"{options.pairs} pairs, {options.targets} target images and texts", flush=True)
        command = [
            sys.executable, "-m", "transhash", "fit", "thn", "--bits", "32",
            "--auxiliary-images", str(files["aux-images"]),
            "--auxiliary-texts", str(files["aux-texts"]),
            "--images", str(files["images"]), "--texts", str(files["texts"]),
        ]  # fmt: skip
        print_means([*command, "--no-validate"], folder, options.repeats)
        if not options.no_validate:
            print_means(command, folder, options.repeats)
    finally:
        if not options.keep:
            for file in files.values():
                file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
