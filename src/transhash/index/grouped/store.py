"""The folder of a grouped index: a manifest that names one generation of immutable files.

index.json         the generation: segments, their removed ids, the log; replaced in one step
segment-N.bin      items grouped by code, never changed
dead-N-i.bin       ids of segment i that were removed or replaced since
log-N.bin          changes since the generation was written
writer.lock        held by the one process that writes
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transhash.codes import check_bits
from transhash.errors import DataError, EngineError
from transhash.index.base import Ids
from transhash.index.grouped.arrays_file import (
    open_arrays,
    sync_folder,
    verify_arrays,
    write_arrays,
)
from transhash.index.grouped.log import create_log
from transhash.index.grouped.parts import NOTHING, Part
from transhash.index.grouped.segment import Segment

MANIFEST = "index.json"
FORMAT = "transhash grouped index"
VERSION = 1


class SegmentEntry(NamedTuple):
    file: str
    dead: str | None


class Generation(NamedTuple):
    number: int
    bits: int
    segments: tuple[SegmentEntry, ...]
    log: str


def read_generation(folder: Path) -> Generation:
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_bytes())
        body = document["index"]
        if document["format"] != FORMAT:
            raise EngineError(f"{path} is not the manifest of a grouped index")
        if document["version"] != VERSION:
            raise EngineError(
                f"{folder} has layout version {document['version']}, this transhash reads "
                f"{VERSION}; use the transhash that wrote it, or rebuild the index"
            )
        if document["crc32"] != _checksum(body):
            raise ValueError("the checksum does not match")
        entries = tuple(SegmentEntry(entry["file"], entry["dead"]) for entry in body["segments"])
        check_bits(body["bits"])
        return Generation(body["generation"], body["bits"], entries, body["log"])
    except (ValueError, KeyError, TypeError, DataError) as error:
        raise EngineError(
            f"{path} is damaged ({error}); restore it from a copy or rebuild the index"
        ) from None


def write_generation(folder: Path, generation: Generation) -> None:
    """Commits: what the manifest names must be on disk already, and is from now on the index."""
    body = {
        "generation": generation.number,
        "bits": generation.bits,
        "segments": [entry._asdict() for entry in generation.segments],
        "log": generation.log,
    }
    document = {"format": FORMAT, "version": VERSION, "crc32": _checksum(body), "index": body}
    sync_folder(folder)  # the new files' names, before anything refers to them
    draft = folder / "index.draft"
    with draft.open("w") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / MANIFEST)
    sync_folder(folder)


def create(folder: Path, bits: int) -> Generation:
    generation = Generation(1, bits, (), "log-1.bin")
    create_log(folder / generation.log)
    write_generation(folder, generation)
    return generation


def clean(folder: Path, generation: Generation) -> None:
    """Deletes what no generation names: left over from before, or from a crash."""
    named = {generation.log} | {name for entry in generation.segments for name in entry if name}
    for pattern in ("segment-*", "dead-*", "log-*", "*.draft"):
        for path in folder.glob(pattern):
            if path.name not in named:
                path.unlink(missing_ok=True)  # readers that have it open keep it


def commit(
    folder: Path, last: Generation, parts: Sequence[Part]
) -> tuple[Generation, tuple[Part, ...]]:
    """The generation after `last`, on disk for good, and its parts as mapped files."""
    known = {name for entry in last.segments for name in entry}
    written = []
    try:
        for part in parts:
            segment, dead = part.segment, part.dead
            if part.file not in known:
                about = {"bits": last.bits, "patience": segment.patience}
                write_arrays(folder / part.file, about, segment.arrays())
                segment = _open_segment(folder / part.file, last.bits)
            if part.dead_file is not None and part.dead_file not in known:
                write_arrays(folder / part.dead_file, {}, {"ids": dead})
                dead = _open_dead(folder, part.dead_file)
            written.append(Part(segment, dead, NOTHING, part.file, part.dead_file))
        number = last.number + 1
        entries = tuple(SegmentEntry(part.file, part.dead_file) for part in written)
        generation = Generation(number, last.bits, entries, f"log-{number}.bin")
        create_log(folder / generation.log)
        write_generation(folder, generation)
    except OSError as error:
        raise EngineError(f"cannot write to {folder} ({error}); nothing was stored") from None
    return generation, tuple(written)


def open_parts(
    folder: Path, generation: Generation, mapped: Sequence[Part] = ()
) -> tuple[Part, ...]:
    """The parts a generation names; files that `mapped` has open already are not opened again."""
    opened = {part.file: part.segment for part in mapped}
    return tuple(
        Part(
            opened.get(entry.file) or _open_segment(folder / entry.file, generation.bits),
            _open_dead(folder, entry.dead),
            file=entry.file,
            dead_file=entry.dead,
        )
        for entry in generation.segments
    )


def _open_segment(path: Path, bits: int) -> Segment:
    about, arrays = open_arrays(path)
    if about.get("bits") != bits or not {"words", "ids"} <= arrays.keys():
        raise EngineError(f"{path} does not belong to this index of {bits} bits")
    optional = {key: arrays.get(key) for key in ("offsets", "sorted_ids", "starts", "orders")}
    return Segment(arrays["words"], ids=arrays["ids"], patience=about["patience"], **optional)


def _open_dead(folder: Path, name: str | None) -> Ids:
    return NOTHING if name is None else open_arrays(folder / name)[1]["ids"]


def verify(folder: Path, generation: Generation) -> None:
    for entry in generation.segments:
        for name in entry:
            if name:
                verify_arrays(folder / name)


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
