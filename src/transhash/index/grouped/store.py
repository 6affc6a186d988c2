"""The folder of a grouped index: a manifest that names one generation of immutable files.

index.json         the generation: segments, their removed ids, the log; replaced in one step
segment-N.bin      items grouped by code, never changed
dead-N-i.bin       ids of segment i that were removed or replaced since
log-N.bin          changes since the generation was written
writer.lock        held by the one process that writes
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transhash.errors import CorruptionError, DataError, EngineError
from transhash.index.base import Ids, check_length
from transhash.index.grouped.arrays_file import open_arrays, verify_arrays, write_arrays
from transhash.index.grouped.log import Log, create_log
from transhash.index.grouped.segment import Segment
from transhash.index.grouped.segments import NOTHING, LiveSegment
from transhash.storage import write_json

MANIFEST = "index.json"
_FORMAT = "transhash grouped index"
_VERSION = 1
_OWN = re.compile(r"(segment-\d+|dead-\d+-\d+|log-\d+)\.bin")
_DRAFT = re.compile(r"(\..+|segment-.+|dead-.+|index)\.draft")


class SegmentEntry(NamedTuple):
    file: str
    deleted: str | None


class Generation(NamedTuple):
    number: int
    bits: int
    segments: tuple[SegmentEntry, ...]
    log: str

    @property
    def files(self) -> list[str]:
        """All but the log."""
        return [name for entry in self.segments for name in entry if name]


def exists(folder: Path) -> bool:
    """Whether there is an index; one that lost its manifest is damage, not an empty place."""
    if (folder / MANIFEST).exists():
        return True
    # A crash while an index is made leaves a log of nothing but its name.
    for path in folder.glob("*.bin"):
        if _OWN.fullmatch(path.name) and path.stat().st_size > 8:
            raise CorruptionError(f"{folder / MANIFEST} is missing beside {path.name}")
    return False


def read_generation(folder: Path) -> Generation:
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_bytes())
        body = document["index"]
        if document["format"] != _FORMAT:
            raise ValueError("not the manifest of a grouped index")
        if document["version"] != _VERSION:
            raise EngineError(
                f"{folder} has layout version {document['version']}, this transhash reads "
                f"{_VERSION}; use the transhash that wrote it, or rebuild the index"
            )
        if document["crc32"] != _checksum(body):
            raise ValueError("the checksum does not match")
        entries = tuple(SegmentEntry(entry["file"], entry["dead"]) for entry in body["segments"])
        bits = check_length(body["bits"])
        return Generation(body["generation"], bits, entries, body["log"])
    except FileNotFoundError:
        raise CorruptionError(f"{path} is missing") from None
    except OSError as error:
        raise EngineError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, DataError, RecursionError) as error:
        raise CorruptionError(f"{path} is damaged ({error})") from None


def write_generation(folder: Path, generation: Generation) -> None:
    """Commits: what the manifest names must be on disk already, and is from now on the index."""
    body = {
        "generation": generation.number,
        "bits": generation.bits,
        "segments": [entry._asdict() for entry in generation.segments],
        "log": generation.log,
    }
    document = {"format": _FORMAT, "version": _VERSION, "crc32": _checksum(body), "index": body}
    write_json(folder / MANIFEST, document)


def stamp(folder: Path) -> tuple[int, int]:
    """Changes whenever a generation is committed."""
    try:
        found = (folder / MANIFEST).stat()
    except FileNotFoundError as error:
        raise CorruptionError(f"{error.filename} is missing") from None
    return found.st_ino, found.st_mtime_ns


def create(folder: Path, bits: int) -> Generation:
    generation = Generation(1, bits, (), "log-1.bin")
    create_log(folder / generation.log)
    write_generation(folder, generation)
    return generation


def clean(folder: Path, generation: Generation) -> None:
    """Deletes what no generation names: left over from before, or from a crash."""
    named = {generation.log, *generation.files}
    for path in folder.iterdir():
        if path.name not in named and (_OWN.fullmatch(path.name) or _DRAFT.fullmatch(path.name)):
            with contextlib.suppress(OSError):  # the next one that writes tries again
                path.unlink()  # readers that have it open keep it


def commit(
    folder: Path, last: Generation, parts: Sequence[LiveSegment]
) -> tuple[Generation, tuple[LiveSegment, ...]]:
    """The generation after `last`, on disk for good, and its parts as mapped files."""
    written = []
    try:
        for part in parts:
            segment, deleted = part.segment, part.deleted
            if part.file not in last.files:
                about = {"bits": last.bits, "patience": segment.probe_budget}
                write_arrays(folder / part.file, about, segment.arrays())
                segment = _open_segment(folder / part.file, last.bits)
            if part.dead_file is not None and part.dead_file not in last.files:
                write_arrays(folder / part.dead_file, {}, {"ids": deleted})
                deleted = _open_dead(folder, part.dead_file)
            written.append(LiveSegment(segment, deleted, NOTHING, part.file, part.dead_file))
        number = last.number + 1
        entries = tuple(SegmentEntry(part.file, part.dead_file) for part in written)
        generation = Generation(number, last.bits, entries, f"log-{number}.bin")
        create_log(folder / generation.log)
        write_generation(folder, generation)
    except EngineError:
        if read_generation(folder) == last:
            clean(folder, last)  # half a generation would keep a full disk full
        raise
    return generation, tuple(written)


def open_parts(
    folder: Path, generation: Generation, mapped: Sequence[LiveSegment] = ()
) -> tuple[LiveSegment, ...]:
    """The parts a generation names; files that `mapped` has open already are not opened again."""
    opened = {part.file: part.segment for part in mapped}
    return tuple(
        LiveSegment(
            opened.get(entry.file) or _open_segment(folder / entry.file, generation.bits),
            _open_dead(folder, entry.deleted),
            file=entry.file,
            dead_file=entry.deleted,
        )
        for entry in generation.segments
    )


def _open_segment(path: Path, bits: int) -> Segment:
    about, arrays = open_arrays(path)
    if about.get("bits") != bits or not {"words", "ids"} <= arrays.keys():
        raise EngineError(f"{path} does not belong to this index of {bits} bits")
    optional = {key: arrays.get(key) for key in ("offsets", "sorted_ids", "starts", "orders")}
    return Segment(arrays["words"], ids=arrays["ids"], probe_budget=about["patience"], **optional)


def _open_dead(folder: Path, name: str | None) -> Ids:
    return NOTHING if name is None else open_arrays(folder / name)[1]["ids"]


def verify_files(folder: Path, names: Iterable[str]) -> None:
    """Reads files of arrays whole; all that is damaged or missing is told at once."""
    found: list[str] = []
    for name in names:
        try:
            verify_arrays(folder / name)
        except CorruptionError as error:
            found += error.details
        except FileNotFoundError:
            found.append(f"{folder / name} is missing")
    if found:
        raise CorruptionError(*found)


def verify(folder: Path, generation: Generation, log_end: int, *, following: bool) -> bool:
    """Reads a generation and its log, which once went to `log_end`; all damage is told at once.

    False where a generation that is followed was left behind by its writer meanwhile.
    """
    found: list[str] = []
    try:
        verify_files(folder, generation.files)
    except CorruptionError as error:
        found += error.details
    path = folder / generation.log
    try:
        with contextlib.closing(Log(path, generation.bits // 8, writable=False)) as log:
            for _ in log.replay():
                pass
            if log.end < log_end:
                found.append(f"{path} is cut short ({log.end} bytes, {log_end} expected)")
    except CorruptionError as error:
        found += error.details
    except FileNotFoundError:
        found.append(f"{path} is missing")
    try:
        if read_generation(folder) != generation:
            if following:
                return False
            found.append(f"{folder / MANIFEST} was changed by another process")
    except CorruptionError as error:
        found += error.details
    if found:
        raise CorruptionError(*found)
    return True


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
