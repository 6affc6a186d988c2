"""ONNX Runtime beside torch on EfficientNet-Lite0: pictures a second, on one thread of a CPU.

    OMP_NUM_THREADS=1 python benchmarks/onnx_runtime.py [PICTURES]

The two take turns, so that a busy machine slows both. `network` is the pass alone, four pictures
at a time as when encoding; `files` is reading, decoding and the pass. Rates by processor time,
means and standard deviations over --repeats. Without PICTURES, drawn ones.
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
from transhash.features.backbone import extract_pixels
from transhash.features.decode import decode
from transhash.features.efficientnet import LITE0, folded_lite, trainable_lite
from transhash.features.images import EfficientNetLite0
from transhash.features.onnx import OnnxRuntimeNetwork
from transhash.features.stream import stream_images


class By(EfficientNetLite0):
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="?", type=Path)
    parser.add_argument("--items", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = given.pictures or make_synthetic(Path(folder), per_class=20) / "images.tsv"
        paths = list(read_images(source).items)[: given.items]
        pixels = np.stack([p for path in paths if not isinstance(p := decode(path, 224), str)])
        network = folded_lite(trainable_lite(LITE0), "cpu")
        engines = {"torch": By(network), "ONNX Runtime": By(OnnxRuntimeNetwork(network))}
        rows = {
            name: extract_pixels(e.network(), pixels, e.step, "cpu") for name, e in engines.items()
        }
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(given.repeats):
            for name, engine in engines.items():
                of = {
                    "network": lambda e=engine: e.extract(pixels),
                    "files": lambda e=engine: list(stream_images(e, paths, cache=False, workers=1)),
                }
                for what, work in of.items():
                    rates.setdefault((what, name), []).append(rate(work, len(pixels)))
    print(f"{len(pixels)} pictures, one thread, {given.repeats} repeats")
    for what in ("network", "files"):
        told = []
        for name in engines:
            each = np.array(rates[what, name])
            told.append(f"{name} {each.mean():5.1f} ± {each.std():4.1f} /s")
        ratio = np.array(rates[what, "ONNX Runtime"]) / np.array(rates[what, "torch"])
        print(f"{what:8} {'   '.join(told)}   ratio {ratio.mean():.2f} ± {ratio.std():.2f}")
    spread_labels = np.abs(rows["torch"] - rows["ONNX Runtime"]).max()
    planes = np.random.default_rng(0).standard_normal((rows["torch"].shape[1], 128))
    centre = rows["torch"].mean(axis=0)
    one, other = (Codes.from_projections((r - centre) @ planes).signs() for r in rows.values())
    print(
        f"features differ by at most {spread_labels:.1e}, {int((one != other).sum())} of {one.size:,} bits"
    )


if __name__ == "__main__":
    main()
