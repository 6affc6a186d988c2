"""Measure images per second of image networks on one CPU thread.

    OMP_NUM_THREADS=1 python benchmarks/backbones.py efficientnet-lite0 efficientnet-lite2

Networks take turns. By processor time, mean and deviation over repeats; the ratio is to the time of
the first network in the same repeat. Pixels are random and already decoded.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from transhash.features.images import image_features


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("features", nargs="+", help="image features, as for fit --features")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    networks = [image_features(name) for name in options.features]
    rng = np.random.default_rng(0)
    shapes = [(options.images, network.size, network.size, 3) for network in networks]
    pixels = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    for network, images in zip(networks, pixels):
        network.extract(images)  # loads the network
    seconds = np.empty((options.repeats, len(networks)))
    for repeat in range(options.repeats):
        for column, (network, images) in enumerate(zip(networks, pixels)):
            start = time.process_time()
            network.extract(images)
            seconds[repeat, column] = time.process_time() - start
    rates, ratios = options.images / seconds, seconds / seconds[:, :1]
    print(f"{options.images} images, one thread, {options.repeats} repeats")
    for column, network in enumerate(networks):
        rate, ratio = rates[:, column], ratios[:, column]
        print(
            f"{network.name:20} {rate.mean():6.1f} ± {rate.std(ddof=1):4.1f} /s   "
            f"time {ratio.mean():.2f} ± {ratio.std(ddof=1):.2f}"
        )


if __name__ == "__main__":
    main()
