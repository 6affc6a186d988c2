"""Scores of a run: on a split or on anybody's labelled files, whole, in parts, by any engine."""

from transhash.scoring.backends import backend_histograms, index_histograms
from transhash.scoring.directions import (
    Direction,
    ScoredDirection,
    directions_of,
    score_directions,
)
from transhash.scoring.evaluate import (
    CountedRankings,
    DatabasePart,
    count_benchmark,
    count_files,
    merge_shards,
)

__all__ = [
    "CountedRankings",
    "DatabasePart",
    "Direction",
    "ScoredDirection",
    "backend_histograms",
    "count_benchmark",
    "count_files",
    "directions_of",
    "index_histograms",
    "merge_shards",
    "score_directions",
]
