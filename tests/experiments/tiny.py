"""An experiment small enough for tests: images as 96 numbers, shallow methods.

As a script it is the process that a test kills: tiny.py FILE ROOT OUT JOBS.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from transhash.experiments import run_experiment

PLAN = """
benchmark = "folder"
methods = ["CVH", "QCH"]
bits = [8, 16]
seeds = [0, 1]
tune = 2
"""


class Thumbnails:
    """Image features without a network: pixels of a thumbnail."""

    name = "thumbnails"
    size = 8
    device = "cpu"
    batch_size = 16

    def cache_key(self) -> None:
        return None

    def network(self) -> None:
        return None

    def extract(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        return pixels.reshape(len(pixels), -1)[:, ::2].astype(np.float32) / 255


def run(file: Path, root: Path | None, out: Path, jobs: int = 1, **options: Any) -> Path:
    quiet = Console(stderr=True, quiet=True)
    return run_experiment(
        file, root, out, jobs, features=Thumbnails(), **{"console": quiet, **options}
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
