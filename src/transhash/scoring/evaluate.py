"""Counts for `transhash evaluate`: of a benchmark, its shards, or labeled files."""

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
from transhash.scoring.directions import (
    RESULT_MODALITY,
    ScoredDirection,
    TieGroups,
    build_directions,
)
from transhash.scoring.labeled_files import (
    drop_voted_queries,
    keyword_directions,
    labeled_directions,
    labeled_queries,
    read_labeled,
)
from transhash.search.engine import SearchEngine
from transhash.storage import make_folder, read_json, write_json
from transhash.training.split_data import build_test_set, load_benchmark_features

_SHARD_FILE = "shard.json"


class DatabaseShard(NamedTuple):
    """Every `total`-th row of the database, from the `number`-th on; numbers begin with 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> DatabaseShard:
        number, slash, total = text.partition("/")
        valid = slash and number.isdecimal() and total.isdecimal()
        if not (valid and 1 <= int(number) <= int(total)):
            raise DataError(f"--shard must be i/n with 1 <= i <= n, got {text!r}.")
        return cls(int(number), int(total))

    @property
    def rows(self) -> slice:
        return slice(self.number - 1, None, self.total)


@dataclass(frozen=True)
class CountedRankings:
    """Tie groups of both directions, and facts that are reported with the scores."""

    histograms: Mapping[str, TieGroups]
    about: dict[str, Any]
    keyword: dict[str, ScoredDirection] | None = None  # keyword search, if images have names


def count_benchmark(
    run: Path,
    folder: Path,
    split_seed: int = 0,
    *,
    ranking: RankingMode = "hamming",
    index: str | None = None,
    shard: DatabaseShard | None = None,
    output: Path | None = None,
    track: Track = no_progress,
) -> CountedRankings:
    """Rank a split by the run's codes, or with the index at `index`.

    With `shard` only that part of the databases is read, and its counts are written to `output`.
    Only counts by Hamming distance can be added.
    """
    if shard is not None and ranking != "hamming":
        raise DataError("Shards can only be added by Hamming distance. Remove --ranking.")
    encoder = Encoder.load(run)
    if encoder.votes is not None:
        raise DataError(
            f"{run} was trained on votes, so benchmark scores would not be comparable. Fit without "
            "votes, or evaluate on labeled files."
        )
    image_features, text_features = encoder.image_features, encoder.text_features
    if image_features is None or text_features is None:
        raise DataError(
            f"{run} was trained on precomputed features, but a benchmark has images and texts. "
            "Evaluate on labeled files."
        )
    benchmark, problems = load_benchmark_features(
        folder, image_features, track, compute=shard is None
    )
    start = time.perf_counter()
    # With the run's text features: the model was fitted on their vocabulary.
    test_set = build_test_set(
        benchmark, benchmark.split(split_seed), text_features, image_features,
        slice(None) if shard is None else shard.rows, track,
    )  # fmt: skip
    directions = build_directions(encoder.hasher, test_set, ranking)
    about = _about(encoder, benchmark.name, split_seed, ranking, start, len(problems))
    histograms: dict[str, TieGroups]
    if index is None:
        histograms = {name: direction.tie_groups() for name, direction in directions.items()}
    else:
        histograms, sent = backend_histograms(index, directions, track)
        about |= {"index": index, "sent": sent}
    if shard is not None and output is not None:
        tables = {n: each for n, each in histograms.items() if isinstance(each, DistanceHistogram)}
        _write_shard(output, shard, tables, _shard_identity(run, benchmark, split_seed), about)
    return CountedRankings(histograms, about)


def merge_shards(
    run: Path, folders: list[Path], split_seed: int = 0, benchmark: Path | None = None
) -> CountedRankings:
    """Add the counts of all shards, after checking that they belong to this evaluation."""
    records = _check_shards([(folder, _read_shard(folder)) for folder in folders])
    identity, about = records[0]["identity"], records[0]["about"]
    name = identity["benchmark"]
    if identity["model"] != model_digest(run):
        raise DataError(f"{folders[0]} was not written by {run}. Pass the run of the shards.")
    if benchmark is not None and name not in (benchmark.name, benchmark.resolve().name):
        raise DataError(f"{folders[0]} is a shard of {name}, not of {benchmark}. Pass {name}.")
    if identity["split_seed"] != split_seed:
        raise DataError(
            f"{folders[0]} belongs to split {identity['split_seed']}. "
            f"Pass --split-seed {identity['split_seed']}."
        )
    histograms: dict[str, TieGroups] = {}
    for direction in RESULT_MODALITY:
        total = _load_histogram(folders[0] / f"{direction}.npz")
        for folder in folders[1:]:
            total = total + _load_histogram(folder / f"{direction}.npz")
        histograms[direction] = total
    seconds = round(sum(record["about"]["encode_seconds"] for record in records), 2)
    return CountedRankings(histograms, about | {"encode_seconds": seconds})


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
    """Rank labeled files: encode all of them, or find them in the existing index at `index`."""
    files = read_labeled(images, texts, queries, seed)
    name = " and ".join(dict.fromkeys((images.name, texts.name)))
    skipped = len(files.images.problems) + len(files.texts.problems)
    if index is None:
        encoder = Encoder.load(run)
        files, voted = drop_voted_queries(files, encoder.votes)
        start = time.perf_counter()
        directions, problems = labeled_directions(encoder, files, ranking, track)
        about = _about(encoder, name, seed, ranking, start, skipped + len(problems))
        histograms = {key: direction.tie_groups() for key, direction in directions.items()}
        about |= {"unlabeled": files.unlabeled, "voted": voted}
        return CountedRankings(histograms, about, keyword_directions(files))
    with SearchEngine.open(run, index) as engine:
        files, voted = drop_voted_queries(files, engine.encoder.votes)
        start = time.perf_counter()
        query_codes, problems = labeled_queries(engine.encoder, files, ranking, track)
        about = _about(engine.encoder, name, seed, ranking, start, skipped + len(problems))
        rankings, missing = index_histograms(engine, files, query_codes, track)
    about |= {"unlabeled": files.unlabeled, "voted": voted}
    about |= {"index": index, "not_indexed": missing}
    return CountedRankings(rankings, about)


def _about(
    encoder: Encoder, name: str, seed: int, ranking: RankingMode, start: float, problems: int
) -> dict[str, Any]:
    return {
        "method": encoder.method, "bits": encoder.bits, "ranking": ranking,
        "benchmark": name, "split_seed": seed,
        "encode_seconds": round(time.perf_counter() - start, 2), "problems": problems,
    }  # fmt: skip


def _shard_identity(run: Path, benchmark: Benchmark, split_seed: int) -> dict[str, Any]:
    """Return what must be equal in all shards of one evaluation.

    It includes the items: a machine on which an image is missing draws another split.
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


