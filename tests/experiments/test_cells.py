"""What a row says about methods that have no codes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pytest

from transhash.data.training_set import TrainingSet
from transhash.evaluation import evaluate
from transhash.experiments.cells import describe_cell, training_record
from transhash.experiments.plan import Cell
from transhash.hashers.base import Scorer, Setting
from transhash.hashers.qch import QCH
from transhash.training.split_data import build_split

from .test_splits import benchmark


@dataclass
class InputLayer(Scorer):
    """Compares what a hasher projects, or its codes, pair by pair."""

    signs: bool = False
    name = "bridge"

    def fit(self, training: TrainingSet, **rest: Any) -> Self:
        self.inner = QCH(bits=8).fit(training)
        return self

    def score(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        x, y = self.inner.project_images(images), self.inner.project_texts(texts)
        return np.where(x >= 0, 1, -1) @ np.where(y >= 0, 1, -1).T if self.signs else x @ y.T

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return ()


@pytest.mark.parametrize("signs", [False, True])
def test_a_method_without_codes_has_a_row_like_any_other(signs: bool) -> None:
    task = build_split(benchmark("imagenet-yahooqa"), 0)
    scorer = InputLayer(signs=signs).fit(task.training)
    row = describe_cell(Cell("bridge", 8, 0), scorer, task) | training_record(scorer, task, 1.5)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["distinct_codes"] is row["bit_balance"] is row["image_to_text"]["bits"] is None
    assert row["image_to_text"]["pr_by_radius"] == []
    assert len(row["text_to_image"]["pr_by_rank"]) == 101
    assert row["settings"] == {"seed": 0, "signs": signs}
    assert all(0 < value <= 1 for value in row["held_out_map"])
    coded = describe_cell(Cell("QCH", 8, 0), scorer.inner, task)
    assert row.keys() > coded.keys()
    for name in ("image_to_text_map", "text_to_image_map"):
        assert (row[name] == pytest.approx(coded[name], abs=1e-12)) == signs
    assert row["image_to_text_chance"] == pytest.approx(coded["image_to_text_chance"])


def test_a_row_has_the_scores_of_the_codes_of_queries_against_databases() -> None:
    task = build_split(benchmark("nus-wide"), 0)
    hasher = QCH(bits=8).fit(task.training)
    row, target = describe_cell(Cell("QCH", 8, 0), hasher, task), task.target
    there = evaluate(
        hasher.encode_images(target.query_images.features),
        hasher.encode_texts(target.database_texts.features),
        target.query_images.labels,
        target.database_texts.labels,
    )
    back = evaluate(
        hasher.encode_texts(target.query_texts.features),
        hasher.encode_images(target.database_images.features),
        target.query_texts.labels,
        target.database_images.labels,
    )
    assert (row["image_to_text_map"], row["text_to_image_map"]) == (there.map, back.map)
    assert row["image_to_text"]["precision_at"]["10"] == pytest.approx(
        there.precision_at[10], abs=1e-6
    )
    assert row["items"]["database_texts"] == 116
