"""What each change to the paper's recipe brings: THN with one setting taken back at a time.

    python benchmarks/ablation.py --root FOLDER      # a three-part folder (docs/data.md)

MAP of target queries, mean and standard deviation over splits; no setting is chosen here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from transhash.features.images import image_features
from transhash.hashers.thn import PAPER, THN
from transhash.scoring import directions_of, score_directions
from transhash.training.split_data import build_split, load_benchmark_features

PLAIN: dict[str, Any] = {
    "input_layer": "features",
    "image_hidden": (512,),
    "text_hidden": (1000, 500),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "1 unweighted pairs": {"balanced": False},
    "3 Q from the start": {"quantization_start": 0.0},
    "3 no Q (THN-Q)": {"quantization_weight": 0.0},
    "4 one kernel, µ from the start": {"kernel_widths": (1.0,), "alignment_ramp": 0.0},
    "4 no MMD term": {"alignment_weight": 0.0},
    "5 plain features": PLAIN,
    "5 plain features, 1,000 steps": {**PLAIN, "steps": 1000, "logit_scale": 1.0},
    "7 one round of matching": {"matching_rounds": 1},
    "7 no target items at all (THN-D)": {"use_target": False, "alignment_weight": 0.0},
    "8 hard pairs": {"soft_label_fraction": 0.0, "pseudo_label_weight": 0.0},
    "9 temperature 1": {"logit_scale": 1.0},
    "10 random start": {"rotation_trials": 0},
    "10 start only (1 step)": {"steps": 1, "ema_decay": 0.0},
    "12 no weight average": {"ema_decay": 0.0},
    "squared inner product (THN-ip)": {"loss": "inner-product"},
    "THN-paper": PAPER,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    ready, _ = load_benchmark_features(Path(arguments.root), image_features("efficientnet-lite0"))
    tasks = [build_split(ready, seed) for seed in range(arguments.seeds)]
    print("| variant | " + " | ".join(f"{b} bits I->T / T->I" for b in arguments.bits) + " |")
    print("|---|" + "---|" * len(arguments.bits))
    for name, settings in VARIANTS.items():
        cells = []
        for bits in arguments.bits:
            rows = []
            for seed, task in enumerate(tasks):
                hasher = THN(**{**settings, "bits": bits, "seed": seed}).fit(task.training)
                scores = score_directions(directions_of(hasher, task.target))
                rows.append([scores[way].map for way in ("image_to_text", "text_to_image")])
            mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
            cells.append(f"{mean[0]:.3f} ± {spread[0]:.3f} / {mean[1]:.3f} ± {spread[1]:.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
