"""Scores of a run on a benchmark split or on labeled files, by any index, complete or in shards."""

from transhash.scoring.backends import backend_histograms, index_histograms
from transhash.scoring.directions import (
    Direction,
    ScoredDirection,
    build_directions,
    score_directions,
)
from transhash.scoring.evaluate import (
    CountedRankings,
    DatabaseShard,
    count_benchmark,
    count_files,
    merge_shards,
)

__all__ = [
    "CountedRankings",
    "DatabaseShard",
    "Direction",
    "ScoredDirection",
    "backend_histograms",
    "build_directions",
    "count_benchmark",
    "count_files",
    "index_histograms",
    "merge_shards",
    "score_directions",
]
