from collections.abc import Iterable, Iterator
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, SparseRelation
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError, NotFittedError
from transhash.hashers.base import FitOptions, Hasher, Scorer, Setting
from transhash.hashers.cvh import CVH
from transhash.hashers.hth import HTH
from transhash.hashers.imh import IMH
from transhash.hashers.qch import QCH
from transhash.hashers.tuning import held_out_map, hold_out, map_both_directions, tune

from .worlds import World


def by_all_orders(distances: list[int], relevant: list[int]) -> float:
    """Return AP averaged over every order that sorts the distances."""
    items = list(zip(distances, relevant, strict=True))
    values = []
    for order in set(permutations(range(len(items)))):
        ranked = [items[k] for k in order]
        if any(a[0] > b[0] for a, b in pairwise(ranked)):
            continue
        hits, total = 0, 0.0
        for rank, (_, hit) in enumerate(ranked, start=1):
            hits += hit
            total += hit * hits / rank
        values.append(total / hits)
    return float(np.mean(values))


def looped_map(distances: np.ndarray, relevant: np.ndarray, known: np.ndarray | None) -> float:
    """Return the closed form by loops: a group of n items, h of them relevant, after i items and c
    relevant ones adds sum over p = 1..n of (h/n) (c + 1 + (p-1)(h-1)/(n-1)) / (i + p)."""
    values = []
    for row in range(len(distances)):
        is_known = np.full(distances.shape[1], True) if known is None else known[row] > 0
        far, hit = distances[row][is_known], relevant[row][is_known]
        i, c, total = 0, 0.0, 0.0
        for distance in np.unique(far):
            n, h = int((far == distance).sum()), float(hit[far == distance].sum())
            slope = (h - 1) / max(n - 1, 1)
            total += sum(h / n * (c + 1 + (p - 1) * slope) / (i + p) for p in range(1, n + 1))
            i, c = i + n, c + h
        if c:
            values.append(total / c)
    return float(np.mean(values))


@pytest.mark.parametrize("seed", range(6))
def test_the_looped_oracle_is_the_mean_over_all_orders_of_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, 4, (1, 6))
    relevant = rng.integers(0, 2, (1, 6))
    relevant[0, rng.integers(6)] = 1
    expected = by_all_orders(distances[0].tolist(), relevant[0].tolist())
    assert looped_map(distances, relevant, None) == pytest.approx(expected)


@pytest.mark.parametrize("sort", ["labels", "pairs", "triples"])
def test_map_in_both_directions_is_the_closed_form_over_known_pairs(sort: str) -> None:
    training = World(seed=2).training(90, sort)
    rng = np.random.default_rng(0)
    images, texts = (Codes(rng.integers(0, 256, (90, 1), np.uint8), 8) for _ in range(2))
    s, known = training.relation.block(np.arange(90), np.arange(90))
    assert (known is None) == (sort != "triples")
    forward = looped_map(images.hamming(texts), s, known)
    backward = looped_map(texts.hamming(images), s.T, None if known is None else known.T)
    result = map_both_directions(images, texts, training.relation)
    assert result == pytest.approx((forward, backward), abs=1e-12)


