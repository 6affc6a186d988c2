"""The closing word of a fit: honest about what was kept aside, and about what the bridge covers."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training.feature_files import write_features
from training.test_fit import in_own_process, wait_for

from scale.command import Command
from transhash.data.relation import LabelRelation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers import Hasher, make_hasher
from transhash.hashers.world import SINGLE_PROCESS
from transhash.progress import no_progress
from transhash.training.validation import (
    THE_METHOD,
    ValidationSplit,
    baseline_advice,
    coverage_summary,
    found,
    measure_coverage,
    score_validation,
    split_validation,
    validate,
    validation_summary,
)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def paired(n: int, rows: Any = None, modalities: int = 6, noise: float = 0.5) -> TrainingSet:
    """Pairs that share a kind and what is their own; `rows` maps each picture to its content."""
    rng = np.random.default_rng(7)
    own = (
        rng.standard_normal((n, 8))
        + 3 * rng.standard_normal((modalities, 8))[np.arange(n) % modalities]
    )
    of_image, of_text = rng.standard_normal((2, 8, 20))
    rows = np.arange(n) if rows is None else rows
    x = (own @ of_image + noise * rng.standard_normal((n, 20)))[rows]
    y = own[rows] @ of_text + noise * rng.standard_normal((n, 20))
    ids = [str(i) for i in range(n)]
    return TrainingSet(
        x.astype(np.float32), y.astype(np.float32), SparseRelation.from_pairs(ids, ids)
    )


def labelled(n: int) -> TrainingSet:
    pairs = paired(n)
    modalities = np.eye(6, dtype=bool)[np.arange(n) % 6]
    return replace(pairs, relation=LabelRelation(modalities, modalities))


def clicked(n: int) -> TrainingSet:
    pairs = paired(n)
    listed = [(i, j) for i in range(n) for j in (i, (i + 1) % n)]
    values = [float(i == j) for i, j in listed]
    return replace(pairs, relation=SparseRelation.from_triples(listed, values, (n, n)))


def fit(hasher: Hasher, training: TrainingSet, *_: Any) -> Hasher:
    return hasher.fit(training)


def test_what_is_found_is_the_mean_over_all_orders_of_equal_scores() -> None:
    scores = np.array([[2.0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [3, 2, 2, 1, 1]])
    related = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]], bool)
    first = 3
    for by_kind in (True, False):
        expected = []
        for row, right in zip(scores, related):
            order = sorted(row, reverse=True)
            edge = order[first - 1]
            sure = [i for i in range(5) if row[i] > edge]
            tied = [i for i in range(5) if row[i] == edge]
            ways = [[*sure, *some] for some in combinations(tied, first - len(sure))]
            hits = [sum(right[i] for i in way) for way in ways]
            each = [hit / first if by_kind else float(hit > 0) for hit in hits]
            expected.append(sum(each) / len(each))
        assert found(scores, related, first, by_kind=by_kind) == pytest.approx(expected)


def test_a_query_without_an_answer_does_not_count() -> None:
    related = np.array([[True, False], [False, False]])
    assert len(found(np.zeros((2, 2)), related, 1, by_kind=False)) == 1


def test_every_copy_of_a_picture_is_kept_aside_with_it() -> None:
    training = paired(200, rows=np.arange(200) // 4)  # four captions a picture, a row each
    question = split_validation(training, seed=0)
    assert isinstance(question, ValidationSplit)
    seen = {row.tobytes() for row in question.rest.images}
    aside = {row.tobytes() for row in question.held_out.images}
    assert not seen & aside
    assert len(aside) == 16  # a third of 50 pictures
    texts = {row.tobytes() for row in question.rest.texts}
    assert not texts & {row.tobytes() for row in question.held_out.texts}


@pytest.mark.parametrize(
    ("n", "aside"), [(30, 10), (100, 33), (400, 50), (1000, 100), (9000, 500)]
)
def test_a_tenth_is_kept_aside_or_what_tells_something(n: int, aside: int) -> None:
    question = split_validation(paired(n), seed=0)
    assert isinstance(question, ValidationSplit)
    assert len(question.held_out.images) == len(question.held_out.texts) == aside
    assert question.held_out.relation.positives == aside  # captions with their own pictures


@pytest.mark.parametrize("make", [paired, labelled, clicked])
def test_pairs_labels_and_clicks_have_a_verdict_that_is_better_than_chance(
    make: Any, tmp_path: Path
) -> None:
    training = make(240)
    hasher = make_hasher("CVH", bits=16)
    scores = validate(hasher, training, tmp_path / "v", fit, no_progress, SINGLE_PROCESS)
    way = scores["text_to_image"]
    assert way[THE_METHOD] > 2 * way["chance"]
    assert way["kNN"] > 2 * way["chance"]
    sentence = validation_summary(scores)
    if make is labelled:
        assert sentence.startswith("For 50 captions kept aside, ")
        assert "of the first 10 pictures are of the right kind (chance 1." in sentence
    else:
        assert sentence.startswith("Of 50 captions kept aside, ")
        assert "among the first 2 of 50 (chance 4%, nearest neighbours " in sentence
        assert ("clicked" in sentence) == (make is clicked)


def test_the_method_is_not_asked_for_what_it_was_shown(tmp_path: Path) -> None:
    """Pairs that only chance joined can be learned by heart, but not found when kept aside."""
    training = paired(300)
    rng = np.random.default_rng(1)
    strangers = replace(training, texts=rng.standard_normal((300, 200)).astype(np.float32))
    hasher = make_hasher("CVH", bits=16, ridge=1e-4)
    scores = validate(hasher, strangers, tmp_path / "v", fit, no_progress, SINGLE_PROCESS)
    way, chance = scores["text_to_image"], scores["text_to_image"]["chance"]
    assert way[THE_METHOD] < chance + 4 * math.sqrt(chance / scores["texts"])
    question = split_validation(strangers, hasher.seed)
    assert isinstance(question, ValidationSplit)
    by_heart = score_validation(question, hasher.fit(strangers), no_progress)
    assert by_heart["text_to_image"][THE_METHOD] > 6 * chance


def test_the_same_caption_said_twice_is_answered_by_either_picture() -> None:
    training = paired(120)
    training.texts[1::2] = training.texts[::2]  # every caption stands at two pictures
    question = split_validation(training, seed=0)
    assert isinstance(question, ValidationSplit)
    fitted = make_hasher("CVH", bits=8).fit(question.rest)
    scores = score_validation(question, fitted, no_progress)
    different = len({row.tobytes() for row in question.held_out.texts})
    assert scores["texts"] == different < len(question.held_out.texts)


def test_too_few_pairs_say_nothing(tmp_path: Path) -> None:
    scores = validate(make_hasher("CVH"), paired(29), tmp_path, fit, no_progress, SINGLE_PROCESS)
    assert validation_summary(scores) == (
        "How well captions find their pictures cannot be told: the bridge has fewer than 30 "
        "pictures or texts."
    )
    assert baseline_advice(scores, {}, "CVH", False) is None


def test_a_trial_that_cannot_learn_costs_no_fit(tmp_path: Path) -> None:
    def refuse(*_: Any) -> Hasher:
        raise DataError("the training diverged")

    scores = validate(
        make_hasher("CVH"), paired(60), tmp_path / "v", refuse, no_progress, SINGLE_PROCESS
    )
    assert scores == {"unknown": "without the part kept aside, the training diverged"}
    assert not (tmp_path / "v").exists()


def test_what_was_found_out_is_kept_for_the_same_fit_only(tmp_path: Path) -> None:
    def refuse(*_: Any) -> Hasher:
        raise AssertionError("it was known already")

    hasher, training = make_hasher("CVH", bits=8), paired(60)
    first = validate(hasher, training, tmp_path, fit, no_progress, SINGLE_PROCESS)
    assert validate(hasher, training, tmp_path, refuse, no_progress, SINGLE_PROCESS) == first
    with pytest.raises(AssertionError):
        validate(
            make_hasher("CVH", bits=16), training, tmp_path, refuse, no_progress, SINGLE_PROCESS
        )


def scored(ours: float, counted: str = "found", better: str | None = "kNN") -> dict[str, Any]:
    way = {THE_METHOD: ours, "kNN": 0.7, "ridge": 0.4, "chance": 0.05}
    sizes = {"texts": 100, "pictures": 200, "first": 10, "counted": counted, "clicked": False}
    return {**sizes, "text_to_image": way, "image_to_text": way, "better": better}


def test_who_should_take_the_baseline_is_told_so() -> None:
    covered = {"pictures": {"explained": 0.9}, "texts": {"explained": 0.8}}
    better = "Nearest neighbours: better here than THN; docs/methods.md, Baselines, says how"
    told = baseline_advice(scored(0.3, "right kind"), covered, "THN", True)
    assert told is not None
    assert told.startswith(better)
    # By pairs inside the bridge alone it is not told of a method that carries over ...
    told = baseline_advice(scored(0.3), covered, "THN", True)
    assert told is not None
    assert told.startswith("Nearest neighbours: ahead inside the bridge")
    # ... unless the bridge explains the target too little for that.
    for explained, transfers in ((0.25, True), (0.9, False)):
        part = {"pictures": {"explained": 0.9}, "texts": {"explained": explained}}
        told = baseline_advice(scored(0.3), part, "THN", transfers)
        assert told is not None
        assert told.startswith(better)
    assert baseline_advice(scored(0.8, better=None), covered, "THN", True) is None


def test_a_baseline_is_ahead_only_if_chance_does_not_explain_it() -> None:
    question = split_validation(labelled(300), seed=0)
    assert isinstance(question, ValidationSplit)
    mixed = replace(question.rest, texts=np.roll(question.rest.texts, 1, axis=0))
    misled = make_hasher("CVH", bits=16).fit(mixed)
    assert score_validation(question, misled, no_progress)["better"] in ("kNN", "ridge")
    fitted = make_hasher("QCH", bits=32).fit(question.rest)
    assert score_validation(question, fitted, no_progress)["better"] is None


def bridged(target_x: np.ndarray, target_y: np.ndarray) -> dict[str, Any]:
    """Through the first half of what `paired` draws."""
    whole, half = paired(800), np.arange(400)
    bridge = TrainingSet(
        whole.images[half], whole.texts[half], whole.relation.subset(half, half),
        target_x.astype(np.float32), target_y.astype(np.float32),
    )  # fmt: skip
    return measure_coverage(bridge, None, None)


def test_the_bridge_explains_its_own_kind_another_domain_less_and_noise_not() -> None:
    bridge = paired(800)
    rng = np.random.default_rng(2)
    own = bridged(bridge.images[400:], bridge.texts[400:])
    blur = 0.6 * bridge.images.std()
    moved = bridged(
        bridge.images[400:] + blur * (1 + rng.standard_normal((400, 20))),
        bridge.texts[400:] + blur * (1 + rng.standard_normal((400, 20))),
    )
    noise = bridged(50 + rng.standard_normal((300, 20)), 50 + rng.standard_normal((300, 20)))
    for part in ("pictures", "texts"):
        assert own[part]["explained"] > 0.8
        assert 0.1 < moved[part]["explained"] < own[part]["explained"]
        assert noise[part]["explained"] < 0.1
    assert own["pictures"]["far"] < 0.15 < 0.9 < noise["pictures"]["far"]
    assert coverage_summary(own)[1] == coverage_summary(moved)[1] == []
    said, warnings = coverage_summary(noise)
    assert said == ["The bridge explains your pictures 0% and your texts 0% as well as its own."]
    assert [warning.split(":")[0] for warning in warnings] == [
        "the bridge has little to do with your pictures",
        "the bridge has little to do with your texts",
    ]


def test_words_that_the_captions_lack_are_counted_and_named() -> None:
    captions = ["a red dog"] * 20 + ["a blue boat"] * 20
    texts = ["dogs run"] * 10 + ["a boat sinks", "the boat floats"] * 5 + ["zebra stripes"] * 6
    words = measure_coverage(paired(40), captions, texts)["words"]
    assert set(words["missing"]) <= {"run", "sinks", "floats", "the", "zebra", "stripes"}
    assert {"zebra", "stripes"} <= set(words["missing"])
    assert "dogs" not in words["missing"]  # an inflection of theirs
    assert 0.2 < words["said"] < 0.6
    assert words["distinct"] == pytest.approx(2 / 8, abs=0.13)
    assert measure_coverage(paired(40), captions, captions)["words"]["said"] == 1


def test_without_target_or_with_few_pairs_coverage_says_nothing() -> None:
    assert measure_coverage(paired(40), None, None) == {}
    few = paired(20)
    assert measure_coverage(replace(few, target_images=few.images), None, None) == {}


def test_the_report_keeps_the_verdict_and_the_terminal_ends_in_it(
    tmp_path: Path, command: Command
) -> None:
    options = write_features(tmp_path / "data")
    said = command("fit", "cvh", *options, "--out", tmp_path / "run").out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    verdict = report["verdict"]
    assert verdict["held_out"]["texts"] == 12
    last = [line for line in said.splitlines() if line][-len(verdict["said"]) :]
    assert [" ".join(line.split()) for line in last] == verdict["said"]
    assert "MMD" not in said
    again = command("fit", "cvh", *options, "--out", tmp_path / "again").out
    assert verdict == json.loads((tmp_path / "again" / "report.json").read_text())["verdict"]
    assert again.splitlines()[-1] == said.splitlines()[-1]
    quiet = command("fit", "cvh", *options, "--no-verdict", "--out", tmp_path / "quiet").out
    assert "kept aside" not in quiet
    assert "verdict" not in json.loads((tmp_path / "quiet" / "report.json").read_text())


def test_the_verdict_leaves_the_model_as_it_is(tmp_path: Path, command: Command) -> None:
    options = [*write_features(tmp_path / "data"), "--set", "steps=6", "--set", "batch_size=16"]
    command("fit", "thn", *options, "--out", tmp_path / "with")
    command("fit", "thn", *options, "--no-verdict", "--out", tmp_path / "without")
    models = [(tmp_path / run / "hasher.safetensors").read_bytes() for run in ("with", "without")]
    assert models[0] == models[1]
    assert {path.name for path in (tmp_path / "with").iterdir()} == {
        path.name for path in (tmp_path / "without").iterdir()
    }


@pytest.mark.slow
def test_a_fit_killed_during_the_verdict_goes_on_there(tmp_path: Path, command: Command) -> None:
    options = [*write_features(tmp_path / "data"), "--set", "steps=600", "--set", "batch_size=16"]
    out = tmp_path / "run"
    process = in_own_process("fit", "thn", *options, "--out", out)
    wait_for(out / "verdict" / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "metrics.jsonl").exists()  # the fit itself had not begun
    steps = len((out / "verdict" / "metrics.jsonl").read_text().splitlines())
    assert 0 < steps < 600
    process = in_own_process("fit", "thn", *options, "--out", out)
    wait_for(out / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    scores = json.loads((out / "verdict" / "scores.json").read_text())
    command("fit", "thn", *options, "--out", out)
    command("fit", "thn", *options, "--out", tmp_path / "whole")
    kept, whole = (
        json.loads((folder / "report.json").read_text())["verdict"]
        for folder in (out, tmp_path / "whole")
    )
    assert kept == whole
    assert {name: scores[name] for name in kept["held_out"]} == kept["held_out"]
    assert not (out / "verdict").exists()
