"""What `evaluate` counts: a benchmark, a part of one, all parts, or anybody's labelled files."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transhash.data.benchmark import Benchmark
from transhash.errors import DataError
from transhash.evaluation import DistanceHistogram
from transhash.index.weighted import RankingMode
from transhash.model.encoder import Encoder
from transhash.model.files import model_digest
from transhash.progress import Track, no_progress
from transhash.scoring.backends import backend_histograms, index_histograms
from transhash.scoring.directions import AMONG, ScoredDirection, TieGroups, directions_of
from transhash.scoring.labeled_files import (
    drop_voted_queries,
    keyword_directions,
    labelled_directions,
    labelled_queries,
    read_labelled,
)
from transhash.search.engine import SearchEngine
from transhash.storage import read_json, write_json
from transhash.training.split_data import build_test_set, load_benchmark_features

# Counts of one part of the databases on disk, and all parts added up (`evaluate --shard`).

_NOTE = "shard.json"


class DatabasePart(NamedTuple):
    """Every `of`-th row, beginning with the `number`-th."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> DatabasePart:
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise DataError(f"--shard takes i/n with 1 <= i <= n, got {text!r}")
        return cls(int(number), int(of))

    @property
    def rows(self) -> slice:
        return slice(self.number - 1, None, self.of)


def shard_identity(run: Path, benchmark: Benchmark, split_seed: int) -> dict[str, Any]:
    """What all shards of one evaluation have in common.

    The items count, too: a machine that lacks an image draws another split.
    """
    items = hashlib.blake2b(digest_size=16)
    for name in (*benchmark.images.ids, "", *benchmark.texts.ids):
        items.update(f"{name}\x00".encode(errors="surrogatepass"))
    return {
        "model": model_digest(run),
        "benchmark": benchmark.name,
        "split_seed": split_seed,
        "items": items.hexdigest(),
    }


def write_part(
    folder: Path,
    part: DatabasePart,
    histograms: Mapping[str, DistanceHistogram],
    facts: Mapping[str, Any],
    about: Mapping[str, Any],
) -> None:
    """The counts, with what must be equal in all shards (`facts`) and what need not (`about`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _NOTE).unlink(missing_ok=True)
    for name, histogram in histograms.items():
        histogram.save(folder / f"{name}.npz")
    note = {"shard": part.number, "of": part.of, "facts": dict(facts), "about": dict(about)}
    write_json(folder / _NOTE, note)  # last: a folder with a note is a whole one


def add_parts(
    folders: Sequence[Path],
) -> tuple[dict[str, DistanceHistogram], dict[str, Any], list[dict[str, Any]]]:
    """The histograms of the whole, the shards' facts, and what each says about itself."""
    notes = _check([(folder, _read_note(folder)) for folder in folders])
    histograms = {}
    for name in AMONG:
        total = _load(folders[0] / f"{name}.npz")
        for folder in folders[1:]:
            total = total + _load(folder / f"{name}.npz")
        histograms[name] = total
    return histograms, notes[0]["facts"], [note["about"] for note in notes]


def _read_note(folder: Path) -> dict[str, Any]:
    if not (folder / _NOTE).is_file():
        raise DataError(f"{folder} holds no finished shard; write it with --shard i/n")
    note = read_json(folder / _NOTE)
    kinds = {"shard": int, "of": int, "facts": dict, "about": dict}
    if not isinstance(note, dict) or any(
        not isinstance(note.get(name), kind) for name, kind in kinds.items()
    ):
        raise DataError(f"{folder / _NOTE} does not describe a shard; write it anew with --shard")
    return note


