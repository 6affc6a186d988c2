"""What a fit tells of itself: report.json, and the map that the page draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.collection import Problem
from transhash.data.training_set import TrainingSet
from transhash.hashers import Hasher
from transhash.hashers.tuning import Trial
from transhash.model.encoder import Encoder
from transhash.model.files import PRECOMPUTED


def build_report(
    encoder: Encoder,
    training: TrainingSet,
    seconds: float,
    problems: Sequence[Problem] = (),
    trials: Sequence[Trial] = (),
) -> dict[str, Any]:
    """What a run is made of: data, settings, codes, alignment, alarms, skipped rows."""
    hasher = encoder.hasher
    some_x, some_y = training.images[:2000], training.texts[:2000]
    if training.target_images is not None:
        some_x = training.target_images[:2000]
    if training.target_texts is not None:
        some_y = training.target_texts[:2000]
    codes = Codes.concatenate([hasher.encode_images(some_x), hasher.encode_texts(some_y)])
    balance = codes.bit_balance()
    relation = training.relation
    return {
        "method": encoder.method,
        "bits": hasher.bits,
        "image_features": encoder.image_features.name if encoder.image_features else PRECOMPUTED,
        "text_features": encoder.text_features.name if encoder.text_features else PRECOMPUTED,
        "settings": hasher.settings(),
        "training_seconds": round(seconds, 2),
        "auxiliary": {
            "images": len(training.images),
            "texts": len(training.texts),
            "related_share": relation.positives / relation.known,
        },
        "target": {
            "images": _count(training.target_images),
            "texts": _count(training.target_texts),
        },
        "codes": {
            "items": len(codes),
            "distinct": codes.distinct(),
            "bit_balance": [round(float(balance.min()), 3), round(float(balance.max()), 3)],
        },
        "alignment": getattr(hasher, "alignment_", None),
        "alarms": getattr(hasher, "alarms_", []),
        "tuning": [
            {"score": round(trial.score, 4), "settings": trial.settings, "seconds": trial.seconds}
            for trial in trials
        ],
        "votes": encoder.votes.counts if encoder.votes else None,
        "problem_count": len(problems),
        "problems": [problem._asdict() for problem in problems],
    }


def alignment_map(hasher: Hasher, training: TrainingSet, limit: int = 250) -> dict[str, Any]:
    """2-D positions of auxiliary and target items before and after alignment, for a picture.

    Before: target items pass the auxiliary path. One PCA for all, so that the two compare.
    """
    if training.target_images is None or training.target_texts is None:
        return {}
    x, y = training.images[:limit], training.texts[:limit]
    t_x, t_y = training.target_images[:limit], training.target_texts[:limit]
    own = hasher.project_auxiliary(x, y)
    before = hasher.project_auxiliary(t_x, t_y)
    after = (hasher.project_images(t_x), hasher.project_texts(t_y))
    parts = [np.tanh(part) for part in (*own, *before, *after)]
    joint = np.concatenate(parts)
    centre = joint.mean(axis=0)
    _, _, axes = np.linalg.svd(joint - centre, full_matrices=False)
    flat = [np.round((part - centre) @ axes[:2].T, 3).tolist() for part in parts]
    names = ("auxiliary_images", "auxiliary_texts")
    return {
        "before": dict(zip((*names, "target_images", "target_texts"), (*flat[:2], *flat[2:4]))),
        "after": dict(zip((*names, "target_images", "target_texts"), (*flat[:2], *flat[4:]))),
    }


def _count(part: npt.NDArray[Any] | None) -> int:
    return 0 if part is None else len(part)
