"""How well criteria without target labels order settings that are known to differ.

    python benchmarks/unsupervised_criterion.py FOLDER --splits 0 1 2 --jobs 2 --out runs/criterion

For each setting: MAP of the target, which labels are needed for, and what can be had without them:

- held-out: MAP on held-out auxiliary items, which settings are chosen by so far;
- round trip: held-out auxiliary image -> target images -> target texts -> auxiliary text and back,
  each step a soft match of codes, scored by MAP against the relation of the two ends;
- reverse: the same with both outer steps by frozen features, each domain around its own mean: the
  target's relations, as guessed, teach the auxiliary ones;
- neighbours: whether codes of target items keep the ten nearest by frozen features together, MAP;
- density: entropy of soft matches among target items of a kind (Saito et al., 2021);
- information: what a target image tells of the target text matched with it, in nats.

Printed: Spearman's rank correlation of each with the target's MAP (mean of both ways) over the
settings of THN and over all methods, each split by itself, then the mean; and what choosing by it
costs against the best of the settings.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse as sp
from scipy.stats import rankdata, spearmanr

from transhash.codes import Codes
from transhash.data.relation import SparseRelation
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.evaluation import score_tie_groups
from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.base import Hasher
from transhash.hashers.thn.transfer import soft_match
from transhash.hashers.tuning import held_out_map, map_both_directions, mean_map
from transhash.progress import progress_bar
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.split_data import SplitData, build_split, load_benchmark_features

Signs = npt.NDArray[np.float32]
_TEMPERATURE = 0.1  # of a step of the round trip, cosines of codes
_NEAR = 0.05  # of matches by features, and of density
_NEAREST = 10
TOGETHER = (  # by the mean of their ranks
    ("round trip", "information"),
    ("round trip", "neighbours", "information"),
)
CRITERIA = ("held-out", "round trip", "reverse", "neighbours", "density", "information")

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("THN", {}),
    *[("THN", {"rank": rank}) for rank in (6, 12, 24, 48)],
    *[("THN", {"ridge": ridge}) for ridge in (0.005, 0.02, 0.2, 0.5)],
    *[("THN", {"matching_rounds": rounds}) for rounds in (0, 1, 8)],
    *[("THN", {"matching_temperature": tau}) for tau in (0.02, 0.1, 0.3)],
    *[("THN", {"target_centering": kappa}) for kappa in (0.0, 1.0)],
    ("THN", {"use_target": False, "alignment_weight": 0.0}),
    ("THN", {"alignment_weight": 10.0}),
    ("THN", {"quantization_weight": 0.1}),
    ("THN", {"soft_label_fraction": 0.0}),
    ("THN", {"pseudo_label_weight": 0.0}),
    ("THN", {"pseudo_label_weight": 4.0}),
    ("THN", {"learning_rate": 0.03}),
    ("THN", {"steps": 0}),
    ("THN-paper-network", {}),
    ("CVH", {}),
    ("QCH", {}),
    ("QCH", {"rank_threshold": 0.2}),
    ("QCH", {"ridge": 0.3}),
    ("CVH+target", {}),
    ("QCH+target", {}),
    ("QCH+target", {"ridge": 0.3}),
]


def unlabelled(
    hasher: Hasher,
    training: TrainingSet,
    held_out: AuxiliarySet,
    reference: TrainingSet,
    held_out_frozen: AuxiliarySet | None = None,
) -> dict[str, float]:
    """What a fitted hasher scores by each criterion; `reference` has the frozen features."""
    assert training.target_images is not None
    assert training.target_texts is not None
    x, y = (_signs(z) for z in hasher.project_auxiliary(held_out.images, held_out.texts))
    target_x = _signs(hasher.project_images(training.target_images))
    target_y = _signs(hasher.project_texts(training.target_texts))
    assert reference.target_images is not None
    assert reference.target_texts is not None
    match = soft_match(target_x, target_y, _TEMPERATURE)
    frozen = (held_out.images, reference.target_images), (held_out.texts, reference.target_texts)
    if held_out_frozen is not None:
        frozen = (held_out_frozen.images, frozen[0][1]), frozen[1]
    outer = [_by_features(*side) for side in frozen]
    return {
        "held-out": float(np.mean(held_out_map(hasher, held_out))),
        "round trip": _both_ways(
            _way(x, target_x, target_y, y), _way(y, target_y, target_x, x), held_out
        ),
        "reverse": _both_ways(
            outer[0][0] @ match @ outer[1][1],
            outer[1][0] @ soft_match(target_y, target_x, _TEMPERATURE) @ outer[0][1],
            held_out,
        ),
        "neighbours": (
            _neighbours(target_x, reference.target_images)
            + _neighbours(target_y, reference.target_texts)
        ) / 2,
        "density": (_density(target_x) + _density(target_y)) / 2,
        "information": _entropy(match.mean(axis=0)) - _entropy(match),
    }  # fmt: skip


def _signs(projections: npt.NDArray[Any]) -> Signs:
    return np.where(projections > 0, np.float32(1), np.float32(-1))


def _way(*steps: Signs) -> npt.NDArray[Any]:
    found = np.eye(len(steps[0]))
    for one, other in pairwise(steps):
        found = found @ soft_match(one, other, _TEMPERATURE)
    return found


def _by_features(own: Features, target: Features) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Soft matches auxiliary -> target and back, by rows around the mean of each domain."""
    x, y = own - own.mean(axis=0), target - target.mean(axis=0)
    return soft_match(x, y, _NEAR), soft_match(y, x, _NEAR)


