"""The memory and time of `transhash fit` with many pairs and a million target items.

    python benchmarks/fit_scale.py FOLDER
    python benchmarks/fit_scale.py FOLDER --pairs 100000 --targets 1000000 --keep

Draws features into .npy files in FOLDER (float32, 1,280 numbers an image and 384 a text, as from an
image network and a sentence model: 7.3 GB), then runs the command that a user would type and prints
its seconds and the largest resident size; of the same data, `THN.fit` in Python on the mapped
files, part by part. The files are deleted unless --keep.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

IMAGE, TEXT, LATENT, BLOCK = 1280, 384, 40, 8192

CHILD = """
import resource, sys, time
import numpy as np, scipy.sparse
from pathlib import Path
import transhash.hashers.thn.thn as loop
from transhash.data.relation import SparseRelation
from transhash.data.training import TrainingSet
from transhash.hashers import THN
folder, start = Path(sys.argv[1]), time.perf_counter()
def told(what):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  {what:28} {time.perf_counter() - start:7.1f} s, peak {peak:.2f} GB", flush=True)
x, y, tx, ty = (np.load(folder / f"{name}.npy", mmap_mode="r")
    for name in ("aux-images", "aux-texts", "images", "texts"))
relation = SparseRelation(scipy.sparse.csr_array(scipy.sparse.eye(len(x), format="csr")))
told("imports")
training = TrainingSet(x, y, relation, tx, ty)
told("checked every value")
def after(owner, name, what):
    inner = getattr(owner, name)
    def outer(*given, **named):
        found = inner(*given, **named)
        told(what)
        return found
    setattr(owner, name, outer)
after(loop.Transfer, "bridge", "first layer")
after(loop, "best_frame", "rotation")
hasher = THN(bits=32).fit(training)
told("300 steps")
"""


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


def measured(command: list[str]) -> None:
    start = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    print(
        f"{time.perf_counter() - start:.1f} s, peak {usage.ru_maxrss / 2**20:.2f} GB: "
        f"{' '.join(command[1:]) if len(' '.join(command)) < 400 else 'in Python'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--targets", type=int, default=1_000_000)
    parser.add_argument("--keep", action="store_true", help="leave the files and use those there")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        name: folder / f"{name}.npy" for name in ("aux-images", "aux-texts", "images", "texts")
    }
    if not all(file.exists() for file in files.values()):
        draw(folder, arguments.pairs, arguments.targets)
    try:
        print(f"{arguments.pairs} pairs, {arguments.targets} target images and texts", flush=True)
        measured([
            sys.executable, "-m", "transhash", "fit", "thn", "--bits", "32",
            "--auxiliary-images", str(files["aux-images"]),
            "--auxiliary-texts", str(files["aux-texts"]),
            "--images", str(files["images"]), "--texts", str(files["texts"]),
            "--out", str(folder / "run"),
        ])  # fmt: skip
        measured([sys.executable, "-c", CHILD, str(folder)])
    finally:
        if not arguments.keep:
            for file in files.values():
                file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
