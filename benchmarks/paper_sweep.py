"""THN as printed, over λ, µ and the learning rate: does it learn anywhere?

    python benchmarks/paper_sweep.py FOLDER --splits 0 1 2

For each setting MAP on held-out auxiliary items, MAP of the target image -> text / text -> image,
and the distinct codes of the database. The paper chooses λ and the learning rate by cross-
validation; its own rule here is the best mean on held-out items. Chance beside it.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np

from transhash.features.image import EfficientNetLite0
from transhash.hashers import THN
from transhash.hashers.tuning import held_out_map
from transhash.progress import bar
from transhash.runs.score.directions import directions_of, score_directions
from transhash.runs.task import build_task, ready_benchmark

RATES = (1e-4, 1e-3, 1e-2, 1e-1)
QUANTIZATIONS = (0.0, 1e-4, 1e-2, 1.0)  # λ
ALIGNMENTS = (0.0, 1.0)  # µ


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--json", type=Path, help="where every split's scores go")
    arguments = parser.parse_args()
    ready, _ = ready_benchmark(arguments.folder, EfficientNetLite0(), track=bar)
    tasks = {seed: build_task(ready, seed) for seed in arguments.splits}
    settings = list(product(RATES, QUANTIZATIONS, ALIGNMENTS))
    found: dict[tuple[float, ...], list[list[float]]] = {}
    for setting, seed in bar(list(product(settings, tasks)), "fits"):
        rate, lam, mu = setting
        task = tasks[seed]
        hasher = THN.paper(
            bits=arguments.bits, seed=seed, learning_rate=rate, quantization_weight=lam,
            alignment_weight=mu,
        )  # fmt: skip
        hasher.fit(task.training)
        directions = directions_of(hasher, task.target)
        scores = score_directions(directions)
        codes = [directions[way].database.distinct() for way in ("text_to_image", "image_to_text")]
        ways = [scores[way].map for way in ("image_to_text", "text_to_image")]
        row = [float(np.mean(held_out_map(hasher, task.held_out))), *ways, *codes]
        found.setdefault(setting, []).append(row)
        if arguments.json:
            written = [[*key, rows] for key, rows in found.items()]
            arguments.json.write_text(json.dumps(written))
    print("| learning rate | λ | µ | held-out | I → T / T → I | distinct image, text codes |")
    print("|---|---|---|---|---|---|")
    for (rate, lam, mu), rows in sorted(found.items(), key=lambda one: -np.mean(one[1], axis=0)[0]):
        mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
        print(
            f"| {rate:g} | {lam:g} | {mu:g} | {mean[0]:.3f} ± {spread[0]:.3f} "
            f"| {mean[1]:.3f} ± {spread[1]:.3f} / {mean[2]:.3f} ± {spread[2]:.3f} "
            f"| {mean[3]:.0f}, {mean[4]:.0f} |"
        )
    chance = [
        [one.chance for one in score_directions(directions_of(hasher, task.target)).values()]
        for task in tasks.values()
    ]
    print(f"chance {np.mean(chance, axis=0).round(3)}")


if __name__ == "__main__":
    main()
