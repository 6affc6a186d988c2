"""report.json and the alignment map of a finished fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Problem
from transhash.data.training_set import Features, TrainingSet
from transhash.hashers import Hasher
from transhash.hashers.tuning import Trial
from transhash.model.encoder import Encoder
from transhash.model.files import PRECOMPUTED

_MAX_CODES = 2000  # items per modality whose codes are described


def build_report(
    encoder: Encoder,
    training: TrainingSet,
    seconds: float,
    problems: Sequence[Problem] = (),
    trials: Sequence[Trial] = (),
    concepts: int = 0,
) -> dict[str, Any]:
    """Return the data, settings, codes, alignment, warnings and skipped rows of a fit.

    The last `concepts` auxiliary items are built-in concepts.
    """
    hasher, relation = encoder.hasher, training.relation
    images, texts = training.target_images, training.target_texts
    sample_x = (training.images if images is None else images)[:_MAX_CODES]
    sample_y = (training.texts if texts is None else texts)[:_MAX_CODES]
    codes = Codes.concatenate([hasher.encode_images(sample_x), hasher.encode_texts(sample_y)])
    balance = codes.bit_balance()
    return {
        "method": encoder.method,
        "bits": hasher.bits,
        "image_features": encoder.image_features.name if encoder.image_features else PRECOMPUTED,
        "text_features": encoder.text_features.name if encoder.text_features else PRECOMPUTED,
        "settings": hasher.settings(),
        "training_seconds": round(seconds, 2),
        "auxiliary": {
            "images": len(training.images) - concepts,
            "texts": len(training.texts) - concepts,
            "concepts": concepts,
            "related_share": relation.positives / relation.known,
        },
        "target": {"images": _count(images), "texts": _count(texts)},
        "codes": {
            "items": len(codes),
            "distinct": codes.distinct(),
            "bit_balance": [round(float(balance.min()), 3), round(float(balance.max()), 3)],
        },
        "alignment": getattr(hasher, "alignment_", None),
        "warnings": getattr(hasher, "warnings_", []),
        "tuning": [
            {"score": round(trial.score, 4), "settings": trial.settings, "seconds": trial.seconds}
            for trial in trials
        ],
        "votes": encoder.votes.counts if encoder.votes else None,
        "problem_count": len(problems),
        "problems": [problem._asdict() for problem in problems],
    }


def alignment_map(hasher: Hasher, training: TrainingSet, limit: int = 250) -> dict[str, Any]:
    """Return 2-D positions of auxiliary and target items before and after alignment.

    "Before" projects target items like auxiliary ones. One PCA serves both maps, so that they can
    be compared.
    """
    if training.target_images is None or training.target_texts is None:
        return {}
    x, y = training.images[:limit], training.texts[:limit]
    target_x, target_y = training.target_images[:limit], training.target_texts[:limit]
    projections = [
        *hasher.project_auxiliary(x, y),
        *hasher.project_auxiliary(target_x, target_y),
        hasher.project_images(target_x),
        hasher.project_texts(target_y),
    ]
    groups = [np.tanh(projection) for projection in projections]
    joint = np.concatenate(groups)
    center = joint.mean(axis=0)
    _, _, axes = np.linalg.svd(joint - center, full_matrices=False)
    points = [np.round((group - center) @ axes[:2].T, 3).tolist() for group in groups]
    names = ("auxiliary_images", "auxiliary_texts", "target_images", "target_texts")
    return {
        "before": dict(zip(names, points[:4])),
        "after": dict(zip(names, points[:2] + points[4:])),
    }


def _count(features: Features | None) -> int:
    return 0 if features is None else len(features)
