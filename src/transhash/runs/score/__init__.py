"""Scores of a run: on a split or on anybody's labelled files, whole, in shards, by any engine."""

from transhash.runs.score.directions import (
    AMONG,
    Decodable,
    Direction,
    Labelled,
    labelled_directions,
    labelled_queries,
    read_labelled,
    split_directions,
)
from transhash.runs.score.engines import engine_histograms, served_histograms
from transhash.runs.score.shards import Shard, add_shards, write_shard

__all__ = [
    "AMONG",
    "Decodable",
    "Direction",
    "Labelled",
    "Shard",
    "add_shards",
    "engine_histograms",
    "labelled_directions",
    "labelled_queries",
    "read_labelled",
    "served_histograms",
    "split_directions",
    "write_shard",
]
