"""What `evaluate` counts: a benchmark, a part of one, all parts, or anybody's labelled files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transhash.errors import DataError
from transhash.evaluation import DistanceHistogram
from transhash.index.weighted import RankingMode
from transhash.progress import Track, silent
from transhash.runs.encoder import Encoder
from transhash.runs.model_files import model_digest
from transhash.runs.score.directions import CountedRankings, ScoredDirection, directions_of
from transhash.runs.score.engines import engine_histograms, served_histograms
from transhash.runs.score.files import (
    labelled_directions,
    labelled_queries,
    read_labelled,
    unvoted,
)
from transhash.runs.score.keywords import keyword_directions
from transhash.runs.score.parts import DatabasePart, add_parts, part_facts, write_part
from transhash.runs.search import SearchEngine
from transhash.runs.task import build_target, ready_benchmark


@dataclass(frozen=True)
class Counted:
    """Both directions, and what is said beside their scores."""

    histograms: Mapping[str, CountedRankings]
    about: dict[str, Any]
    by_name: dict[str, ScoredDirection] | None = None  # keyword search, where pictures have names


def count_benchmark(
    run: Path,
    folder: Path,
    split_seed: int = 0,
    *,
    ranking: RankingMode = "hamming",
    index: str | None = None,
    part: DatabasePart | None = None,
    to: Path | None = None,
    track: Track = silent,
) -> Counted:
    """A run on a split: by its codes alone, or as the engine at `index` ranks them.

    With `part` only that part of the databases is read, and its counts are written to `to`: counts
    by Hamming distance, for those of a finer ranking do not add up.
    """
    if part is not None and ranking != "hamming":
        raise DataError("parts of a database add up by Hamming distance only; leave --ranking out")
    encoder = Encoder.load(run)
    if encoder.votes is not None:
        raise DataError(
            f"{run} learned from votes, so it has no place in a benchmark's table; fit without "
            "votes, or score it on labelled files of your own"
        )
    features, words = encoder.image_features, encoder.text_features
    if features is None or words is None:
        raise DataError(
            f"{run} was trained on precomputed features; a benchmark has images and texts"
        )
    ready, problems = ready_benchmark(folder, features, track, compute=part is None)
    start = time.perf_counter()
    # The run's own vocabulary: the split's texts must pass exactly what the model was fitted to.
    target = build_target(
        ready, ready.split(split_seed), words, features,
        slice(None) if part is None else part.rows, track,
    )  # fmt: skip
    directions = directions_of(encoder.hasher, target, ranking)
    about = _about(encoder, ready.name, split_seed, ranking, start, len(problems))
    histograms: dict[str, CountedRankings]
    if index is None:
        histograms = {name: each.counted() for name, each in directions.items()}
    else:
        histograms, sent = engine_histograms(index, directions, track)
        about |= {"index": index, "sent": sent}
    if part is not None and to is not None:
        tables = {n: each for n, each in histograms.items() if isinstance(each, DistanceHistogram)}
        write_part(to, part, tables, part_facts(run, ready, split_seed), about)
    return Counted(histograms, about)


def count_parts(
    run: Path, folders: list[Path], split_seed: int = 0, benchmark: Path | None = None
) -> Counted:
    """All parts added up. Nothing is encoded: they say what they are of, and must be of this."""
    histograms, facts, parts = add_parts(folders)
    name = facts["benchmark"]
    if facts["model"] != model_digest(run):
        raise DataError(f"{folders[0]} was not written by {run}; give the run of the shards")
    if benchmark is not None and name not in (benchmark.name, benchmark.resolve().name):
        raise DataError(f"{folders[0]} is a shard of {name}, not of {benchmark}")
    if facts["split_seed"] != split_seed:
        raise DataError(f"{folders[0]} is of split {facts['split_seed']}; give it as --split-seed")
    seconds = round(sum(part["encode_seconds"] for part in parts), 2)
    return Counted(histograms, parts[0] | {"encode_seconds": seconds})


def count_files(
    run: Path,
    images: Path,
    texts: Path,
    queries: int = 1000,
    seed: int = 0,
    *,
    ranking: RankingMode = "hamming",
    index: str | None = None,
    track: Track = silent,
) -> Counted:
    """A run on labelled files: all of them encoded, or looked for in the index as it is served."""
    items = read_labelled(images, texts, queries, seed)
    name = " and ".join(dict.fromkeys((images.name, texts.name)))
    listed = len(items.images.problems) + len(items.texts.problems)
    if index is None:
        encoder = Encoder.load(run)
        items, voted = unvoted(items, encoder.votes)
        start = time.perf_counter()
        directions, bad = labelled_directions(encoder, items, ranking, track)
        about = _about(encoder, name, seed, ranking, start, listed + len(bad))
        histograms = {key: each.counted() for key, each in directions.items()}
        about |= {"unlabelled": items.unlabelled, "voted": voted}
        return Counted(histograms, about, keyword_directions(items))
    engine = SearchEngine.open(run, index)
    try:
        items, voted = unvoted(items, engine.encoder.votes)
        start = time.perf_counter()
        queries_of, bad = labelled_queries(engine.encoder, items, ranking, track)
        about = _about(engine.encoder, name, seed, ranking, start, listed + len(bad))
        ranked, missing = served_histograms(engine, items, queries_of, track)
    finally:
        engine.close()
    about |= {"unlabelled": items.unlabelled, "voted": voted}
    about |= {"index": index, "not_indexed": missing}
    return Counted(ranked, about)


def _about(
    encoder: Encoder, name: str, seed: int, ranking: RankingMode, start: float, problems: int
) -> dict[str, Any]:
    return {
        "method": encoder.method, "bits": encoder.bits, "ranking": ranking,
        "benchmark": name, "split_seed": seed,
        "encode_seconds": round(time.perf_counter() - start, 2), "problems": problems,
    }  # fmt: skip
