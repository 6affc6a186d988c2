"""Rows of methods with and without codes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pytest

from transhash.data.training_set import TrainingSet
from transhash.evaluation import evaluate
from transhash.experiments.cells import describe_cell, training_record
from transhash.experiments.plan import Cell
from transhash.hashers.base import FitOptions, Scorer, Setting
from transhash.hashers.qch import QCH
from transhash.training.split_data import build_split

from .test_splits import benchmark


@dataclass
class ProjectionScorer(Scorer):
    """Compares the projections of a hasher, or their signs, pair by pair."""

    signs: bool = False
    name = "projections"

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        self.inner = QCH(bits=8).fit(training)

    def score(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        x, y = self.inner.project_images(images), self.inner.project_texts(texts)
        return np.where(x >= 0, 1, -1) @ np.where(y >= 0, 1, -1).T if self.signs else x @ y.T

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return ()


@pytest.mark.parametrize("signs", [False, True])
def test_a_method_without_codes_has_the_same_columns(signs: bool) -> None:
    split = build_split(benchmark("imagenet-yahooqa"), 0)
    scorer = ProjectionScorer(signs=signs).fit(split.training)
    row = describe_cell(Cell("projections", None, 8, 0), scorer, split) | training_record(
        scorer, split, 1.5
    )
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["distinct_codes"] is row["bit_balance"] is row["image_to_text"]["bits"] is None
    assert row["image_to_text"]["pr_by_radius"] == []
    assert len(row["text_to_image"]["pr_by_rank"]) == 101
    assert row["settings"] == {"seed": 0, "signs": signs}
    assert all(0 < value <= 1 for value in row["held_out_map"])
    coded_row = describe_cell(Cell("QCH", None, 8, 0), scorer.inner, split)
    assert row.keys() > coded_row.keys()
    for name in ("image_to_text_map", "text_to_image_map"):
        assert (row[name] == pytest.approx(coded_row[name], abs=1e-12)) == signs
    assert row["image_to_text_chance"] == pytest.approx(coded_row["image_to_text_chance"])


def test_a_row_has_the_scores_of_the_codes_of_queries_against_databases() -> None:
    split = build_split(benchmark("nus-wide"), 0)
    hasher = QCH(bits=8).fit(split.training)
    row, test = describe_cell(Cell("QCH", None, 8, 0), hasher, split), split.test
    forward = evaluate(
        hasher.encode_images(test.query_images.features),
        hasher.encode_texts(test.database_texts.features),
        test.query_images.labels,
        test.database_texts.labels,
    )
    backward = evaluate(
        hasher.encode_texts(test.query_texts.features),
        hasher.encode_images(test.database_images.features),
        test.query_texts.labels,
        test.database_images.labels,
    )
    assert (row["image_to_text_map"], row["text_to_image_map"]) == (forward.map, backward.map)
    assert row["image_to_text"]["precision_at"]["10"] == pytest.approx(
        forward.precision_at[10], abs=1e-6
    )
    assert row["items"]["database_texts"] == 116
