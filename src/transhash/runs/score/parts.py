"""Counts of one part of the databases on disk, and all parts added up (`evaluate --shard`)."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transhash.data.benchmark import Benchmark
from transhash.errors import DataError
from transhash.evaluation import DistanceHistogram
from transhash.runs.model_files import model_digest
from transhash.runs.score.directions import AMONG
from transhash.storage import read_json, write_json

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


def part_facts(run: Path, benchmark: Benchmark, split_seed: int) -> dict[str, Any]:
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