def _write_shard(
    folder: Path,
    shard: DatabaseShard,
    histograms: Mapping[str, DistanceHistogram],
    identity: Mapping[str, Any],
    about: Mapping[str, Any],
) -> None:
    make_folder(folder)
    (folder / _SHARD_FILE).unlink(missing_ok=True)
    for name, histogram in histograms.items():
        histogram.save(folder / f"{name}.npz")
    record = {**shard._asdict(), "identity": dict(identity), "about": dict(about)}
    write_json(folder / _SHARD_FILE, record)  # last: its presence means the shard is complete


def _read_shard(folder: Path) -> dict[str, Any]:
    if not (folder / _SHARD_FILE).is_file():
        raise DataError(f"{folder} has no complete shard. Write it with --shard i/n.")
    record = read_json(folder / _SHARD_FILE)
    types = {"number": int, "total": int, "identity": dict, "about": dict}
    if not isinstance(record, dict) or any(
        not isinstance(record.get(name), kind) for name, kind in types.items()
    ):
        raise DataError(
            f"{folder / _SHARD_FILE} is not a valid shard. Write it again with --shard."
        )
    return record


def _check_shards(records: Sequence[tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Raise unless every shard of one evaluation is there once."""
    folders: dict[int, Path] = {}
    first_folder, first = records[0]
    for folder, record in records:
        number, identity = record["number"], record["identity"]
        different = [key for key, value in first["identity"].items() if identity.get(key) != value]
        if record["total"] != first["total"]:
            different = ["the number of shards"]
        if different:
            raise DataError(
                f"{first_folder} and {folder} differ in {' and '.join(different)}. "
                "Pass shards of one evaluation."
            )
        if number in folders:
            raise DataError(f"{folders[number]} and {folder} are both shard {number}. Remove one.")
        folders[number] = folder
    missing = sorted(set(range(1, first["total"] + 1)) - folders.keys())
    if missing:
        raise DataError(f"Shard {missing[0]} is missing. Pass every shard once with --merge.")
    return [record for _, record in records]


def _load_histogram(path: Path) -> DistanceHistogram:
    try:
        return DistanceHistogram.load(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}). Write the shard again.") from None
