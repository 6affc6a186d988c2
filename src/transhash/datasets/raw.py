"""Helpers of the readers of public data sets: problems, lines, gzip files, image checks."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from transhash.errors import DataError
from transhash.progress import Track

CHUNK_BYTES = 1 << 20
_SIGNATURES = {
    "jpeg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF87a", b"GIF89a"),
    "webp": (b"RIFF",),
    "bmp": (b"BM",),
    "tiff": (b"II*\0", b"MM\0*"),
}


class Problems:
    """Writes skipped rows to a tsv file and counts them.

    A hundred thousand dead links are usual in these data sets, so only counts stay in memory.
    """

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()  # bad rows, all listed in the file
        self.skipped: Counter[str] = Counter()  # good rows that the protocol does not use
        # "replace": file names that are not UTF-8 must not raise here.
        self._file = path.open("w", encoding="utf-8", errors="replace", newline="")
        self._file.write("file\tline\treason\n")

    def add(self, file: Path | str, line: int, kind: str, detail: str = "") -> None:
        """Report a bad line, or a bad file if `line` is 0. Counts are by `kind`."""
        self.counts[kind] += 1
        reason = f"{kind}: {detail}" if detail else kind
        self._file.write(tsv_line((str(file), str(line), " ".join(reason.split()))))

    def skip(self, kind: str) -> None:
        self.skipped[kind] += 1

    def __enter__(self) -> Problems:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def tsv_line(fields: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, delimiter="\t", lineterminator="\n").writerow(fields)
    return line.getvalue()


def packaged_list(name: str) -> Any:
    """Return a list of the package: categories, synsets or class words."""
    return json.loads((files("transhash") / "datasets" / name).read_text(encoding="utf-8"))


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield stripped lines without a byte order mark and trailing blank lines."""
    blank, mark = 0, b"\xef\xbb\xbf"
    for raw in file:
        line = raw.removeprefix(mark).strip()
        mark = b""
        if not line:
            blank += 1
            continue
        for _ in range(blank):
            yield b""
        blank = 0
        yield line


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in lines(file))


def image_problem(path: Path, *, jpeg_only: bool = False) -> tuple[str, str] | None:
    """Return kind and detail of the problem with an image file by its first bytes, or None.

    `jpeg_only` is for Flickr, which serves a small gif or png for a removed photo that downloaders
    save with the suffix .jpg.
    """
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except FileNotFoundError:
        return "missing image", str(path)
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        return "unreadable image", f"{path} ({getattr(error, 'strerror', error)})"
    if not head:
        return "empty image", str(path)
    kind = next((name for name, starts in _SIGNATURES.items() if head.startswith(starts)), None)
    if kind is None:
        return "not an image", f"{path} (a saved error page?)"
    if jpeg_only and kind in ("gif", "png") and path.suffix.lower() in (".jpg", ".jpeg"):
        return "placeholder image", f"{path} is a {kind}, as Flickr sends for a removed photo"
    return None


def read_chunks(paths: Sequence[Path], problems: Problems, track: Track) -> Iterator[bytes]:
    """Yield the bytes of the files one after the other, decompressing gzip."""
    for path in paths:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            total = -(-path.stat().st_size // CHUNK_BYTES)
            chunks = track(iter(lambda f=file: f.read(CHUNK_BYTES), b""), path.name, total)  # type: ignore[misc]
            yield from _decompress(chunks, path, problems) if is_gzip else chunks


def _decompress(chunks: Iterable[bytes], path: Path, problems: Problems) -> Iterator[bytes]:
    unpack, started = zlib.decompressobj(wbits=31), False
    max_output = CHUNK_BYTES >> 4  # gzip can expand a thousandfold, and an error loses one output
    try:
        for chunk in chunks:
            while chunk or started:
                output = unpack.decompress(chunk, max_output)
                started = True
                yield output
                chunk = unpack.unconsumed_tail
                if unpack.eof:  # another gzip member or zero padding may follow
                    chunk, started = unpack.unused_data.lstrip(b"\0"), False
                    unpack = zlib.decompressobj(wbits=31)
                elif not chunk and len(output) < max_output:
                    break  # all input is used and all output returned
        if started:
            problems.add(path, 0, "truncated gzip", "the end is missing, download it again")
    except zlib.error as error:
        problems.add(path, 0, "damaged gzip", f"{error}, the rest is lost, download it again")


class ChunkReader(io.RawIOBase):
    """A file object over chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def find_file(root: Path, names: Sequence[str], archive: str) -> Path:
    """Return the first name that is a file under root, or raise with the archive that has it."""
    for name in names:
        if (root / name).is_file():
            return root / name
    raise DataError(f"{root} has no {names[0]}. Unpack {archive}.")
