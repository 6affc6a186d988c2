"""One cell: choose the settings on held-out auxiliary data, fit, encode, score, describe."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from transhash import __version__
from transhash.codes import Codes
from transhash.experiments.plan import Cell
from transhash.hashers import Hasher, make_hasher
from transhash.hashers.base import Setting
from transhash.hashers.tuning import Trial, held_out_map, tune
from transhash.progress import Track, silent
from transhash.runs.task import Task, TaskCodes, encode_task, score_task


def run_cell(
    cell: Cell,
    task: Task,
    settings: Setting,
    trials: int,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    track: Track = silent,
) -> dict[str, Any]:
    """Everything a row of results.jsonl says about the cell itself.

    `folder` keeps the losses of a deep method's fit; `workers` bounds the threads of scoring.
    """
    hasher = make_hasher(cell.method, bits=cell.bits, seed=cell.seed, **settings)
    fitted, chosen = _fit(hasher, task, trials, folder, track)
    return {**describe(cell, fitted, task, workers), **chosen}


def describe(cell: Cell, fitted: Hasher, task: Task, workers: int | None = None) -> dict[str, Any]:
    """Scores, codes and settings of a fitted hasher, as a row of results.jsonl has them."""
    start = time.perf_counter()
    codes = encode_task(fitted, task)
    encode_seconds = time.perf_counter() - start
    scores = score_task(codes, task, workers=workers)
    return {
        "method": cell.method,
        "bits": cell.bits,
        "seed": cell.seed,
        "image_to_text_map": scores["image_to_text"]["map"],
        "text_to_image_map": scores["text_to_image"]["map"],
        "image_to_text_chance": scores["image_to_text"]["chance"],
        "text_to_image_chance": scores["text_to_image"]["chance"],
        "encode_seconds": round(encode_seconds, 4),
        **_health(codes),
        # MMD² before and after training, of methods that align domains.
        "mmd": _plain(getattr(fitted, "alignment_", None)),
        "alarms": list(getattr(fitted, "alarms_", [])),  # a collapse, and what was done about it
        "settings": _plain(fitted.settings()),
        "image_to_text": _plain(scores["image_to_text"]),
        "text_to_image": _plain(scores["text_to_image"]),
        "items": _items(task),
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _fit(
    hasher: Hasher, task: Task, trials: int, folder: Path | None, track: Track
) -> tuple[Hasher, dict[str, Any]]:
    """The fitted hasher and how it was come by. No target label is within reach here."""
    start = time.perf_counter()
    if not trials:
        fitted = hasher.fit(task.training, folder=folder, track=track)
        seconds = time.perf_counter() - start
        score = (
            held_out_map(fitted, task.held_out) if task.held_out.relation.positives else (None,) * 2
        )
        return fitted, {
            "held_out_map": _plain(list(score)),
            "training_seconds": round(seconds, 4),
            "tuning_seconds": 0.0,
            "chosen_trial": None,
            "trials": [],
        }
    held_out = task.held_out if task.held_out.relation.positives else None
    fitted, tried = tune(hasher, task.training, held_out, trials=trials, track=track)
    best = max(range(len(tried)), key=lambda i: tried[i].score)  # the first of equals, as `tune`
    return fitted, {
        "held_out_map": [round(tried[best].image_to_text, 6), round(tried[best].text_to_image, 6)],
        "training_seconds": round(tried[best].seconds, 4),
        "tuning_seconds": round(time.perf_counter() - start, 4),
        "chosen_trial": best,
        "trials": [_trial(trial, hasher.settings()) for trial in tried],
    }


def _trial(trial: Trial, base: Setting) -> dict[str, Any]:
    """What it changed, and how it did."""
    changed = {name: value for name, value in trial.settings.items() if base[name] != value}
    return {"changed": _plain(changed), "held_out_map": round(trial.score, 6)}


def _health(codes: TaskCodes) -> dict[str, Any]:
    """Collapsed codes show here: few distinct ones, or bits that never change."""
    images = Codes.concatenate([codes.query_images, codes.database_images])
    texts = Codes.concatenate([codes.query_texts, codes.database_texts])
    balance = [share for part in (images, texts) for share in part.bit_balance()]
    return {
        "distinct_codes": {"images": images.distinct(), "texts": texts.distinct()},
        "bit_balance": [round(float(min(balance)), 4), round(float(max(balance)), 4)],
    }


def _items(task: Task) -> dict[str, int]:
    training = task.training
    return {
        "auxiliary_images": len(training.images),
        "auxiliary_texts": len(training.texts),
        "target_images": 0 if training.target_images is None else len(training.target_images),
        "target_texts": 0 if training.target_texts is None else len(training.target_texts),
        "query_images": len(task.query_images),
        "query_texts": len(task.query_texts),
        "database_images": len(task.database_images),
        "database_texts": len(task.database_texts),
    }


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
