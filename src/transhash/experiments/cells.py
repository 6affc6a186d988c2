"""One cell: choose the settings on held-out auxiliary data, fit, encode, score, describe."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from transhash import __version__
from transhash.codes import Codes
from transhash.experiments.plan import Cell
from transhash.hashers import Hasher, make_method
from transhash.hashers.base import Scorer, Setting
from transhash.hashers.tuning import Trial, held_out_map, tune
from transhash.progress import Track, no_progress
from transhash.scoring import Direction, ScoredDirection, directions_of, score_directions
from transhash.training.split_data import SplitData


def run_cell(
    cell: Cell,
    task: SplitData,
    settings: Setting,
    trials: int,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    track: Track = no_progress,
) -> dict[str, Any]:
    """Everything a row of results.jsonl says about the cell itself.

    `folder` keeps the losses of a deep method's fit; `workers` bounds the threads of scoring.
    """
    method = make_method(cell.learner, bits=cell.bits, seed=cell.seed, **settings)
    fitted, chosen = _fit(method, task, trials, folder, track)
    return {**describe_cell(cell, fitted, task, workers), **chosen}


def describe_cell(
    cell: Cell, fitted: Hasher | Scorer, task: SplitData, workers: int | None = None
) -> dict[str, Any]:
    """Scores, codes and settings of a fitted method, as a row of results.jsonl has them."""
    start = time.perf_counter()
    directions = directions_of(fitted, task.target)
    encode_seconds = time.perf_counter() - start
    scores = score_directions(directions, workers)
    there, back = scores["image_to_text"], scores["text_to_image"]
    return {
        "method": cell.method,
        "bits": cell.bits,
        "seed": cell.seed,
        "image_to_text_map": there.map,
        "text_to_image_map": back.map,
        "image_to_text_chance": there.chance,
        "text_to_image_chance": back.chance,
        "encode_seconds": round(encode_seconds, 4),
        **_code_statistics(directions),
        # MMD² before and after training, of methods that align domains.
        "mmd": _plain(getattr(fitted, "alignment_", None)),
        "alarms": list(getattr(fitted, "alarms_", [])),  # a collapse, and what was done about it
        "settings": _plain(fitted.settings()),
        "image_to_text": _plain(there.to_dict()),
        "text_to_image": _plain(back.to_dict()),
        "text_features": task.text_features.name,
        "items": _items(task),
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _fit(
    method: Hasher | Scorer, task: SplitData, trials: int, folder: Path | None, track: Track
) -> tuple[Hasher | Scorer, dict[str, Any]]:
    """The fitted method and how it was come by. No target label is within reach here."""
    start = time.perf_counter()
    if not trials:
        fitted = method.fit(task.training, folder=folder, track=track)
        return fitted, training_record(fitted, task, time.perf_counter() - start)
    held_out = task.held_out if task.held_out.relation.positives else None
    fitted, tried = tune(method, task.training, held_out, trials=trials, track=track)
    best = max(range(len(tried)), key=lambda i: tried[i].score)  # the first of equals, as `tune`
    return fitted, {
        "held_out_map": [round(tried[best].image_to_text, 6), round(tried[best].text_to_image, 6)],
        "training_seconds": round(tried[best].seconds, 4),
        "tuning_seconds": round(time.perf_counter() - start, 4),
        "chosen_trial": best,
        "trials": [_trial(trial, method.settings()) for trial in tried],
    }


def training_record(fitted: Hasher | Scorer, task: SplitData, seconds: float) -> dict[str, Any]:
    """How a method was come by that was fitted once, with the settings it was given."""
    related = task.held_out.relation.positives
    return {
        "held_out_map": _plain(held_out_map(fitted, task.held_out) if related else [None] * 2),
        "training_seconds": round(seconds, 4),
        "tuning_seconds": 0.0,
        "chosen_trial": None,
        "trials": [],
    }


def _trial(trial: Trial, base: Setting) -> dict[str, Any]:
    """What it changed, and how it did."""
    changed = {name: value for name, value in trial.settings.items() if base[name] != value}
    return {"changed": _plain(changed), "held_out_map": round(trial.score, 6)}


def _code_statistics(
    directions: Mapping[str, Direction] | Mapping[str, ScoredDirection],
) -> dict[str, Any]:
    """Collapsed codes show here: few distinct ones, or bits that never change."""
    there, back = directions["image_to_text"], directions["text_to_image"]
    if not isinstance(there, Direction) or not isinstance(back, Direction):
        return {"distinct_codes": None, "bit_balance": None}  # of a method without codes
    images = Codes.concatenate([there.queries, back.database])
    texts = Codes.concatenate([back.queries, there.database])
    balance = [share for part in (images, texts) for share in part.bit_balance()]
    return {
        "distinct_codes": {"images": images.distinct(), "texts": texts.distinct()},
        "bit_balance": [round(float(min(balance)), 4), round(float(max(balance)), 4)],
    }


def _items(task: SplitData) -> dict[str, int]:
    training, target = task.training, task.target
    parts = {
        "auxiliary_images": training.images,
        "auxiliary_texts": training.texts,
        "target_images": training.target_images,
        "target_texts": training.target_texts,
        "query_images": target.query_images.labels,
        "query_texts": target.query_texts.labels,
        "database_images": target.database_images.labels,
        "database_texts": target.database_texts.labels,
    }
    return {name: 0 if part is None else len(part) for name, part in parts.items()}


def _plain(value: Any) -> Any:
    """For JSON: six decimals are beyond what any score means, and NaN has no place in it."""
    if hasattr(value, "__dataclass_fields__"):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    number = float(value)
    if not math.isfinite(number):
        return None
    return round(number, 6) if abs(number) >= 1e-3 else float(f"{number:.4g}")
