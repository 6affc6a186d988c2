"""Measure how well criteria without target labels order settings of known quality.

    python benchmarks/unsupervised_criterion.py FOLDER --splits 0 1 2 --jobs 2 --out runs/criterion

For each setting: MAP of the target, which needs labels, and the criteria, which do not:

- held-out: MAP on held-out auxiliary items, which tuning uses;
- round trip: held-out auxiliary image -> target images -> target texts -> auxiliary text and back,
  each step a soft match of codes, scored by MAP against the relation of both ends;
- reverse: the same with both outer steps by centered frozen features, as if the predicted
  relations of the target trained the auxiliary items;
- neighbors: MAP of ranking the ten nearest target items by frozen features with codes;
- density: entropy of soft matches among target items of one modality (Saito et al., 2021);
- information: mutual information of target images and soft-matched target texts, in nats.

Prints Spearman's rank correlation of each criterion with the mean MAP of the target, over the
settings of THN and over all methods, and the loss in MAP of choosing by it. Both are computed per
split, then averaged.
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
from common import maps
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
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.split_data import SplitData, build_split, load_benchmark_features

Signs = npt.NDArray[np.float32]
_CODE_TEMPERATURE = 0.1  # of soft matches of codes
_FEATURE_TEMPERATURE = 0.05  # of soft matches of features, and of density
_NEIGHBORS = 10
COMBINATIONS = (  # by the mean of their ranks
    ("round trip", "information"),
    ("round trip", "neighbors", "information"),
)
CRITERIA = ("held-out", "round trip", "reverse", "neighbors", "density", "information")

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


def score_criteria(
    hasher: Hasher,
    training: TrainingSet,
    held_out: AuxiliarySet,
    frozen: TrainingSet,
    frozen_held_out: AuxiliarySet,
) -> dict[str, float]:
    """Score a fitted hasher by each criterion; the last two arguments have frozen features."""
    assert training.target_images is not None
    assert training.target_texts is not None
    assert frozen.target_images is not None
    assert frozen.target_texts is not None
    x, y = (_signs(z) for z in hasher.project_auxiliary(held_out.images, held_out.texts))
    target_x = _signs(hasher.project_images(training.target_images))
    target_y = _signs(hasher.project_texts(training.target_texts))
    match = soft_match(target_x, target_y, _CODE_TEMPERATURE)
    match_back = soft_match(target_y, target_x, _CODE_TEMPERATURE)
    to_images, from_images = _match_features(frozen_held_out.images, frozen.target_images)
    to_texts, from_texts = _match_features(held_out.texts, frozen.target_texts)
    neighbors = (
        _neighbor_map(target_x, frozen.target_images),
        _neighbor_map(target_y, frozen.target_texts),
    )
    return {
        "held-out": float(np.mean(held_out_map(hasher, held_out))),
        "round trip": _mean_map(
            _chain(x, target_x, target_y, y), _chain(y, target_y, target_x, x), held_out
        ),
        "reverse": _mean_map(
            to_images @ match @ from_texts, to_texts @ match_back @ from_images, held_out
        ),
        "neighbors": sum(neighbors) / 2,
        "density": (_density(target_x) + _density(target_y)) / 2,
        "information": _entropy(match.mean(axis=0)) - _entropy(match),
    }


def _signs(projections: npt.NDArray[Any]) -> Signs:
    return np.where(projections > 0, np.float32(1), np.float32(-1))


def _chain(*steps: Signs) -> npt.NDArray[Any]:
    result = np.eye(len(steps[0]))
    for a, b in pairwise(steps):
        result = result @ soft_match(a, b, _CODE_TEMPERATURE)
    return result


def _match_features(
    auxiliary: Features, target: Features
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return soft matches auxiliary -> target and back, each domain centered."""
    x, y = auxiliary - auxiliary.mean(axis=0), target - target.mean(axis=0)
    return soft_match(x, y, _FEATURE_TEMPERATURE), soft_match(y, x, _FEATURE_TEMPERATURE)


def _mean_map(
    image_scores: npt.NDArray[Any], text_scores: npt.NDArray[Any], held_out: AuxiliarySet
) -> float:
    by_image = score_tie_groups(lambda rows: image_scores[rows], held_out.relation)
    by_text = score_tie_groups(lambda rows: text_scores[rows], held_out.relation, from_texts=True)
    return float(np.mean([mean_map(by_image), mean_map(by_text)]))