def _both_ways(there: npt.NDArray[Any], back: npt.NDArray[Any], held_out: AuxiliarySet) -> float:
    blocks = score_tie_groups(lambda rows: there[rows], held_out.relation)
    more = score_tie_groups(lambda rows: back[rows], held_out.relation, from_texts=True)
    return float(np.mean([mean_map(blocks), mean_map(more)]))


def _density(codes: Signs) -> float:
    cosine = codes @ codes.T / codes.shape[1]
    np.fill_diagonal(cosine, -np.inf)
    weights = np.exp((cosine - cosine.max(axis=1, keepdims=True)) / _NEAR)
    return _entropy(weights / weights.sum(axis=1, keepdims=True))


def _entropy(shares: npt.NDArray[Any]) -> float:
    return float(-(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=-1).mean())


def _neighbours(codes: Signs, features: Features) -> float:
    rows = features - features.mean(axis=0)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    like = rows @ rows.T
    np.fill_diagonal(like, -np.inf)
    nearest = np.argsort(-like, axis=1, kind="stable")[:, :_NEAREST]
    similar = np.zeros(like.shape, np.float32)
    np.put_along_axis(similar, nearest, 1.0, axis=1)
    others = 1 - np.eye(len(rows), dtype=np.float32)  # an item is no neighbour of its own
    relation = SparseRelation(sp.csr_array(similar), sp.csr_array(others))
    packed = Codes.from_projections(codes)
    return map_both_directions(packed, packed, relation)[0]


@dataclass(frozen=True)
class Trial:
    """A setting on a split, by labels or pairs."""

    split: int
    relation: str
    method: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        said = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.method} {said}".strip()


def scored(trial: Trial, task: SplitData) -> dict[str, Any]:
    hasher = make_hasher(trial.method, bits=32, seed=trial.split, **trial.settings)
    hasher.fit(task.training)
    scores = score_directions(directions_of(hasher, task.target), 1)
    ways = [scores[way].map for way in ("image_to_text", "text_to_image")]
    found = unlabelled(hasher, task.training, task.held_out, task.training)
    return {"setting": str(trial), "split": trial.split, "relation": trial.relation,
            "method": trial.method, "map": ways, **found}  # fmt: skip


_tasks: dict[tuple[int, str], SplitData] = {}


def _start(tasks: dict[tuple[int, str], SplitData]) -> None:
    _tasks.update(tasks)


def _work(trial: Trial) -> dict[str, Any]:
    return scored(trial, _tasks[trial.split, trial.relation])


def report(rows: list[dict[str, Any]]) -> None:
    """Rank correlations and what a choice costs, each split by itself, then the mean."""
    print("| relation | settings of | criterion | Spearman | chosen, points below the best |")
    print("|---|---|---|---|---|")
    for relation in dict.fromkeys(row["relation"] for row in rows):
        for who in ("THN", "all"):
            chosen = [
                row for row in rows
                if row["relation"] == relation and (who == "all" or row["method"] == "THN")
            ]  # fmt: skip
            told: dict[str, list[tuple[float, float]]] = {}
            for split in dict.fromkeys(row["split"] for row in chosen):
                some = [row for row in chosen if row["split"] == split]
                right = np.array([np.mean(row["map"]) for row in some])
                by = {name: np.array([row[name] for row in some]) for name in CRITERIA}
                for names in TOGETHER:
                    by[" + ".join(names)] = np.sum([rankdata(by[name]) for name in names], axis=0)
                for name, values in by.items():
                    lost = 100 * (right.max() - right[values.argmax()])
                    told.setdefault(name, []).append((spearmanr(values, right).statistic, lost))
            for name, each in told.items():
                mean, spread = np.mean(each, axis=0), np.std(each, axis=0, ddof=1)
                print(
                    f"| {relation} | {who} | {name} | {mean[0]:.2f} ± {spread[0]:.2f} "
                    f"| {mean[1]:.1f} ± {spread[1]:.1f} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--relations", nargs="+", default=["labels", "pairs"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    ready, _ = load_benchmark_features(arguments.folder, EfficientNetLite0(), track=progress_bar)
    tasks = {
        (split, relation): build_split(replace(ready, supervision=relation), split)
        for split in arguments.splits
        for relation in arguments.relations
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / "criterion.json"  # a run that was stopped goes on from there
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    done = {(row["setting"], row["split"], row["relation"]) for row in rows}
    trials = [
        trial
        for setting in SETTINGS
        for about in tasks
        if (str(trial := Trial(*about, *setting)), *about) not in done
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, spawn, _start, (tasks,)) as pool:
        for row in progress_bar(pool.map(_work, trials), "settings", total=len(trials)):
            rows.append(row)
            kept.write_text(json.dumps(rows, indent=1))
    for row in rows:
        print(row["split"], row["relation"], row["setting"], np.round(row["map"], 3),
              [round(row[name], 4) for name in CRITERIA])  # fmt: skip
    report(rows)


if __name__ == "__main__":
    main()
