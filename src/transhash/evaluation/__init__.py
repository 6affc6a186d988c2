"""Scores of Hamming rankings that mean what they say; needs codes and labels, never an engine."""

from transhash.data.collection import label_matrix
from transhash.evaluation.definitions import DEFINITIONS, Definition, find_definition
from transhash.evaluation.histogram import DistanceHistogram
from transhash.evaluation.scores import RANKS, Scores, evaluate, evaluate_both

__all__ = [
    "DEFINITIONS",
    "RANKS",
    "Definition",
    "DistanceHistogram",
    "Scores",
    "evaluate",
    "evaluate_both",
    "find_definition",
    "label_matrix",
]