def _check(notes: Sequence[tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every shard of one evaluation once: else the score would be wrong without a word."""
    found: dict[int, Path] = {}
    first_folder, first = notes[0]
    for folder, note in notes:
        if note["of"] != first["of"]:
            raise DataError(
                f"{first_folder} is one of {first['of']} shards and {folder} one of {note['of']}; "
                "they do not add up"
            )
        other = [name for name, value in first["facts"].items() if note["facts"].get(name) != value]
        if other:
            raise DataError(
                f"{first_folder} and {folder} do not add up: their {' and '.join(other)} differ"
            )
        if note["shard"] in found:
            raise DataError(f"{found[note['shard']]} and {folder} are both shard {note['shard']}")
        found[note["shard"]] = folder
    missing = sorted(set(range(1, first["of"] + 1)) - found.keys())
    if missing:
        raise DataError(f"shard {missing[0]} is missing; --merge needs every shard once")
    return [note for _, note in notes]


def _load(path: Path) -> DistanceHistogram:
    try:
        return DistanceHistogram.load(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); write the shard anew") from None


@dataclass(frozen=True)
class CountedRankings:
    """Both directions, and what is said beside their scores."""

    histograms: Mapping[str, TieGroups]
    about: dict[str, Any]
    keyword: dict[str, ScoredDirection] | None = None  # keyword search, where pictures have names


def count_benchmark(
    run: Path,
    folder: Path,
    split_seed: int = 0,
    *,
    ranking: RankingMode = "hamming",
    index: str | None = None,
    part: DatabasePart | None = None,
    to: Path | None = None,
    track: Track = no_progress,
) -> CountedRankings:
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
    ready, problems = load_benchmark_features(folder, features, track, compute=part is None)
    start = time.perf_counter()
    # The run's own vocabulary: the split's texts must pass exactly what the model was fitted to.
    target = build_test_set(
        ready, ready.split(split_seed), words, features,
        slice(None) if part is None else part.rows, track,
    )  # fmt: skip
    directions = directions_of(encoder.hasher, target, ranking)
    about = _about(encoder, ready.name, split_seed, ranking, start, len(problems))
    histograms: dict[str, TieGroups]
    if index is None:
        histograms = {name: each.counted() for name, each in directions.items()}
    else:
        histograms, sent = backend_histograms(index, directions, track)
        about |= {"index": index, "sent": sent}
    if part is not None and to is not None:
        tables = {n: each for n, each in histograms.items() if isinstance(each, DistanceHistogram)}
        write_part(to, part, tables, shard_identity(run, ready, split_seed), about)
    return CountedRankings(histograms, about)


def merge_shards(
    run: Path, folders: list[Path], split_seed: int = 0, benchmark: Path | None = None
) -> CountedRankings:
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
    return CountedRankings(histograms, parts[0] | {"encode_seconds": seconds})


def count_files(
    run: Path,
    images: Path,
    texts: Path,
    queries: int = 1000,
    seed: int = 0,
    *,
    ranking: RankingMode = "hamming",
    index: str | None = None,
    track: Track = no_progress,
) -> CountedRankings:
    """A run on labelled files: all of them encoded, or looked for in the index as it is served."""
    items = read_labelled(images, texts, queries, seed)
    name = " and ".join(dict.fromkeys((images.name, texts.name)))
    listed = len(items.images.problems) + len(items.texts.problems)
    if index is None:
        encoder = Encoder.load(run)
        items, voted = drop_voted_queries(items, encoder.votes)
        start = time.perf_counter()
        directions, bad = labelled_directions(encoder, items, ranking, track)
        about = _about(encoder, name, seed, ranking, start, listed + len(bad))
        histograms = {key: each.counted() for key, each in directions.items()}
        about |= {"unlabelled": items.unlabelled, "voted": voted}
        return CountedRankings(histograms, about, keyword_directions(items))
    engine = SearchEngine.open(run, index)
    try:
        items, voted = drop_voted_queries(items, engine.encoder.votes)
        start = time.perf_counter()
        queries_of, bad = labelled_queries(engine.encoder, items, ranking, track)
        about = _about(engine.encoder, name, seed, ranking, start, listed + len(bad))
        ranked, missing = index_histograms(engine, items, queries_of, track)
    finally:
        engine.close()
    about |= {"unlabelled": items.unlabelled, "voted": voted}
    about |= {"index": index, "not_indexed": missing}
    return CountedRankings(ranked, about)


def _about(
    encoder: Encoder, name: str, seed: int, ranking: RankingMode, start: float, problems: int
) -> dict[str, Any]:
    return {
        "method": encoder.method, "bits": encoder.bits, "ranking": ranking,
        "benchmark": name, "split_seed": seed,
        "encode_seconds": round(time.perf_counter() - start, 2), "problems": problems,
    }  # fmt: skip
