"""Scores of a run: on a split or on anybody's labelled files, whole, in parts, by any engine."""

from transhash.runs.score.counted import Counted, count_benchmark, count_files, count_parts
from transhash.runs.score.directions import (
    Direction,
    ScoredDirection,
    directions_of,
    score_directions,
)
from transhash.runs.score.engines import engine_histograms, served_histograms
from transhash.runs.score.parts import DatabasePart

__all__ = [
    "Counted",
    "DatabasePart",
    "Direction",
    "ScoredDirection",
    "count_benchmark",
    "count_files",
    "count_parts",
    "directions_of",
    "engine_histograms",
    "score_directions",
    "served_histograms",
]
