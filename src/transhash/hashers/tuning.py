"""Chooses settings on held-out auxiliary data, with the same number of trials for every method.

Target labels cannot be used: the types passed in here do not have them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

import numpy as np

from transhash.codes import Codes
from transhash.data.relation import Relation
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError
from transhash.evaluation import DEFINITIONS, DistanceHistogram, score_tie_groups
from transhash.hashers.base import Hasher, Scorer, Setting
from transhash.progress import Track, no_progress

_Method = TypeVar("_Method", bound=Hasher | Scorer)

_HELD_OUT_FRACTION = 0.2
_MAP = DEFINITIONS["all"]


@dataclass(frozen=True)
class Trial:
    """One choice of settings and its MAP on held-out auxiliary items."""

    settings: Setting
    image_to_text: float
    text_to_image: float
    seconds: float  # to fit

    @property
    def score(self) -> float:
        return (self.image_to_text + self.text_to_image) / 2


def tune(
    method: _Method,
    training: TrainingSet,
    held_out: AuxiliarySet | None = None,
    *,
    trials: int = 8,
    track: Track = no_progress,
) -> tuple[_Method, list[Trial]]:
    """Return the fitted method with the best held-out score, and all trials in order.

    Tries the settings of `method`, then its candidates, `trials` in total. Without `held_out`, a
    fifth of the auxiliary images and texts is held out during the trials, and the best settings are
    refitted on everything. The first of equal scores wins.
    """
    if trials < 1:
        raise DataError(f"Tuning needs at least 1 trial, got {trials}. Use a positive number.")
    part = training
    if held_out is None:
        part, held_out = hold_out(training, method.seed)
    if held_out.relation.positives == 0:
        raise DataError(
            "No held-out image and text are related, so settings cannot be compared. "
            "Hold out more items or use labels."
        )
    best: _Method | None = None
    results: list[Trial] = []
    variants = list(islice(_distinct(method), trials))
    for variant in track(variants, f"tuning {method.name}"):
        start = time.perf_counter()
        variant.fit(part)
        seconds = time.perf_counter() - start
        trial = Trial(variant.settings(), *held_out_map(variant, held_out), seconds)
        if best is None or trial.score > max(earlier.score for earlier in results):
            best = variant
        results.append(trial)
    assert best is not None
    if part is not training:
        best = replace(best)
        best.fit(training)
    return best, results


def hold_out(training: TrainingSet, seed: int) -> tuple[TrainingSet, AuxiliarySet]:
    """Split off a fifth to score on; the rest keeps the unlabeled target items."""
    rest, held_out = training.split(_HELD_OUT_FRACTION, seed)
    if rest.relation.positives == 0:
        raise DataError(
            "No related pair remains after holding out a fifth of the auxiliary data. "
            "Use more pairs or do not tune."
        )
    part = replace(training, images=rest.images, texts=rest.texts, relation=rest.relation)
    return part, held_out


def held_out_map(method: Hasher | Scorer, held_out: AuxiliarySet) -> tuple[float, float]:
    """Return MAP image -> text and text -> image of a fitted method on auxiliary items."""
    images, texts, relation = held_out.images, held_out.texts, held_out.relation
    if isinstance(method, Hasher):
        x, y = method.project_auxiliary(images, texts)
        return map_both_directions(Codes.from_projections(x), Codes.from_projections(y), relation)
    forward = score_tie_groups(lambda rows: method.score(images[rows], texts), relation)
    backward = score_tie_groups(
        lambda rows: method.score(images, texts[rows]).T, relation, from_texts=True
    )
    return mean_map(forward), mean_map(backward)


def map_both_directions(images: Codes, texts: Codes, relation: Relation) -> tuple[float, float]:
    """Return MAP over the full list, ties in expectation, ignoring pairs of unknown s_ij."""
    forward = DistanceHistogram.from_relation(images, texts, relation)
    backward = DistanceHistogram.from_relation(texts, images, relation, from_texts=True)
    return mean_map([forward]), mean_map([backward])


def mean_map(blocks: Iterable[DistanceHistogram]) -> float:
    """Return MAP over the queries with relevant items, or 0 if there are none."""
    parts = [(*_MAP.per_query(block), block.relevant_totals > 0) for block in blocks]
    value = _MAP.mean(*(np.concatenate(each) for each in zip(*parts)))
    return 0.0 if math.isnan(value) else value


def _distinct(method: _Method) -> Iterator[_Method]:
    """Yield the method itself, then its candidates, without duplicates."""
    tried = []
    for setting in ({}, *method.candidates()):
        variant = replace(method, **setting)
        if variant.settings() not in tried:
            tried.append(variant.settings())
            yield variant
