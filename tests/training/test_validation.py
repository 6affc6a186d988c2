"""Held-out retrieval, coverage and the validation part of a fit's report."""

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

from scale.command import Command
from training.feature_files import write_features
from training.test_fit import in_own_process, wait_for
from transhash.data.relation import LabelRelation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError
from transhash.hashers import Hasher, make_hasher
from transhash.training.fit import Fit
from transhash.training.validation import (
    METHOD_KEY,
    coverage_summary,
    measure_coverage,
    score_at_k,
    score_validation,
    split_validation,
    validation_summary,
)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def paired(n: int, rows: Any = None, classes: int = 6, noise: float = 0.5) -> TrainingSet:
    """Return pairs with a shared class and shared details; `rows` repeats images."""
    rng = np.random.default_rng(7)
    content = (
        rng.standard_normal((n, 8)) + 3 * rng.standard_normal((classes, 8))[np.arange(n) % classes]
    )
    to_image, to_text = rng.standard_normal((2, 8, 20))
    rows = np.arange(n) if rows is None else rows
    x = (content @ to_image + noise * rng.standard_normal((n, 20)))[rows]
    y = content[rows] @ to_text + noise * rng.standard_normal((n, 20))
    ids = [str(i) for i in range(n)]
    return TrainingSet(
        x.astype(np.float32), y.astype(np.float32), SparseRelation.from_pairs(ids, ids)
    )


def labeled(n: int) -> TrainingSet:
    classes = np.eye(6, dtype=bool)[np.arange(n) % 6]
    return replace(paired(n), relation=LabelRelation(classes, classes))


def clicked(n: int) -> TrainingSet:
    clicks = [(i, j) for i in range(n) for j in (i, (i + 1) % n)]
    values = [float(i == j) for i, j in clicks]
    return replace(paired(n), relation=SparseRelation.from_triples(clicks, values, (n, n)))


def scores_of(
    hasher: Hasher, training: TrainingSet, folder: Path, appended: TrainingSet | None = None
) -> dict[str, Any]:
    fit = Fit(hasher, hasher.name, folder)
    if appended is not None:
        fit.captioned, fit.concepts = training, appended
    return fit.validation_scores(training)


@pytest.mark.parametrize("has_classes", [True, False])
def test_the_score_is_the_mean_over_all_orders_of_equal_scores(has_classes: bool) -> None:
    scores = np.array([[2.0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [3, 2, 2, 1, 1]])
    related = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]], bool)
    k = 3
    expected = []
    for row, correct in zip(scores, related):
        edge = sorted(row, reverse=True)[k - 1]
        above = [i for i in range(5) if row[i] > edge]
        tied = [i for i in range(5) if row[i] == edge]
        orders = [[*above, *some] for some in combinations(tied, k - len(above))]
        hits = [sum(correct[i] for i in order) for order in orders]
        values = [hit / k if has_classes else float(hit > 0) for hit in hits]
        expected.append(sum(values) / len(values))
    assert score_at_k(scores, related, k, has_classes) == pytest.approx(expected)


def test_a_query_without_a_related_item_does_not_count() -> None:
    related = np.array([[True, False], [False, False]])
    assert len(score_at_k(np.zeros((2, 2)), related, 1, has_classes=False)) == 1


