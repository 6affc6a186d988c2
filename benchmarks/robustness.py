"""Measure how robust THN is, on random data with known properties.

    python benchmarks/robustness.py                 # all cases, three seeds each
    python benchmarks/robustness.py --only classes  # cases whose name contains a word

Items lie around class means in a shared latent space. Each modality is a random linear view of it
with nuisance dimensions and noise; target items are shifted and warped, differently per modality.
THN-D is THN without the unlabeled target items. MAP in expectation over ties.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from common import mean_cell, row_pairs

from transhash.data.relation import LabelRelation, Relation
from transhash.data.training_set import TrainingSet
from transhash.evaluation import evaluate
from transhash.hashers import make_hasher

Array = npt.NDArray[np.float64]
LATENT, NUISANCE, QUERIES, DATABASE, TARGET = 24, 40, 300, 2000, 500


@dataclass
class Case:
    name: str
    bits: int = 32
    classes: int = 16
    auxiliary: int = 2000
    shift: float = 1.0
    warp: float = 0.2
    skewed: tuple[bool, bool] = (False, False)  # 80% of target images, texts on 4 classes
    pairs: bool = False
    methods: tuple[str, ...] = field(default=("THN", "THN-D"))


CASES = [
    Case("plain"),
    *(Case(f"bits {bits}", bits=bits) for bits in (8, 64, 128)),
    *(Case(f"classes {n}", classes=n) for n in (2, 5, 40, 80)),
    Case("positive rate 0.5% (200 classes)", classes=200, auxiliary=4000),
    *(Case(f"auxiliary {n:,}", auxiliary=n) for n in (100, 500, 50_000)),
    Case("pairs only, no labels", pairs=True),
    Case("no gap", shift=0.0, warp=0.0),
    Case("strong gap", shift=2.0),
    Case("target 80% on 4 classes", skewed=(True, True)),
    Case("target images 80% on 4 classes", skewed=(True, False)),
    Case("80% on 4 classes and no gap", skewed=(True, True), shift=0.0, warp=0.0),
]


class RandomData:
    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.rng = case, np.random.default_rng([seed, 0xAB])
        self.means = self.rng.standard_normal((case.classes, LATENT))
        self.views = [self.rng.standard_normal((LATENT, d)) for d in (300, 400)]
        self.private = [self.rng.standard_normal((NUISANCE, d)) for d in (300, 400)]
        self.warps = [self.rng.standard_normal((LATENT, LATENT)) / LATENT**0.5 for _ in range(2)]
        axes = [self.rng.standard_normal(LATENT) for _ in range(2)]
        self.shifts = [axis / np.linalg.norm(axis) * LATENT**0.5 for axis in axes]

    def draw(self, n: int, view: int, target: bool) -> tuple[Array, npt.NDArray[np.int64]]:
        case, rng = self.case, self.rng
        labels = rng.integers(0, case.classes, n)
        if target and case.skewed[view]:
            skewed = rng.random(n) < 0.8
            labels[skewed] = rng.integers(0, min(4, case.classes), int(skewed.sum()))
        latent = self.means[labels] + 0.9 * rng.standard_normal((n, LATENT))
        return self.observe(latent, view, target), labels

    def observe(self, latent: Array, view: int, target: bool) -> Array:
        if target:
            latent = latent + self.case.warp * latent @ self.warps[view]
            latent = latent + self.case.shift * self.shifts[view]
        noise = self.rng.standard_normal((len(latent), NUISANCE)) @ self.private[view]
        rest = 0.5 * self.rng.standard_normal((len(latent), self.views[view].shape[1]))
        return np.asarray(latent @ self.views[view] + noise + rest)

    def training(self) -> TrainingSet:
        n = self.case.auxiliary
        relation: Relation
        if self.case.pairs:
            labels = self.rng.integers(0, self.case.classes, n)
            latent = self.means[labels] + 0.9 * self.rng.standard_normal((n, LATENT))
            x, y = self.observe(latent, 0, False), self.observe(latent, 1, False)
            relation = row_pairs(n)
        else:
            (x, x_labels), (y, y_labels) = self.draw(n, 0, False), self.draw(n, 1, False)
            relation = LabelRelation(self.one_hot(x_labels), self.one_hot(y_labels))
        t_x, t_y = (self.draw(TARGET, view, True)[0] for view in (0, 1))
        return TrainingSet(
            x.astype(np.float32), y.astype(np.float32), relation, t_x.astype(np.float32),
            t_y.astype(np.float32),
        )  # fmt: skip

    def one_hot(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.eye(self.case.classes, dtype=bool)[labels]


def run(case: Case, method: str, seed: int) -> tuple[float, float, float, int]:
    """Return MAP of both directions, seconds to fit, and distinct image codes in the database."""
    data = RandomData(case, seed)
    training = data.training()
    sets = [data.draw(n, view, True) for view in (0, 1) for n in (QUERIES, DATABASE)]
    start = time.perf_counter()
    hasher = make_hasher(method, bits=case.bits, seed=seed).fit(training)
    seconds = time.perf_counter() - start
    for warning in getattr(hasher, "warnings_", []):
        print(f"  WARNING {case.name}, {method}, seed {seed}: {warning}")
    q_x, d_x = (hasher.encode_images(x.astype(np.float32)) for x, _ in sets[:2])
    q_y, d_y = (hasher.encode_texts(y.astype(np.float32)) for y, _ in sets[2:])
    labels = [data.one_hot(part) for _, part in sets]
    image_to_text = evaluate(q_x, d_y, labels[0], labels[3]).map
    text_to_image = evaluate(q_y, d_x, labels[2], labels[1]).map
    return image_to_text, text_to_image, seconds, d_x.distinct()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| case | THN I->T / T->I | THN-D | THN - THN-D | distinct codes | s per fit |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if options.only not in case.name:
            continue
        results = {
            method: np.array([run(case, method, seed) for seed in range(options.seeds)])
            for method in case.methods
        }
        thn, thn_d = results["THN"], results["THN-D"]
        gain = 100 * (thn[:, :2].mean(axis=1) - thn_d[:, :2].mean(axis=1))
        deviation = gain.std(ddof=1) if len(gain) > 1 else 0
        cells = [mean_cell(rows[:, :2].tolist()) for rows in (thn, thn_d)]
        print(
            f"| {case.name} | {cells[0]} | {cells[1]} | {gain.mean():+.1f} ± {deviation:.1f} "
            f"| {thn[:, 3].min():.0f} | {thn[:, 2].mean():.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
