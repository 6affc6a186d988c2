"""Does THN hold up where it is not tuned? Worlds drawn by formula, one row a case.

    python benchmarks/robustness.py                 # all cases, three seeds each
    python benchmarks/robustness.py --only classes  # those whose name contains a word

A world: class means and items in a shared latent space, each modality a random linear view of it
with private nuisance and noise; target items are shifted and warped, differently in each modality.
THN-D is THN without the unlabelled target items. MAP in expectation over ties.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from transhash.data.relation import LabelRelation, Relation, SparseRelation
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


class World:
    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.rng = case, np.random.default_rng([seed, 0xAB])
        self.means = self.rng.standard_normal((case.classes, LATENT))
        self.views = [self.rng.standard_normal((LATENT, d)) for d in (300, 400)]
        self.private = [self.rng.standard_normal((NUISANCE, d)) for d in (300, 400)]
        self.warps = [self.rng.standard_normal((LATENT, LATENT)) / LATENT**0.5 for _ in range(2)]
        ways = [self.rng.standard_normal(LATENT) for _ in range(2)]
        self.shifts = [way / np.linalg.norm(way) * LATENT**0.5 for way in ways]

    def draw(self, n: int, view: int, target: bool) -> tuple[Array, npt.NDArray[np.int64]]:
        case, rng = self.case, self.rng
        labels = rng.integers(0, case.classes, n)
        if target and case.skewed[view]:
            few = rng.random(n) < 0.8
            labels[few] = rng.integers(0, min(4, case.classes), int(few.sum()))
        latent = self.means[labels] + 0.9 * rng.standard_normal((n, LATENT))
        return self.seen(latent, view, target), labels

    def seen(self, latent: Array, view: int, target: bool) -> Array:
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
            x, y = self.seen(latent, 0, False), self.seen(latent, 1, False)
            keys = [str(i) for i in range(n)]
            relation = SparseRelation.from_pairs(keys, keys)
        else:
            (x, of_x), (y, of_y) = self.draw(n, 0, False), self.draw(n, 1, False)
            relation = LabelRelation(self.one_hot(of_x), self.one_hot(of_y))
        t_x, t_y = (self.draw(TARGET, view, True)[0] for view in (0, 1))
        return TrainingSet(
            x.astype(np.float32), y.astype(np.float32), relation, t_x.astype(np.float32),
            t_y.astype(np.float32),
        )  # fmt: skip

    def one_hot(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.eye(self.case.classes, dtype=bool)[labels]


def run(case: Case, method: str, seed: int) -> tuple[float, float, float, int]:
    """MAP both ways, seconds to fit, distinct image codes in the database."""
    world = World(case, seed)
    training = world.training()
    sets = [world.draw(n, view, True) for view in (0, 1) for n in (QUERIES, DATABASE)]
    start = time.perf_counter()
    hasher = make_hasher(method, bits=case.bits, seed=seed).fit(training)
    seconds = time.perf_counter() - start
    for alarm in getattr(hasher, "alarms_", []):
        print(f"  ALARM {case.name}, {method}, seed {seed}: {alarm}")
    q_x, d_x = (hasher.encode_images(x.astype(np.float32)) for x, _ in sets[:2])
    q_y, d_y = (hasher.encode_texts(y.astype(np.float32)) for y, _ in sets[2:])
    labels = [world.one_hot(part) for _, part in sets]
    there = evaluate(q_x, d_y, labels[0], labels[3]).map
    back = evaluate(q_y, d_x, labels[2], labels[1]).map
    return there, back, seconds, d_x.distinct()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a word of the case's name")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("| case | THN I->T / T->I | THN-D | THN - THN-D | distinct codes | s a fit |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if arguments.only not in case.name:
            continue
        found = {
            method: np.array([run(case, method, seed) for seed in range(arguments.seeds)])
            for method in case.methods
        }
        ours, without = found["THN"], found["THN-D"]
        gain = 100 * (ours[:, :2].mean(axis=1) - without[:, :2].mean(axis=1))
        print(
            f"| {case.name} | {_cell(ours)} | {_cell(without)} | {gain.mean():+.1f} ± "
            f"{gain.std(ddof=1) if len(gain) > 1 else 0:.1f} | {ours[:, 3].min():.0f} "
            f"| {ours[:, 2].mean():.1f} |",
            flush=True,
        )


def _cell(rows: Array) -> str:
    mean, spread = rows.mean(axis=0), rows.std(axis=0, ddof=1) if len(rows) > 1 else rows[0] * 0
    return f"{mean[0]:.3f} ± {spread[0]:.3f} / {mean[1]:.3f} ± {spread[1]:.3f}"


if __name__ == "__main__":
    main()