class Similarity(Scorer):
    """Scores pairs by the projections of a hasher."""

    name = "similarity"

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        self.inner = QCH(bits=16).fit(training)

    def score(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        return self.inner.project_images(images) @ self.inner.project_texts(texts).T

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return ()


@pytest.mark.parametrize("sort", ["labels", "triples"])
def test_a_method_without_codes_is_evaluated_by_its_scores(sort: str) -> None:
    training = World(seed=2).training(90, sort)
    scorer = Similarity().fit(training)
    s, known = training.relation.block(np.arange(90), np.arange(90))
    score = scorer.score(training.images, training.texts)
    forward = looped_map(-score, s, known)
    backward = looped_map(-score.T, s.T, None if known is None else known.T)
    result = held_out_map(scorer, training)
    assert result == pytest.approx((forward, backward), abs=1e-9)
    assert tune(Similarity(), training, training, trials=3)[1][0].score == pytest.approx(
        (forward + backward) / 2, abs=1e-9
    )


def test_queries_without_relevant_items_are_ignored() -> None:
    codes = Codes.from_projections(np.eye(8))
    relation = SparseRelation.from_pairs(list("abcdefgh"), list("ab......"))
    assert map_both_directions(codes, codes, relation) == (1.0, 1.0)


def test_no_relevant_items_score_zero() -> None:
    codes = Codes.from_projections(np.eye(8))
    assert map_both_directions(codes, codes, LabelRelation(np.eye(8), np.eye(8) * 0)) == (0.0, 0.0)


def test_random_codes_score_the_fraction_of_relevant_items() -> None:
    rng = np.random.default_rng(0)
    labels = np.eye(4)[rng.integers(0, 4, 400)]
    codes = [Codes.from_projections(rng.standard_normal((400, 16))) for _ in range(2)]
    scores = map_both_directions(codes[0], codes[1], LabelRelation(labels, labels))
    np.testing.assert_allclose(scores, 0.25, atol=0.02)


def test_own_settings_come_first_then_distinct_candidates() -> None:
    world = World()
    _, trials = tune(CVH(bits=8, ridge=0.1), world.training(60), world.related(60), trials=4)
    assert [trial.settings["ridge"] for trial in trials] == [0.1, 0.01, 0.3, 0.003]
    assert all(trial.settings["bits"] == 8 for trial in trials)
    assert all(trial.seconds > 0 for trial in trials)


def test_the_method_with_the_best_held_out_score_is_returned() -> None:
    world = World()
    training, held_out = world.training(100), world.related(100)
    best, trials = tune(QCH(bits=16), training, held_out, trials=5)
    winner = max(trials, key=lambda trial: trial.score)
    assert best.settings() == winner.settings
    assert held_out_map(best, held_out) == pytest.approx(
        (winner.image_to_text, winner.text_to_image)
    )


def test_without_held_out_items_the_best_settings_are_refitted_on_everything() -> None:
    training = World().training(100)
    best, trials = tune(CVH(bits=8), training, trials=3)
    again = CVH(**max(trials, key=lambda trial: trial.score).settings).fit(training)
    assert best.encode_images(training.images) == again.encode_images(training.images)


def test_hold_out_keeps_target_items_and_splits_auxiliary_items() -> None:
    training = World().training(100)
    rest, held_out = hold_out(training, seed=0)
    assert (len(rest.images), len(held_out.images)) == (80, 20)
    assert rest.target_images is training.target_images
    assert rest.target_texts is training.target_texts
    assert not isinstance(held_out, TrainingSet)
    both = np.concatenate([rest.images, held_out.images])
    assert len(np.unique(both, axis=0)) == 100


def test_tuning_does_not_change_the_hasher_passed_in() -> None:
    hasher = CVH(bits=8)
    tune(hasher, World().training(60), trials=2)
    assert hasher.ridge == CVH(bits=8).ridge
    with pytest.raises(NotFittedError):
        hasher.state()


def test_held_out_items_without_a_relation_are_refused() -> None:
    world = World()
    training = world.training(60)
    unrelated = AuxiliarySet(
        training.images[:2], training.texts[:2], LabelRelation(np.eye(2), np.eye(2)[::-1] * 0)
    )
    with pytest.raises(DataError, match="cannot be compared"):
        tune(CVH(bits=8), training, unrelated, trials=1)


def test_zero_trials_are_refused() -> None:
    with pytest.raises(DataError, match="got 0"):
        tune(CVH(bits=8), World().training(60), trials=0)


def test_progress_is_shown_once_per_trial() -> None:
    descriptions: list[str] = []

    def track(
        items: Iterable[Any], description: str, total: int | None = None, start: int = 0
    ) -> Iterator[Any]:
        for item in items:
            descriptions.append(description)
            yield item

    tune(CVH(bits=8), World().training(60), trials=3, track=track)
    assert descriptions == ["tuning CVH"] * 3


@pytest.mark.parametrize("method", [CVH, IMH, QCH, HTH])
def test_candidates_of_baselines_are_distinct(method: type[Hasher]) -> None:
    def key(setting: Setting) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted({**method().settings(), **setting}.items()))

    candidates = [key(setting) for setting in method.candidates()]
    assert len(candidates) >= 8
    assert len(set(candidates)) == len(candidates)
    assert key({}) not in candidates
