"""Measure the time of fine-tuning, on noise images.

    python benchmarks/tuning_speed.py --device cuda --steps 600
    python benchmarks/tuning_speed.py --blocks 6 --steps 20

2,000 auxiliary and 500 target images of 224 x 224 pixels, 96 + 96 per step. The time is from
decoded pixels to the fine-tuned backbone, including compilation and copies to the device.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from common import row_pairs

from transhash.data.training_set import TrainingSet
from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune

AUXILIARY, TARGET, WORDS = 2000, 500, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    backbone = EfficientNetLite0(options.device)
    shape = (backbone.size, backbone.size, 3)
    pixels, target = (
        rng.integers(0, 256, (n, *shape), dtype=np.uint8) for n in (AUXILIARY, TARGET)
    )
    texts, target_texts = (rng.standard_normal((n, WORDS), np.float32) for n in (AUXILIARY, TARGET))
    training = TrainingSet(
        backbone.extract(pixels), texts, row_pairs(AUXILIARY),
        backbone.extract(target), target_texts,
    )  # fmt: skip
    teacher = make_hasher("CVH+target", bits=32, seed=0).fit(training)
    settings = FineTuning(steps=options.steps, blocks=options.blocks)
    for _ in range(options.repeats):
        start = time.perf_counter()
        fine_tune(backbone, pixels, target, training, teacher, settings)
        print(f"{settings.steps} steps: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
