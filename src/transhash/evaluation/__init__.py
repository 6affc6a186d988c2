"""MAP, precision and recall from codes (or scores) and labels, exact in expectation over ties."""

from transhash.data.collection import label_matrix
from transhash.evaluation.definitions import DEFINITIONS, Definition, find_definition
from transhash.evaluation.histogram import DistanceHistogram
from transhash.evaluation.scores import (
    RANKS,
    Scores,
    evaluate,
    result_tie_groups,
    score_tie_groups,
    tie_groups,
    weighted_tie_groups,
)

__all__ = [
    "DEFINITIONS",
    "RANKS",
    "Definition",
    "DistanceHistogram",
    "Scores",
    "evaluate",
    "find_definition",
    "label_matrix",
    "result_tie_groups",
    "score_tie_groups",
    "tie_groups",
    "weighted_tie_groups",
]
