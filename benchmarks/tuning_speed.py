"""How long fine-tuning takes alone on a machine. Pictures of noise take as long as others.

    python benchmarks/tuning_speed.py --device cuda --steps 600
    python benchmarks/tuning_speed.py --blocks 6 --steps 20

2,000 + 500 pictures of 224 x 224 pixels, 96 + 96 a step; from decoded pixels to the fine-tuned
backbone, the first step's compiling and moving to the device included.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from transhash.data.relation import SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune

AUXILIARY, TARGET, WORDS = 2000, 500, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=FineTuning().steps)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    backbone = EfficientNetLite0(arguments.device)
    shape = (backbone.size, backbone.size, 3)
    pixels, target = (
        rng.integers(0, 256, (n, *shape), dtype=np.uint8) for n in (AUXILIARY, TARGET)
    )
    texts, target_texts = (rng.standard_normal((n, WORDS), np.float32) for n in (AUXILIARY, TARGET))
    keys = [str(row) for row in range(AUXILIARY)]
    training = TrainingSet(
        backbone.extract(pixels), texts, SparseRelation.from_pairs(keys, keys),
        backbone.extract(target), target_texts,
    )  # fmt: skip
    teacher = make_hasher("CVH+target", bits=32, seed=0).fit(training)
    settings = FineTuning(steps=arguments.steps, blocks=arguments.blocks)
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        fine_tune(backbone, pixels, target, training, teacher, settings)  # its weights come to host
        print(f"{settings.steps} steps: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
