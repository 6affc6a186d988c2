"""What scores are counted from: rankings and labels of queries and database, both ways."""

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
from transhash.training.split_data import LabelMatrix, TestSet

TieGroups = DistanceHistogram | Iterable[DistanceHistogram]  # by distance, or by weights
AMONG: dict[str, Modality] = {"image_to_text": "texts", "text_to_image": "images"}


class LabeledCodes(NamedTuple):
    """Codes of some items, and the labels that say which answers are right."""

    codes: Codes
    labels: LabelMatrix
    weights: BitWeights | None = None  # of the bits of asking items, where they rank finer


class Direction(NamedTuple):
    """Queries of one kind against a database of the other."""

    queries: Codes
    database: Codes
    query_labels: LabelMatrix
    database_labels: LabelMatrix
    weights: BitWeights | None = None

    @property
    def bits(self) -> int:
        return self.queries.bits

    def counted(self, workers: int | None = None) -> TieGroups:
        labels = self.query_labels, self.database_labels
        if self.weights is None:
            return DistanceHistogram.of(self.queries, self.database, *labels, workers=workers)
        return weighted_tie_groups(self.queries, self.database, self.weights, *labels)


class ScoredDirection(NamedTuple):
    """The same by a method that has no codes: scores of some queries with the whole database."""

    score: Callable[[Rows], npt.NDArray[Any]]
    query_labels: LabelMatrix
    database_labels: LabelMatrix
    bits: None = None

    def counted(self, workers: int | None = None) -> Iterable[DistanceHistogram]:
        return score_tie_groups(self.score, LabelRelation(self.query_labels, self.database_labels))


@overload
def directions_of(
    method: Hasher, target: TestSet, ranking: RankingMode = "hamming"
) -> dict[str, Direction]: ...
@overload
def directions_of(method: Scorer, target: TestSet) -> dict[str, ScoredDirection]: ...
def directions_of(
    method: Hasher | Scorer, target: TestSet, ranking: RankingMode = "hamming"
) -> dict[str, Direction] | dict[str, ScoredDirection]:
    """A split's queries against its databases: encoded, or to be scored some queries at a time."""
    images, texts = target.database_images, target.database_texts
    query_images, asking_texts = target.query_images, target.query_texts
    if isinstance(method, Hasher):
        return both_directions(
            encode_queries(
                method.project_images(query_images.features), query_images.labels, ranking
            ),
            encode_queries(
                method.project_texts(asking_texts.features), asking_texts.labels, ranking
            ),
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
            lambda rows: method.score(images.features, asking_texts.features[rows]).T,
            asking_texts.labels,
            images.labels,
        ),
    }


def score_directions(
    directions: Mapping[str, Direction] | Mapping[str, ScoredDirection],
    workers: int | None = None,
    ranking: RankingMode = "hamming",
) -> dict[str, Scores]:
    """The scores of each direction, by the default definition of MAP.

    `ranking` is what the directions were made with.
    """
    return {
        name: Scores.of(each.counted(workers), ranking=ranking, bits=each.bits)
        for name, each in directions.items()
    }


def encode_queries(
    projections: npt.NDArray[np.float32], labels: LabelMatrix, ranking: RankingMode
) -> LabeledCodes:
    """Queries as codes, and what their bits weigh."""
    return LabeledCodes(
        Codes.from_projections(projections), labels, query_weights(projections, ranking)
    )


def both_directions(
    query_images: LabeledCodes, query_texts: LabeledCodes, images: LabeledCodes, texts: LabeledCodes
) -> dict[str, Direction]:
    return {
        "image_to_text": Direction(
            query_images.codes,
            texts.codes,
            query_images.labels,
            texts.labels,
            query_images.weights,
        ),
        "text_to_image": Direction(
            query_texts.codes,
            images.codes,
            query_texts.labels,
            images.labels,
            query_texts.weights,
        ),
    }
