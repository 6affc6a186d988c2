"""The folder of a grouped index: a manifest that names one generation of immutable files.

index.json         the generation: segments, their deleted ids, the log; replaced in one step
segment-N.bin      items grouped by code, never changed
dead-N-i.bin       ids of segment i that were removed or replaced since
log-N.bin          changes since the generation was written
writer.lock        held by the one process that writes
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from transhash.errors import CorruptionError, DataError, EngineError
from transhash.index.base import NO_IDS, Ids, Packed, check_length
from transhash.index.grouped.arrays_file import open_arrays, verify_arrays, write_arrays
from transhash.index.grouped.log import Log, create_log
from transhash.index.grouped.segment import Segment
from transhash.index.grouped.segments import LiveSegment
from transhash.storage import read_regular, write_json

MANIFEST = "index.json"
_FORMAT = "transhash grouped index"
_VERSION = 3
_DATA_FILE = re.compile(r"(segment-\d+|dead-\d+-\d+|log-\d+)\.bin")
_DRAFT_FILE = re.compile(r"\..+\.draft")


class SegmentEntry(NamedTuple):
    file: str
    deleted: str | None
    probe_budget: float = 0.0


class Generation(NamedTuple):
    number: int
    bits: int
    segments: tuple[SegmentEntry, ...]
    log: str
    trial_queries: str = ""  # packed codes in hexadecimal

    @property
    def array_files(self) -> list[str]:
        names = [name for entry in self.segments for name in (entry.file, entry.deleted)]
        return [name for name in names if name]

    @property
    def trials(self) -> Packed:
        packed = np.frombuffer(bytes.fromhex(self.trial_queries), np.uint8)
        return packed.reshape(-1, self.bits // 8)


def exists(folder: Path) -> bool:
    """Return whether there is an index; data files without a manifest are corruption."""
    if (folder / MANIFEST).exists():
        return True
    # A crash during the creation of an index leaves a log without records.
    for path in folder.glob("*.bin"):
        if _DATA_FILE.fullmatch(path.name) and path.stat().st_size > 8:
            raise CorruptionError(f"{folder / MANIFEST} is missing, but {path.name} is there")
    return False


def read_generation(folder: Path) -> Generation:
    path = folder / MANIFEST
    try:
        document = json.loads(read_regular(path))
        body = document["index"]
        if document["format"] != _FORMAT:
            raise ValueError("not the manifest of a grouped index")
        if document["version"] != _VERSION:
            raise EngineError(
                f"{folder} has format version {document['version']}, this transhash reads version "
                f"{_VERSION}. Delete the index and index again."
            )
        if document["crc32"] != _checksum(body):
            raise ValueError("the checksum does not match")
        entries = tuple(
            SegmentEntry(entry["file"], entry["deleted"], entry["probe_budget"])
            for entry in body["segments"]
        )
        bits = check_length(body["bits"])
        return Generation(body["generation"], bits, entries, body["log"], body["trial_queries"])
    except FileNotFoundError:
        raise CorruptionError(f"{path} is missing") from None
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error.strerror}). Check the disk and the permissions."
        ) from None
    except (ValueError, KeyError, TypeError, DataError, RecursionError) as error:
        raise CorruptionError(f"{path} is corrupt ({error})") from None


def write_generation(folder: Path, generation: Generation) -> None:
    """Commit a generation whose files are already on disk."""
    body = {
        "generation": generation.number,
        "bits": generation.bits,
        "segments": [entry._asdict() for entry in generation.segments],
        "log": generation.log,
        "trial_queries": generation.trial_queries,
    }
    document = {"format": _FORMAT, "version": _VERSION, "crc32": _checksum(body), "index": body}
    write_json(folder / MANIFEST, document)


def stamp(folder: Path) -> tuple[int, int]:
    """Return a value that changes whenever a generation is committed."""
    try:
        status = (folder / MANIFEST).stat()
    except FileNotFoundError as error:
        raise CorruptionError(f"{error.filename} is missing") from None
    return status.st_ino, status.st_mtime_ns


def create(folder: Path, bits: int) -> None:
    generation = Generation(1, bits, (), "log-1.bin")
    create_log(folder / generation.log)
    write_generation(folder, generation)


def clean(folder: Path, generation: Generation) -> None:
    """Delete files of earlier generations and what a crash left over."""
    named = {generation.log, *generation.array_files}
    for path in folder.iterdir():
        is_ours = _DATA_FILE.fullmatch(path.name) or _DRAFT_FILE.fullmatch(path.name)
        if is_ours and path.name not in named:
            with suppress(OSError):  # the next writer tries again
                path.unlink()  # readers that have it open keep it


def commit(
    folder: Path, last: Generation, parts: Sequence[LiveSegment]
) -> tuple[Generation, tuple[LiveSegment, ...]]:
    """Write the generation after `last`; return it and its parts as mapped files."""
    written = []
    try:
        for part in parts:
            segment, deleted = part.segment, part.deleted
            if part.file not in last.array_files:
                write_arrays(folder / part.file, {"bits": last.bits}, segment.arrays())
                segment = _open_segment(folder / part.file, last.bits, segment.probe_budget)
            if part.deleted_file is not None and part.deleted_file not in last.array_files:
                write_arrays(folder / part.deleted_file, {}, {"ids": deleted})
                deleted = _open_deleted(folder, part.deleted_file)
            written.append(LiveSegment(segment, deleted, NO_IDS, part.file, part.deleted_file))
        number = last.number + 1
        generation = last._replace(
            number=number, segments=entries_of(written), log=f"log-{number}.bin"
        )
        create_log(folder / generation.log)
        write_generation(folder, generation)
    except EngineError:
        if read_generation(folder) == last:
            clean(folder, last)  # an unfinished generation would keep a full disk full
        raise
    return generation, tuple(written)


def entries_of(parts: Iterable[LiveSegment]) -> tuple[SegmentEntry, ...]:
    return tuple(
        SegmentEntry(part.file, part.deleted_file, part.segment.probe_budget) for part in parts
    )


def open_parts(
    folder: Path, generation: Generation, mapped: Sequence[LiveSegment] = ()
) -> tuple[LiveSegment, ...]:
    """Open the parts of a generation, reusing the segments that `mapped` has open."""
    opened = {part.file: part.segment for part in mapped}
    parts = []
    for entry in generation.segments:
        segment = opened.get(entry.file)
        if segment is None or segment.probe_budget != entry.probe_budget:
            segment = _open_segment(folder / entry.file, generation.bits, entry.probe_budget)
        deleted = _open_deleted(folder, entry.deleted)
        parts.append(LiveSegment(segment, deleted, file=entry.file, deleted_file=entry.deleted))
    return tuple(parts)


def _open_segment(path: Path, bits: int, probe_budget: float) -> Segment:
    metadata, arrays = open_arrays(path)
    if metadata.get("bits") != bits or not {"words", "ids"} <= arrays.keys():
        raise CorruptionError(f"{path} does not belong to this index of {bits} bits")
    optional = {key: arrays.get(key) for key in ("offsets", "sorted_ids", "starts", "orders")}
    return Segment(arrays["words"], ids=arrays["ids"], probe_budget=probe_budget, **optional)


def _open_deleted(folder: Path, name: str | None) -> Ids:
    return NO_IDS if name is None else open_arrays(folder / name)[1]["ids"]


@contextmanager
def _collect(details: list[str]) -> Iterator[None]:
    """Append the details of corruption in the block instead of raising."""
    try:
        yield
    except CorruptionError as error:
        details += error.details
    except FileNotFoundError as error:
        details.append(f"{error.filename} is missing")


def verify_files(folder: Path, names: Iterable[str]) -> None:
    """Read array files completely; raise one error that names every corrupt or missing file."""
    details: list[str] = []
    for name in names:
        with _collect(details):
            verify_arrays(folder / name)
    if details:
        raise CorruptionError(*details)


def verify(folder: Path, generation: Generation, log_end: int, *, following: bool) -> bool:
    """Read a generation and its log, which had `log_end` bytes; report all corruption at once.

    With `following`, return False if the writer has moved on to another generation meanwhile.
    """
    details: list[str] = []
    with _collect(details):
        verify_files(folder, generation.array_files)
    path = folder / generation.log
    with _collect(details), Log(path, generation.bits // 8, writable=False) as log:
        for _ in log.replay():
            pass
        if log.end < log_end:
            details.append(f"{path} has {log.end} bytes instead of {log_end}")
    with _collect(details):
        if read_generation(folder) != generation:
            if following:
                return False
            details.append(f"{folder / MANIFEST} was changed by another process")
    if details:
        raise CorruptionError(*details)
    return True


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


class IndexSnapshot:
    """Files of an index: those of a generation, which never change, and its log so far.

    Open files stay readable when the writer deletes their names. Manifest and log are read at
    once, because the writer replaces the first and appends to the second.
    """

    def __init__(self, folder: Path) -> None:
        """Open the files; raises FileNotFoundError if the writer replaced them meanwhile."""
        self._folder = folder
        self.files: dict[str, BinaryIO] = {}  # immutable ones, by name
        self.contents: dict[str, bytes] = {}  # of the others
        with ExitStack() as stack:
            manifest = (folder / MANIFEST).read_bytes()
            generation = read_generation(folder)
            for name in generation.array_files:
                self.files[name] = stack.enter_context((folder / name).open("rb"))
            self._log = folder / generation.log
            self.contents = {MANIFEST: manifest, generation.log: self._log.read_bytes()}
            self._opened = stack.pop_all()

    def is_current(self) -> bool:
        """Return whether the index has not changed since the files were opened.

        A change makes the log longer, and a new generation replaces the manifest.
        """
        try:
            same_manifest = (self._folder / MANIFEST).read_bytes() == self.contents[MANIFEST]
            return same_manifest and self._log.stat().st_size == len(self.contents[self._log.name])
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
