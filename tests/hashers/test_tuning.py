from collections.abc import Iterable, Iterator
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, SparseRelation
from transhash.data.training import Related, TrainingSet
from transhash.errors import DataError, NotFittedError
from transhash.hashers.base import Hasher, Setting
from transhash.hashers.cvh import CVH
from transhash.hashers.hth import HTH
from transhash.hashers.imh import IMH
from transhash.hashers.qch import QCH
from transhash.hashers.tuning import (
    average_precision,
    held_out_map,
    hold_out,
    map_both_ways,
    tune,
)

from .worlds import World


def by_all_orders(distances: list[int], relevant: list[int]) -> float:
    """AP averaged over every order that sorts the distances."""
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


@pytest.mark.parametrize("seed", range(6))
def test_average_precision_is_the_mean_over_all_orders_of_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, 4, 6)
    relevant = rng.integers(0, 2, 6)
    relevant[rng.integers(6)] = 1
    found = average_precision(distances[None].astype(np.uint16), relevant[None], None, 8)
    assert found[0] == pytest.approx(by_all_orders(distances.tolist(), relevant.tolist()))


def test_unknown_pairs_are_left_out_of_the_list() -> None:
    distances = np.array([[0, 1, 1, 2, 3]], dtype=np.uint16)
    relevant = np.array([[0, 1, 0, 0, 1]])
    known = np.array([[0, 1, 1, 0, 1]])
    found = average_precision(distances, relevant, known, 8)
    assert found[0] == pytest.approx(by_all_orders([1, 1, 3], [1, 0, 1]))


def test_queries_with_nothing_relevant_do_not_count() -> None:
    codes = Codes.from_projections(np.eye(8))
    relation = SparseRelation.from_pairs(list("abcdefgh"), list("ab......"))
    assert map_both_ways(codes, codes, relation) == (1.0, 1.0)


def test_the_score_does_not_depend_on_how_the_queries_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transhash.hashers import tuning

    world = World()
    hasher, fresh = CVH(bits=8).fit(world.training(60)), world.related(50)
    whole = held_out_map(hasher, fresh)
    monkeypatch.setattr(tuning, "QUERIES", 7)
    assert held_out_map(hasher, fresh) == pytest.approx(whole)


def test_random_codes_score_the_share_of_relevant_items() -> None:
    rng = np.random.default_rng(0)
    labels = np.eye(4)[rng.integers(0, 4, 400)]
    codes = [Codes.from_projections(rng.standard_normal((400, 16))) for _ in range(2)]
    scores = map_both_ways(codes[0], codes[1], LabelRelation(labels, labels))
    np.testing.assert_allclose(scores, 0.25, atol=0.02)


def test_own_settings_come_first_then_candidates_none_twice() -> None:
    world = World()
    _, trials = tune(CVH(bits=8, ridge=0.1), world.training(60), world.related(60), trials=4)
    assert [trial.settings["ridge"] for trial in trials] == [0.1, 0.01, 0.3, 0.003]
    assert all(trial.settings["bits"] == 8 for trial in trials)
    assert all(trial.seconds > 0 for trial in trials)


def test_the_best_on_held_out_items_is_returned_fitted() -> None:
    world = World()
    training, held_out = world.training(100), world.related(100)
    best, trials = tune(QCH(bits=16), training, held_out, trials=5)
    winner = max(trials, key=lambda trial: trial.score)
    assert best.settings() == winner.settings
    assert held_out_map(best, held_out) == pytest.approx(
        (winner.image_to_text, winner.text_to_image)
    )


def test_without_held_out_items_the_best_setting_is_fitted_on_everything() -> None:
    training = World().training(100)
    best, trials = tune(CVH(bits=8), training, trials=3)
    again = CVH(**max(trials, key=lambda trial: trial.score).settings).fit(training)
    assert best.encode_images(training.images) == again.encode_images(training.images)


def test_holding_out_keeps_the_unlabelled_target_items_and_shares_no_auxiliary_item() -> None:
    training = World().training(100)
    rest, held_out = hold_out(training, seed=0)
    assert (len(rest.images), len(held_out.images)) == (80, 20)
    assert rest.target_images is training.target_images
    assert rest.target_texts is training.target_texts
    assert not isinstance(held_out, TrainingSet)
    both = np.concatenate([rest.images, held_out.images])
    assert len(np.unique(both, axis=0)) == 100


def test_the_hasher_that_was_passed_in_is_left_as_it_was() -> None:
    hasher = CVH(bits=8)
    tune(hasher, World().training(60), trials=2)
    assert hasher.ridge == CVH(bits=8).ridge
    with pytest.raises(NotFittedError):
        hasher.state()


def test_held_out_items_without_a_relation_are_refused() -> None:
    world = World()
    training = world.training(60)
    lonely = Related(
        training.images[:2], training.texts[:2], LabelRelation(np.eye(2), np.eye(2)[::-1] * 0)
    )
    with pytest.raises(DataError, match="cannot be compared"):
        tune(CVH(bits=8), training, lonely, trials=1)


def test_no_trial_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="at least 1 trial, got 0"):
        tune(CVH(bits=8), World().training(60), trials=0)


def test_progress_is_shown_once_a_trial() -> None:
    seen: list[str] = []

    def track(
        items: Iterable[Any], description: str, total: int | None = None, start: int = 0
    ) -> Iterator[Any]:
        for item in items:
            seen.append(description)
            yield item

    tune(CVH(bits=8), World().training(60), trials=3, track=track)
    assert seen == ["tuning CVH"] * 3


@pytest.mark.parametrize("kind", [CVH, IMH, QCH, HTH])
def test_every_rival_has_enough_different_candidates_for_eight_trials(kind: type[Hasher]) -> None:

    def key(setting: Setting) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted({**kind().settings(), **setting}.items()))

    candidates = [key(setting) for setting in kind.candidates()]
    assert len(candidates) >= 8
    assert len(set(candidates)) == len(candidates)
    assert key({}) not in candidates
