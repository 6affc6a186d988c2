"""Codes and labels in, scores out: one direction, or image to text and text to image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import DataError
from transhash.evaluation.definitions import find_definition
from transhash.evaluation.histogram import RECALL_STEPS, DistanceHistogram

RANKS = (1, 5, 10, 50, 100, 500, 1000, 5000)


@dataclass(frozen=True)
class Scores:
    """The scores of one direction, with what they mean. Precision, recall and the curves are
    means over the queries that have something relevant in the database."""

    map: float
    chance: float  # the same definition with all codes equal
    best_tie_order: float  # in each tie group the relevant items first
    worst_tie_order: float
    queries: int
    database: int
    bits: int
    queries_without_relevant: int
    definition: str
    definition_in_words: str
    at: int | None
    precision_at: dict[int, float]
    recall_at: dict[int, float]
    pr_by_rank: list[tuple[float, float]]  # recall, interpolated precision
    pr_by_radius: list[tuple[int, float, float]]  # radius, recall, precision

    @classmethod
    def of(
        cls,
        histogram: DistanceHistogram,
        *,
        definition: str = "all",
        at: int | None = None,
        ranks: Sequence[int] = RANKS,
    ) -> Scores:
        """All scores of a histogram; ranks beyond the database are left out."""
        meaning = find_definition(definition, at)
        size, queries = histogram.database, len(histogram)
        if not queries or not size:
            raise DataError(f"nothing to evaluate: {queries} queries against {size} database items")
        answerable = histogram.answerable()
        if not len(answerable):
            raise DataError(
                f"none of the {queries} queries shares a label with any of the {size} database "
                "items; check that both sides use the same class names"
            )
        score = meaning.score(histogram, at)
        # scikit-learn's rule does not look inside a tie group, so no order changes it.
        fixed = meaning.denominator == "group end"
        best = score if fixed else meaning.score(histogram.relevant_first(), at)
        worst = score if fixed else meaning.score(histogram.relevant_last(), at)
        reported = [rank for rank in ranks if rank <= size]
        curve = answerable.precision_by_recall().mean(axis=0)
        return cls(
            map=score,
            chance=meaning.score(histogram.all_codes_equal(), at),
            best_tie_order=best,
            worst_tie_order=worst,
            queries=queries,
            database=size,
            bits=histogram.items.shape[1] - 1,
            queries_without_relevant=queries - len(answerable),
            definition=definition,
            definition_in_words=meaning.in_words(at),
            at=at,
            precision_at={k: float(answerable.precision_at(k).mean()) for k in reported},
            recall_at={k: float(answerable.recall_at(k).mean()) for k in reported},
            pr_by_rank=[(step / RECALL_STEPS, float(p)) for step, p in enumerate(curve)],
            pr_by_radius=[
                (int(radius), float(recall), float(precision))
                for radius, recall, precision in answerable.radius_curve()
            ],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ranks become strings and NaN becomes null there."""
        return {
            "map": _number(self.map),
            "chance": _number(self.chance),
            "queries": self.queries,
            "database": self.database,
            "bits": self.bits,
            "queries_without_relevant": self.queries_without_relevant,
            "definition": self.definition,
            "definition_in_words": self.definition_in_words,
            "at": self.at,
            "best_tie_order": _number(self.best_tie_order),
            "worst_tie_order": _number(self.worst_tie_order),
            "precision_at": {str(rank): value for rank, value in self.precision_at.items()},
            "recall_at": {str(rank): value for rank, value in self.recall_at.items()},
            "pr_by_rank": [list(point) for point in self.pr_by_rank],
            "pr_by_radius": [list(point) for point in self.pr_by_radius],
        }

    def __str__(self) -> str:
        """One line that can stand beside a published figure."""
        answered = self.queries - self.queries_without_relevant
        return (
            f"{self.map:.4f} {self.definition_in_words} [{self.definition}]; "
            f"{answered} of {self.queries} queries have something relevant among "
            f"{self.database} items; chance {self.chance:.4f}; "
            f"tie order worst {self.worst_tie_order:.4f}, best {self.best_tie_order:.4f}"
        )


def evaluate(
    query_codes: Codes,
    database_codes: Codes,
    query_labels: npt.ArrayLike,
    database_labels: npt.ArrayLike,
    *,
    definition: str = "all",
    at: int | None = None,
    ranks: Sequence[int] = RANKS,
    workers: int | None = None,
) -> Scores:
    """Scores of ranking the database by Hamming distance; relevant means sharing a label.

    `definition` names a meaning of MAP (see DEFINITIONS), `at` cuts it off. Labels are boolean
    matrices, items x classes.
    """
    find_definition(definition, at)  # refuse a wrong name before the work
    histogram = DistanceHistogram.of(
        query_codes, database_codes, query_labels, database_labels, workers=workers
    )
    return Scores.of(histogram, definition=definition, at=at, ranks=ranks)


def evaluate_both(
    image_queries: Codes,
    text_queries: Codes,
    image_database: Codes,
    text_database: Codes,
    *,
    image_query_labels: npt.ArrayLike,
    text_query_labels: npt.ArrayLike,
    image_database_labels: npt.ArrayLike,
    text_database_labels: npt.ArrayLike,
    definition: str = "all",
    at: int | None = None,
    ranks: Sequence[int] = RANKS,
    workers: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Both directions, as `transhash evaluate --json` prints them."""
    image_to_text = evaluate(
        image_queries,
        text_database,
        image_query_labels,
        text_database_labels,
        definition=definition,
        at=at,
        ranks=ranks,
        workers=workers,
    )
    text_to_image = evaluate(
        text_queries,
        image_database,
        text_query_labels,
        image_database_labels,
        definition=definition,
        at=at,
        ranks=ranks,
        workers=workers,
    )
    return {"image_to_text": image_to_text.to_dict(), "text_to_image": text_to_image.to_dict()}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
