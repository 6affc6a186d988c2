"""Compare ONNX Runtime with torch on EfficientNet-Lite0: images per second on one CPU thread.

    OMP_NUM_THREADS=1 python benchmarks/onnx_runtime.py [IMAGES]

Both take turns. `network` is the forward pass on four images at a time, as in encoding; `files`
includes reading and decoding. Rates by processor time, means and standard deviations over
--repeats. Without IMAGES, synthetic ones are used.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from transhash.codes import Codes
from transhash.data.manifest import read_images
from transhash.datasets.synthetic import make_synthetic
from transhash.features import LITE0
from transhash.features.backbone import extract_pixels
from transhash.features.decode import decode
from transhash.features.efficientnet import fuse_lite, trainable_lite
from transhash.features.images import EfficientNetLite0
from transhash.features.onnx import OnnxRuntimeNetwork
from transhash.features.stream import stream_images


class Lite0With(EfficientNetLite0):
    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self._network = network

    def network(self) -> torch.nn.Module:
        return self._network


def rate(work: Callable[[], object], count: int) -> float:
    start = time.process_time()
    work()
    return count / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("images", nargs="?", type=Path)
    parser.add_argument("--items", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = options.images or make_synthetic(Path(folder), per_class=20) / "images.tsv"
        paths = list(read_images(source).items)[: options.items]
        pixels = np.stack([p for path in paths if not isinstance(p := decode(path, 224), str)])
        network = fuse_lite(trainable_lite(LITE0), "cpu")
        backends = {
            "torch": Lite0With(network),
            "ONNX Runtime": Lite0With(OnnxRuntimeNetwork(network)),
        }
        rows = {
            name: extract_pixels(features.network(), pixels, features.batch_size, "cpu")
            for name, features in backends.items()
        }
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.repeats):
            for name, features in backends.items():
                tasks = {
                    "network": lambda f=features: f.extract(pixels),
                    "files": lambda f=features: list(
                        stream_images(f, paths, cache=False, workers=1)
                    ),
                }
                for task, work in tasks.items():
                    rates.setdefault((task, name), []).append(rate(work, len(pixels)))
    print(f"{len(pixels)} images, one thread, {options.repeats} repeats")
    for task in ("network", "files"):
        cells = []
        for name in backends:
            values = np.array(rates[task, name])
            cells.append(f"{name} {values.mean():5.1f} ± {values.std():4.1f} /s")
        ratio = np.array(rates[task, "ONNX Runtime"]) / np.array(rates[task, "torch"])
        print(f"{task:8} {'   '.join(cells)}   ratio {ratio.mean():.2f} ± {ratio.std():.2f}")
    difference = np.abs(rows["torch"] - rows["ONNX Runtime"]).max()
    planes = np.random.default_rng(0).standard_normal((rows["torch"].shape[1], 128))
    center = rows["torch"].mean(axis=0)
    a, b = (Codes.from_projections((r - center) @ planes).signs() for r in rows.values())
    print(f"features differ by at most {difference:.1e}, {int((a != b).sum())} of {a.size:,} bits")


if __name__ == "__main__":
    main()
