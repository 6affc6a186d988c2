"""One cell: tune on held-out auxiliary data, fit, encode, score and describe."""

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
from transhash.scoring import Direction, ScoredDirection, build_directions, score_directions
from transhash.training.split_data import SplitData


def run_cell(
    cell: Cell,
    split: SplitData,
    settings: Setting,
    trials: int,
    *,
    folder: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Fit and score a method; return its row of results.jsonl.

    Deep methods write their losses to `folder`. `workers` limits the threads of scoring.
    """
    method = make_method(cell.method, bits=cell.bits, seed=cell.seed, **settings)
    fitted, record = _fit(method, split, trials, folder)
    return {**describe_cell(cell, fitted, split, workers), **record}


def describe_cell(
    cell: Cell, fitted: Hasher | Scorer, split: SplitData, workers: int | None = None
) -> dict[str, Any]:
    """Return scores, codes and settings of a fitted method."""
    start = time.perf_counter()
    directions = build_directions(fitted, split.test)
    encode_seconds = time.perf_counter() - start
    scores = score_directions(directions, workers)
    forward, backward = scores["image_to_text"], scores["text_to_image"]
    return {
        **asdict(cell),
        "image_to_text_map": forward.map,
        "text_to_image_map": backward.map,
        "image_to_text_chance": forward.chance,
        "text_to_image_chance": backward.chance,
        "encode_seconds": round(encode_seconds, 4),
        **_code_statistics(directions),
        # MMD² before and after training, of methods that align domains.
        "mmd": _to_json(getattr(fitted, "alignment_", None)),
        "warnings": list(getattr(fitted, "warnings_", [])),
        "settings": _to_json(fitted.settings()),
        "image_to_text": _to_json(forward.to_dict()),
        "text_to_image": _to_json(backward.to_dict()),
        "text_features": split.text_features.name,
        "items": _count_items(split),
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _fit(
    method: Hasher | Scorer, split: SplitData, trials: int, folder: Path | None
) -> tuple[Hasher | Scorer, dict[str, Any]]:
    """Return the fitted method and a record of its training; neither uses target labels."""
    start = time.perf_counter()
    if not trials:
        fitted = method.fit(split.training, folder=folder)
        return fitted, training_record(fitted, split, time.perf_counter() - start)
    held_out = split.held_out if split.held_out.relation.positives else None
    fitted, results = tune(method, split.training, held_out, trials=trials)
    number = max(range(len(results)), key=lambda i: results[i].score)  # first of equals, as `tune`
    best = results[number]
    return fitted, {
        "held_out_map": [round(best.image_to_text, 6), round(best.text_to_image, 6)],
        "training_seconds": round(best.seconds, 4),
        "tuning_seconds": round(time.perf_counter() - start, 4),
        "chosen_trial": number,
        "trials": [_describe_trial(trial, method.settings()) for trial in results],
    }


def training_record(fitted: Hasher | Scorer, split: SplitData, seconds: float) -> dict[str, Any]:
    """Return the record of a method that was fitted once, without tuning."""
    related = split.held_out.relation.positives
    return {
        "held_out_map": _to_json(held_out_map(fitted, split.held_out) if related else [None] * 2),
        "training_seconds": round(seconds, 4),
        "tuning_seconds": 0.0,
        "chosen_trial": None,
        "trials": [],
    }


def _describe_trial(trial: Trial, base: Setting) -> dict[str, Any]:
    changed = {name: value for name, value in trial.settings.items() if base[name] != value}
    return {"changed": _to_json(changed), "held_out_map": round(trial.score, 6)}


def _code_statistics(
    directions: Mapping[str, Direction] | Mapping[str, ScoredDirection],
) -> dict[str, Any]:
    """Count distinct codes and measure bit balance, which show collapsed codes."""
    forward, backward = directions["image_to_text"], directions["text_to_image"]
    if not isinstance(forward, Direction) or not isinstance(backward, Direction):
        return {"distinct_codes": None, "bit_balance": None}  # a method without codes
    images = Codes.concatenate([forward.queries, backward.database])
    texts = Codes.concatenate([backward.queries, forward.database])
    balance = [share for codes in (images, texts) for share in codes.bit_balance()]
    return {
        "distinct_codes": {"images": images.distinct(), "texts": texts.distinct()},
        "bit_balance": [round(float(min(balance)), 4), round(float(max(balance)), 4)],
    }


def _count_items(split: SplitData) -> dict[str, int]:
    training, test = split.training, split.test
    parts = {
        "auxiliary_images": training.images,
        "auxiliary_texts": training.texts,
        "target_images": training.target_images,
        "target_texts": training.target_texts,
        "query_images": test.query_images.labels,
        "query_texts": test.query_texts.labels,
        "database_images": test.database_images.labels,
        "database_texts": test.database_texts.labels,
    }
    return {name: 0 if part is None else len(part) for name, part in parts.items()}


def _to_json(value: Any) -> Any:
    """Convert to JSON types, with six decimals and null for NaN."""
    if hasattr(value, "__dataclass_fields__"):
        return _to_json(asdict(value))
    if isinstance(value, dict):
        return {str(name): _to_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    number = float(value)
    if not math.isfinite(number):
        return None
    return round(number, 6) if abs(number) >= 1e-3 else float(f"{number:.4g}")
