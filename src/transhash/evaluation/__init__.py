"""Scores of rankings that mean what they say; needs codes (or scores) and labels, no engine."""

from transhash.data.collection import label_matrix
from transhash.evaluation.definitions import DEFINITIONS, Definition, find_definition
from transhash.evaluation.histogram import DistanceHistogram
from transhash.evaluation.scores import (
    RANKS,
    Scores,
    answered_costs,
    evaluate,
    ranked_blocks,
    tie_groups,
    weighted_blocks,
)

__all__ = [
    "DEFINITIONS",
    "RANKS",
    "Definition",
    "DistanceHistogram",
    "Scores",
    "answered_costs",
    "evaluate",
    "find_definition",
    "label_matrix",
    "ranked_blocks",
    "tie_groups",
    "weighted_blocks",
]