def test_every_copy_of_an_image_is_held_out() -> None:
    split = split_validation(paired(200, rows=np.arange(200) // 4), seed=0)  # 4 captions per image
    held_out = {row.tobytes() for row in split.held_out.images}
    assert not held_out & {row.tobytes() for row in split.rest.images}
    assert len(held_out) == 16  # a third of 50 images
    texts = {row.tobytes() for row in split.rest.texts}
    assert not texts & {row.tobytes() for row in split.held_out.texts}


@pytest.mark.parametrize(
    ("n", "held_out"), [(30, 10), (100, 33), (400, 50), (1000, 100), (9000, 500)]
)
def test_a_tenth_is_held_out_within_limits(n: int, held_out: int) -> None:
    split = split_validation(paired(n), seed=0)
    assert len(split.held_out.images) == len(split.held_out.texts) == held_out
    assert split.held_out.relation.positives == held_out  # captions with their own images


@pytest.mark.parametrize(
    ("make", "metric"),
    [
        (paired, "of 50 held-out captions find their image in the top 2 of 50"),
        (labeled, "precision@10 of 50 held-out captions is"),
        (clicked, "of 50 held-out captions find a clicked image in the top 2 of 50"),
    ],
)
def test_pairs_labels_and_clicks_are_validated_and_better_than_chance(
    make: Any, metric: str, tmp_path: Path
) -> None:
    scores = scores_of(make_hasher("CVH", bits=16), make(240), tmp_path)
    values = scores["text_to_image"]
    assert values[METHOD_KEY] > 2 * values["chance"]
    summary = validation_summary(scores)
    assert metric in summary
    assert f"{values[METHOD_KEY]:.0%}" in summary
    assert summary.endswith(f"(chance {values['chance']:.0%}).")


def test_the_method_is_not_scored_on_pairs_that_it_was_fitted_on(tmp_path: Path) -> None:
    """Random pairs can be learned by heart, but not found when held out."""
    training = paired(300)
    rng = np.random.default_rng(1)
    random_pairs = replace(training, texts=rng.standard_normal((300, 200)).astype(np.float32))
    hasher = make_hasher("CVH", bits=16, ridge=1e-4)
    scores = scores_of(hasher, random_pairs, tmp_path)
    values, chance = scores["text_to_image"], scores["text_to_image"]["chance"]
    assert values[METHOD_KEY] < chance + 4 * math.sqrt(chance / scores["texts"])
    split = split_validation(random_pairs, hasher.seed)
    by_heart = score_validation(split, hasher.fit(random_pairs))
    assert by_heart["text_to_image"][METHOD_KEY] > 6 * chance


def test_either_image_is_correct_for_a_caption_that_occurs_twice() -> None:
    training = paired(120)
    training.texts[1::2] = training.texts[::2]
    split = split_validation(training, seed=0)
    fitted = make_hasher("CVH", bits=8).fit(split.rest)
    scores = score_validation(split, fitted)
    distinct = len({row.tobytes() for row in split.held_out.texts})
    assert scores["texts"] == distinct < len(split.held_out.texts)


def test_too_few_pairs_skip_validation(tmp_path: Path) -> None:
    scores = scores_of(make_hasher("CVH"), paired(29), tmp_path)
    summary = validation_summary(scores)
    assert summary.startswith("Training check skipped: The auxiliary set has fewer than 30 images")


def test_a_second_fit_that_fails_skips_validation_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = make_hasher("CVH")

    def fail(*_: Any, **__: Any) -> Hasher:
        raise DataError("Training diverged.")

    monkeypatch.setattr(type(hasher), "fit", fail)
    scores = scores_of(hasher, paired(60), tmp_path)
    assert list(scores) == ["skipped"]
    assert scores["skipped"].endswith("Training diverged.")
    assert not (tmp_path / "validation").exists()


def test_finished_scores_are_reused_by_the_same_fit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher, training = make_hasher("CVH", bits=8), paired(60)
    scores = scores_of(hasher, training, tmp_path)

    def fail(*_: Any, **__: Any) -> Hasher:
        raise AssertionError("fitted again")

    monkeypatch.setattr(type(hasher), "fit", fail)
    assert scores_of(hasher, training, tmp_path) == scores
    with pytest.raises(AssertionError, match="fitted again"):
        scores_of(make_hasher("CVH", bits=16), training, tmp_path)
    with pytest.raises(AssertionError, match="fitted again"):
        scores_of(hasher, training, tmp_path, appended=paired(5))


def coverage_of(target_x: np.ndarray, target_y: np.ndarray) -> dict[str, Any]:
    """Return the coverage by the first half of what `paired` draws."""
    pairs, half = paired(800), np.arange(400)
    training = TrainingSet(
        pairs.images[half], pairs.texts[half], pairs.relation.subset(half, half),
        target_x.astype(np.float32), target_y.astype(np.float32),
    )  # fmt: skip
    return measure_coverage(training, None, None)


def test_coverage_is_high_in_the_same_domain_lower_in_another_and_zero_for_noise() -> None:
    pairs = paired(800)
    rng = np.random.default_rng(2)
    same = coverage_of(pairs.images[400:], pairs.texts[400:])
    blur = 0.6 * pairs.images.std()
    shifted = coverage_of(
        pairs.images[400:] + blur * (1 + rng.standard_normal((400, 20))),
        pairs.texts[400:] + blur * (1 + rng.standard_normal((400, 20))),
    )
    noise = coverage_of(50 + rng.standard_normal((300, 20)), 50 + rng.standard_normal((300, 20)))
    for name in ("images", "texts"):
        assert same[name]["coverage"] > 0.8
        assert 0.1 < shifted[name]["coverage"] < same[name]["coverage"]
        assert noise[name]["coverage"] < 0.1
    assert coverage_summary(same)[1] == coverage_summary(shifted)[1] == []
    summary, warnings = coverage_summary(noise)
    assert summary == ["Coverage of your files by the auxiliary set: images 0%, texts 0%."]
    assert [warning.split(":")[0] for warning in warnings] == [
        "The auxiliary set does not cover your images",
        "The auxiliary set does not cover your texts",
    ]


def test_an_auxiliary_item_is_not_among_its_own_neighbors() -> None:
    # Four classes of exactly ten pairs: without itself, an item has one neighbor of another class,
    # and its captions agree less than those of a target item, which has none.
    of_class = np.repeat(np.eye(4, dtype=np.float32), 10, axis=0)
    noise = 0.01 * np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    keys = [str(row) for row in range(40)]
    pairs = SparseRelation.from_pairs(keys, keys)
    training = TrainingSet(of_class + noise, of_class, pairs, np.eye(4, dtype=np.float32))
    assert measure_coverage(training, None, None)["images"]["coverage"] > 1.1


def test_words_that_are_missing_from_the_captions_are_counted_and_listed() -> None:
    captions = ["a red dog"] * 20 + ["a blue boat"] * 20
    texts = ["dogs run"] * 10 + ["a boat sinks", "the boat floats"] * 5 + ["zebra stripes"] * 6
    words = measure_coverage(paired(40), captions, texts)["words"]
    missing = set(words["missing_words"])
    assert missing <= {"run", "sinks", "floats", "the", "zebra", "stripes"}
    assert {"zebra", "stripes"} <= missing
    assert "dogs" not in missing  # an inflection of a caption's word
    assert 0.2 < words["weighted"] < 0.6
    assert measure_coverage(paired(40), captions, captions)["words"]["weighted"] == 1


def test_without_target_items_or_with_few_pairs_there_is_no_coverage() -> None:
    assert measure_coverage(paired(40), None, None) == {}
    few = paired(20)
    assert measure_coverage(replace(few, target_images=few.images), None, None) == {}


def read_validation(run: Path) -> Any:
    return json.loads((run / "report.json").read_text()).get("validation")


def test_report_and_terminal_end_with_the_validation(tmp_path: Path, command: Command) -> None:
    options = write_features(tmp_path / "data")
    output = command("fit", "cvh", *options, "--out", tmp_path / "run").out
    validation = read_validation(tmp_path / "run")
    assert validation["retrieval"]["texts"] == 12
    last = [line for line in output.splitlines() if line][-len(validation["summary"]) :]
    assert [" ".join(line.split()) for line in last] == validation["summary"]
    assert "MMD" not in output
    again = command("fit", "cvh", *options, "--out", tmp_path / "again").out
    assert validation == read_validation(tmp_path / "again")
    assert again.splitlines()[-1] == output.splitlines()[-1]
    quiet = command("fit", "cvh", *options, "--no-validate", "--out", tmp_path / "quiet").out
    assert "held-out" not in quiet
    assert read_validation(tmp_path / "quiet") is None


def test_validation_does_not_change_the_model(tmp_path: Path, command: Command) -> None:
    options = [*write_features(tmp_path / "data"), "--set", "steps=6", "--set", "batch_size=16"]
    command("fit", "thn", *options, "--out", tmp_path / "with")
    command("fit", "thn", *options, "--no-validate", "--out", tmp_path / "without")
    runs = tmp_path / "with", tmp_path / "without"
    models = [(run / "hasher.safetensors").read_bytes() for run in runs]
    assert models[0] == models[1]
    files = [{path.name for path in run.iterdir()} for run in runs]
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_fit_killed_during_validation_resumes_there(tmp_path: Path, command: Command) -> None:
    options = [*write_features(tmp_path / "data"), "--set", "steps=600", "--set", "batch_size=16"]
    out = tmp_path / "run"
    process = in_own_process("fit", "thn", *options, "--out", out)
    wait_for(out / "validation" / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "metrics.jsonl").exists()  # the fit itself had not begun
    steps = len((out / "validation" / "metrics.jsonl").read_text().splitlines())
    assert 0 < steps < 600
    process = in_own_process("fit", "thn", *options, "--out", out)
    wait_for(out / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    scores = json.loads((out / "validation" / "scores.json").read_text())
    command("fit", "thn", *options, "--out", out)
    command("fit", "thn", *options, "--out", tmp_path / "uninterrupted")
    resumed = read_validation(out)
    assert resumed == read_validation(tmp_path / "uninterrupted")
    assert {name: scores[name] for name in resumed["retrieval"]} == resumed["retrieval"]
    assert not (out / "validation").exists()
