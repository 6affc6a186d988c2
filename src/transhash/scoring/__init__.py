"""Scores of a run: on a split or on anybody's labelled files, whole, in parts, by any engine."""

from transhash.scoring.backends import engine_histograms, served_histograms
from transhash.scoring.directions import (
    Direction,
    ScoredDirection,
    directions_of,
    score_directions,
)
from transhash.scoring.evaluate import (
    Counted,
    DatabasePart,
    count_benchmark,
    count_files,
    count_parts,
)

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
