"""What scores are counted from: rankings and labels of queries and database, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, overload

import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, Rows
from transhash.evaluation import DistanceHistogram, Scores, ranked_blocks
from transhash.hashers import Hasher
from transhash.hashers.base import Scorer
from transhash.runs.catalog import Modality
from transhash.runs.task import LabelMatrix, Target

AMONG: dict[str, Modality] = {"image_to_text": "texts", "text_to_image": "images"}


class Coded(NamedTuple):
    """Codes of some items, and the labels that say which answers are right."""

    codes: Codes
    labels: LabelMatrix


class Direction(NamedTuple):
    """Queries of one kind against a database of the other."""

    queries: Codes
    database: Codes
    query_labels: LabelMatrix
    database_labels: LabelMatrix

    def counted(self, workers: int | None = None) -> DistanceHistogram:
        return DistanceHistogram.of(*self, workers=workers)


class ScoredDirection(NamedTuple):
    """The same by a method that has no codes: scores of some queries with the whole database."""

    score: Callable[[Rows], npt.NDArray[Any]]
    query_labels: LabelMatrix
    database_labels: LabelMatrix

    def counted(self, workers: int | None = None) -> Iterable[DistanceHistogram]:
        return ranked_blocks(self.score, LabelRelation(self.query_labels, self.database_labels))


@overload
def directions_of(method: Hasher, target: Target) -> dict[str, Direction]: ...
@overload
def directions_of(method: Scorer, target: Target) -> dict[str, ScoredDirection]: ...
def directions_of(
    method: Hasher | Scorer, target: Target
) -> dict[str, Direction] | dict[str, ScoredDirection]:
    """A split's queries against its databases: encoded, or to be scored some queries at a time."""
    images, texts = target.database_images, target.database_texts
    asking_images, asking_texts = target.query_images, target.query_texts
    if isinstance(method, Hasher):
        return both_ways(
            Coded(method.encode_images(asking_images.features), asking_images.labels),
            Coded(method.encode_texts(asking_texts.features), asking_texts.labels),
            Coded(method.encode_images(images.features), images.labels),
            Coded(method.encode_texts(texts.features), texts.labels),
        )
    return {
        "image_to_text": ScoredDirection(
            lambda rows: method.score(asking_images.features[rows], texts.features),
            asking_images.labels,
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
) -> dict[str, Scores]:
    """The scores of each direction, by the default definition of MAP."""
    return {name: Scores.of(each.counted(workers)) for name, each in directions.items()}


def both_ways(
    query_images: Coded, query_texts: Coded, images: Coded, texts: Coded
) -> dict[str, Direction]:
    return {
        "image_to_text": Direction(
            query_images.codes, texts.codes, query_images.labels, texts.labels
        ),
        "text_to_image": Direction(
            query_texts.codes, images.codes, query_texts.labels, images.labels
        ),
    }
