"""Image-to-text and text-to-image retrieval: queries, database and labels of both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.collection import Modality
from transhash.data.relation import LabelRelation, Rows
from transhash.evaluation import DistanceHistogram, Scores, score_tie_groups, weighted_tie_groups
from transhash.hashers import Hasher
from transhash.hashers.base import Scorer
from transhash.index.weighted import BitWeights, RankingMode, query_weights
from transhash.progress import phase
from transhash.training.split_data import LabelMatrix, TestSet

TieGroups = DistanceHistogram | Iterable[DistanceHistogram]  # by distance, or by score in blocks
RESULT_MODALITY: dict[str, Modality] = {"image_to_text": "texts", "text_to_image": "images"}


class LabeledCodes(NamedTuple):
    """Codes of items, and the labels that decide which results are correct."""

    codes: Codes
    labels: LabelMatrix
    weights: BitWeights | None = None  # of queries, if they rank by weighted bits

    def take(self, rows: Rows) -> LabeledCodes:
        return LabeledCodes(self.codes[rows], self.labels[rows])


class Direction(NamedTuple):
    """Queries of one modality against a database of the other."""

    queries: Codes
    database: Codes
    query_labels: LabelMatrix
    database_labels: LabelMatrix
    weights: BitWeights | None = None

    @property
    def bits(self) -> int:
        return self.queries.bits

    def tie_groups(self, workers: int | None = None) -> TieGroups:
        labels = self.query_labels, self.database_labels
        if self.weights is None:
            return DistanceHistogram.from_codes(
                self.queries, self.database, *labels, workers=workers
            )
        return weighted_tie_groups(self.queries, self.database, self.weights, *labels)


class ScoredDirection(NamedTuple):
    """A direction of a method without codes: `score(rows)` returns (rows, database)."""

    score: Callable[[Rows], npt.NDArray[Any]]
    query_labels: LabelMatrix
    database_labels: LabelMatrix
    bits: None = None

    def tie_groups(self, workers: int | None = None) -> Iterable[DistanceHistogram]:
        return score_tie_groups(self.score, LabelRelation(self.query_labels, self.database_labels))


@overload
def build_directions(
    method: Hasher, test: TestSet, ranking: RankingMode = "hamming"
) -> dict[str, Direction]: ...
@overload
def build_directions(method: Scorer, test: TestSet) -> dict[str, ScoredDirection]: ...
def build_directions(
    method: Hasher | Scorer, test: TestSet, ranking: RankingMode = "hamming"
) -> dict[str, Direction] | dict[str, ScoredDirection]:
    """Return the queries of a split against its databases, encoded or to be scored in blocks."""
    images, texts = test.database_images, test.database_texts
    query_images, query_texts = test.query_images, test.query_texts
    if isinstance(method, Hasher):
        return both_directions(
            encode_queries(
                method.project_images(query_images.features), query_images.labels, ranking
            ),
            encode_queries(method.project_texts(query_texts.features), query_texts.labels, ranking),
            LabeledCodes(method.encode_images(images.features), images.labels),
            LabeledCodes(method.encode_texts(texts.features), texts.labels),
        )
    return {
        "image_to_text": ScoredDirection(
            lambda rows: method.score(query_images.features[rows], texts.features),
            query_images.labels,
            texts.labels,
        ),
        "text_to_image": ScoredDirection(
            lambda rows: method.score(images.features, query_texts.features[rows]).T,
            query_texts.labels,
            images.labels,
        ),
    }


@phase("scoring")
def score_directions(
    directions: Mapping[str, Direction] | Mapping[str, ScoredDirection],
    workers: int | None = None,
    ranking: RankingMode = "hamming",
) -> dict[str, Scores]:
    """Return the scores of each direction with the default MAP definition.

    `ranking` must be the one that the directions were built with.
    """
    return {
        name: Scores.from_counts(
            direction.tie_groups(workers), ranking=ranking, bits=direction.bits
        )
        for name, direction in directions.items()
    }


def encode_queries(
    projections: npt.NDArray[np.float32], labels: LabelMatrix, ranking: RankingMode
) -> LabeledCodes:
    """Return the codes of queries and, unless they rank by Hamming distance, their bit weights."""
    codes = Codes.from_projections(projections)
    return LabeledCodes(codes, labels, query_weights(projections, ranking))


def both_directions(
    query_images: LabeledCodes, query_texts: LabeledCodes, images: LabeledCodes, texts: LabeledCodes
) -> dict[str, Direction]:
    def direction(queries: LabeledCodes, database: LabeledCodes) -> Direction:
        return Direction(
            queries.codes, database.codes, queries.labels, database.labels, queries.weights
        )

    return {
        "image_to_text": direction(query_images, texts),
        "text_to_image": direction(query_texts, images),
    }
