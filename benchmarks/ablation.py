"""Measure THN with one setting at a time changed back to the paper's recipe.

    python benchmarks/ablation.py --root FOLDER      # a benchmark folder (docs/benchmarks.md)

MAP of the target, mean and standard deviation over splits. No setting is chosen by it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import maps, mean_cell

from transhash.features.images import image_features
from transhash.hashers.thn import PAPER, THN
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import build_split, load_benchmark_features

PAPER_NETWORK: dict[str, Any] = {
    "input_layer": "features",
    "image_hidden": (512,),
    "text_hidden": (1000, 500),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "1 unweighted pairs": {"balanced": False},
    "3 Q from the first step": {"quantization_start": 0.0},
    "3 no Q (THN-Q)": {"quantization_weight": 0.0},
    "4 one kernel, µ from the first step": {"kernel_widths": (1.0,), "alignment_ramp": 0.0},
    "4 no MMD term": {"alignment_weight": 0.0},
    "5 paper's network": PAPER_NETWORK,
    "5 paper's network, 1,000 steps": {**PAPER_NETWORK, "steps": 1000, "logit_scale": 1.0},
    "7 one matching round": {"matching_rounds": 1},
    "7 no target items (THN-D)": {"use_target": False, "alignment_weight": 0.0},
    "8 hard pairs": {"soft_label_fraction": 0.0, "pseudo_label_weight": 0.0},
    "9 temperature 1": {"logit_scale": 1.0},
    "10 random initialization": {"rotation_trials": 0},
    "10 initialization only (1 step)": {"steps": 1, "ema_decay": 0.0},
    "12 no weight average": {"ema_decay": 0.0},
    "squared inner product (THN-ip)": {"loss": "inner-product"},
    "THN-paper, 1,000 steps": {**PAPER, "steps": 1000},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="benchmark folder")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    benchmark, _ = load_benchmark_features(options.root, image_features("efficientnet-lite0"))
    splits = [build_split(benchmark, seed) for seed in range(options.seeds)]
    print("| variant | " + " | ".join(f"{b} bits I->T / T->I" for b in options.bits) + " |")
    print("|---|" + "---|" * len(options.bits))
    for name, settings in VARIANTS.items():
        cells = []
        for bits in options.bits:
            rows = []
            for seed, data in enumerate(splits):
                hasher = THN(**{**settings, "bits": bits, "seed": seed}).fit(data.training)
                rows.append(maps(score_directions(build_directions(hasher, data.test))))
            cells.append(mean_cell(rows))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
