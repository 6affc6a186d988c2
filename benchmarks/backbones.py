"""Pictures a second through image networks on a CPU, one thread, the networks taking turns.

    OMP_NUM_THREADS=1 python benchmarks/backbones.py efficientnet-lite0 efficientnet-lite2

By processor time, mean and deviation over the repeats; the ratio is to the first network's time in
the same repeat. Pixels are random and decoded already.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from transhash.features.images import image_features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", nargs="+", help="as --features takes them")
    parser.add_argument("--pictures", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    networks = [image_features(name) for name in arguments.features]
    rng = np.random.default_rng(0)
    shapes = [(arguments.pictures, one.size, one.size, 3) for one in networks]
    pixels = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    for network, images in zip(networks, pixels):
        network.extract(images)  # the first pass loads
    seconds = np.empty((arguments.repeats, len(networks)))
    for repeat in range(arguments.repeats):
        for at, (network, images) in enumerate(zip(networks, pixels)):
            start = time.process_time()
            network.extract(images)
            seconds[repeat, at] = time.process_time() - start
    rates, ratios = arguments.pictures / seconds, seconds / seconds[:, :1]
    print(f"{arguments.pictures} pictures, one thread, {arguments.repeats} repeats")
    for at, network in enumerate(networks):
        rate, ratio = rates[:, at], ratios[:, at]
        print(
            f"{network.name:20} {rate.mean():6.1f} ± {rate.std(ddof=1):4.1f} /s   "
            f"time {ratio.mean():.2f} ± {ratio.std(ddof=1):.2f}"
        )


if __name__ == "__main__":
    main()