def _density(codes: Signs) -> float:
    cosine = codes @ codes.T / codes.shape[1]
    np.fill_diagonal(cosine, -np.inf)
    weights = np.exp((cosine - cosine.max(axis=1, keepdims=True)) / _FEATURE_TEMPERATURE)
    return _entropy(weights / weights.sum(axis=1, keepdims=True))


def _entropy(probabilities: npt.NDArray[Any]) -> float:
    logs = np.log(np.maximum(probabilities, 1e-12))
    return float(-(probabilities * logs).sum(axis=-1).mean())


def _neighbor_map(codes: Signs, features: Features) -> float:
    rows = features - features.mean(axis=0)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    cosine = rows @ rows.T
    np.fill_diagonal(cosine, -np.inf)
    nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :_NEIGHBORS]
    similar = np.zeros(cosine.shape, np.float32)
    np.put_along_axis(similar, nearest, 1.0, axis=1)
    known = 1 - np.eye(len(rows), dtype=np.float32)  # an item is not its own neighbor
    relation = SparseRelation(sp.csr_array(similar), sp.csr_array(known))
    packed = Codes.from_projections(codes)
    return map_both_directions(packed, packed, relation)[0]


@dataclass(frozen=True)
class Trial:
    """A setting on a split."""

    split: int
    supervision: str
    method: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.method} {settings}".strip()


_splits: dict[tuple[int, str], SplitData] = {}  # of a worker process


def _init_worker(splits: dict[tuple[int, str], SplitData]) -> None:
    _splits.update(splits)


def run_trial(trial: Trial) -> dict[str, Any]:
    split = _splits[trial.split, trial.supervision]
    hasher = make_hasher(trial.method, bits=32, seed=trial.split, **trial.settings)
    hasher.fit(split.training)
    scores = score_directions(build_directions(hasher, split.test), 1)
    return {
        "setting": str(trial),
        "split": trial.split,
        "supervision": trial.supervision,
        "method": trial.method,
        "map": maps(scores),
        **score_criteria(hasher, split.training, split.held_out, split.training, split.held_out),
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| supervision | settings of | criterion | Spearman | points below the best setting |")
    print("|---|---|---|---|---|")
    for supervision in dict.fromkeys(row["supervision"] for row in rows):
        for group in ("THN", "all"):
            chosen = [
                row for row in rows
                if row["supervision"] == supervision and (group == "all" or row["method"] == group)
            ]  # fmt: skip
            results: dict[str, list[tuple[float, float]]] = {}
            for split in dict.fromkeys(row["split"] for row in chosen):
                part = [row for row in chosen if row["split"] == split]
                mean = np.array([np.mean(row["map"]) for row in part])
                values = {name: np.array([row[name] for row in part]) for name in CRITERIA}
                for names in COMBINATIONS:
                    ranks = [rankdata(values[name]) for name in names]
                    values[" + ".join(names)] = np.sum(ranks, axis=0)
                for name, criterion in values.items():
                    loss = 100 * (mean.max() - mean[criterion.argmax()])
                    correlation = spearmanr(criterion, mean).statistic
                    results.setdefault(name, []).append((correlation, loss))
            for name, pairs in results.items():
                m, d = np.mean(pairs, axis=0), np.std(pairs, axis=0, ddof=1)
                print(
                    f"| {supervision} | {group} | {name} | {m[0]:.2f} ± {d[0]:.2f} "
                    f"| {m[1]:.1f} ± {d[1]:.1f} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--supervision", nargs="+", default=["labels", "pairs"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    benchmark, _ = load_benchmark_features(options.folder, EfficientNetLite0(), track=progress_bar)
    splits = {
        (split, supervision): build_split(replace(benchmark, supervision=supervision), split)
        for split in options.splits
        for supervision in options.supervision
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "criterion.json"  # an interrupted run resumes from it
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    finished = {(row["setting"], row["split"], row["supervision"]) for row in rows}
    trials = [Trial(*key, *setting) for setting in SETTINGS for key in splits]
    trials = [t for t in trials if (str(t), t.split, t.supervision) not in finished]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, _init_worker, (splits,)) as pool:
        for row in progress_bar(pool.map(run_trial, trials), "settings", total=len(trials)):
            rows.append(row)
            path.write_text(json.dumps(rows, indent=1))
    for row in rows:
        print(row["split"], row["supervision"], row["setting"], np.round(row["map"], 3),
              [round(row[name], 4) for name in CRITERIA])  # fmt: skip
    print_table(rows)


if __name__ == "__main__":
    main()
