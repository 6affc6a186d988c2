"""Every method's settings, chosen in the same way: held-out auxiliary data, equal trials.

Target labels are never looked at: they do not exist in the types that come in here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import Relation
from transhash.data.training import Related, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, Hasher, Setting
from transhash.progress import Track, silent

H = TypeVar("H", bound=Hasher)

HELD_OUT_SHARE = 0.2
QUERIES = 512  # a block of distances at a time


@dataclass(frozen=True)
class Trial:
    """One setting that was tried and how it did on held-out auxiliary items."""

    settings: Setting
    image_to_text: float  # MAP
    text_to_image: float
    seconds: float  # to fit

    @property
    def score(self) -> float:
        return (self.image_to_text + self.text_to_image) / 2


def tune(
    hasher: H,
    training: TrainingSet,
    held_out: Related | None = None,
    *,
    trials: int = 8,
    track: Track = silent,
) -> tuple[H, list[Trial]]:
    """The fitted hasher with the best held-out score, and all trials in the order tried.

    The hasher's own settings come first, then its class's candidates, `trials` in all. Without
    `held_out`, a fifth of the auxiliary images and texts is held out while trying, and the best
    setting is fitted once more on everything. The first of equal scores wins.
    """
    if trials < 1:
        raise DataError(f"tuning needs at least 1 trial, got {trials}")
    part = training
    if held_out is None:
        part, held_out = hold_out(training, hasher.seed)
    if held_out.relation.positives == 0:
        raise DataError(
            "no held-out image and text are related, so settings cannot be compared; "
            "hold out more items or use labels"
        )
    best: H | None = None
    done: list[Trial] = []
    settings = list(islice(_distinct(hasher), trials))
    for variant in track(settings, f"tuning {hasher.name}"):
        start = time.perf_counter()
        fitted = variant.fit(part)
        seconds = time.perf_counter() - start
        trial = Trial(variant.settings(), *held_out_map(fitted, held_out), seconds)
        if best is None or trial.score > max(earlier.score for earlier in done):
            best = fitted
        done.append(trial)
    assert best is not None  # there is at least one trial
    if part is not training:
        best = replace(best).fit(training)
    return best, done


def hold_out(training: TrainingSet, seed: int) -> tuple[TrainingSet, Related]:
    """Four fifths to learn from, with the unlabelled target parts, and a fifth to score on."""
    rest, held_out = training.split(HELD_OUT_SHARE, seed)
    if rest.relation.positives == 0:
        raise DataError(
            "after holding out a fifth of the auxiliary data no related pair is left to learn "
            "from; give more pairs or do not tune"
        )
    return (
        TrainingSet(
            rest.images,
            rest.texts,
            rest.relation,
            target_images=training.target_images,
            target_texts=training.target_texts,
        ),
        held_out,
    )


def held_out_map(hasher: Hasher, held_out: Related) -> tuple[float, float]:
    """MAP image -> text and text -> image of a fitted hasher on auxiliary items."""
    images, texts = hasher.held_out_projections(held_out.images, held_out.texts)
    return map_both_ways(
        Codes.from_projections(images), Codes.from_projections(texts), held_out.relation
    )


def map_both_ways(images: Codes, texts: Codes, relation: Relation) -> tuple[float, float]:
    """MAP over the full list with ties in expectation; pairs of unknown s_ij are left out."""
    rows, columns = np.arange(len(images)), np.arange(len(texts))
    forward = []
    for start in range(0, len(rows), QUERIES):
        some = rows[start : start + QUERIES]
        s, known = relation.block(some, columns)
        forward.append(average_precision(images[some].hamming(texts), s, known, images.bits))
    backward = []
    for start in range(0, len(columns), QUERIES):
        some = columns[start : start + QUERIES]
        s, known = relation.block(rows, some)
        distances = texts[some].hamming(images)
        mask = None if known is None else known.T
        backward.append(average_precision(distances, s.T, mask, images.bits))
    return _mean(np.concatenate(forward)), _mean(np.concatenate(backward))


def average_precision(
    distances: npt.NDArray[np.uint16], relevant: Array, known: Array | None, bits: int
) -> npt.NDArray[np.float64]:
    """Expected AP of each query over all orders of equally distant items; NaN with none relevant.

    A bucket of n items, h of them relevant, with i items and c relevant ones before it adds
    sum over p = 1..n of (h/n) (c + 1 + (p-1)(h-1)/(n-1)) / (i + p).
    """
    queries, items = distances.shape
    bucket = np.arange(queries)[:, None] * (bits + 1) + distances
    shape, size = (queries, bits + 1), queries * (bits + 1)
    seen = None if known is None else known.ravel()
    n = np.bincount(bucket.ravel(), seen, minlength=size).reshape(shape).astype(np.int64)
    h = np.bincount(bucket.ravel(), relevant.ravel(), minlength=size).reshape(shape)
    i, c = n.cumsum(axis=1) - n, h.cumsum(axis=1) - h
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, items + 1))])
    inverse = harmonic[i + n] - harmonic[i]  # sum over p of 1 / (i + p)
    slope = (h - 1) / np.maximum(n - 1, 1)  # sum of (p-1)/(i+p) is n - (i+1) · inverse
    gained = h / np.maximum(n, 1) * ((c + 1) * inverse + slope * (n - (i + 1) * inverse))
    total = h.sum(axis=1)
    return np.asarray(np.where(total > 0, gained.sum(axis=1) / np.maximum(total, 1), np.nan))


def _mean(values: npt.NDArray[np.float64]) -> float:
    """Over the queries that have something relevant."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def _distinct(hasher: H) -> Iterator[H]:
    """The hasher's own settings, then the candidates, none twice: a budget buys different ones."""
    seen = []
    for setting in ({}, *hasher.candidates()):
        variant = replace(hasher, **setting)
        if variant.settings() not in seen:
            seen.append(variant.settings())
            yield variant
