"""What the readers of raw public data share: problems, lines, compressed files, image checks."""

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

BLOCK = 1 << 20
_SIGNATURES = {
    "jpeg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF87a", b"GIF89a"),
    "webp": (b"RIFF",),
    "bmp": (b"BM",),
    "tiff": (b"II*\0", b"MM\0*"),
}


class Problems:
    """What had to be left out, each written to a tsv as it is met.

    A hundred thousand dead links are the norm here, so only the counts stay in memory.
    """

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()  # flaws of the data, each one listed in the file
        self.skipped: Counter[str] = Counter()  # sound items that the protocol has no use for
        # "replace": a file name that is no UTF-8 must not stop the report about it.
        self._file = path.open("w", encoding="utf-8", errors="replace", newline="")
        self._file.write("file\tline\treason\n")

    def add(self, file: Path | str, line: int, kind: str, detail: str = "") -> None:
        """Line 0 is the file as a whole; `kind` is what the counts go by."""
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
    """One of the lists that come with the package (categories, synsets, class words)."""
    return json.loads((files("transhash") / "datasets" / name).read_text(encoding="utf-8"))


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Stripped lines without a byte order mark and without blank lines at the end."""
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
    """Kind and detail of what is wrong with an image file by its first bytes, or None.

    `jpeg_only` is for Flickr: what it serves for a removed photo is a small gif or png, which
    downloaders save under the photo's .jpg name.
    """
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except FileNotFoundError:
        return "missing image", str(path)
    except (OSError, ValueError) as error:  # a ValueError is a NUL in the path
        return "unreadable image", f"{path} ({getattr(error, 'strerror', error)})"
    if not head:
        return "empty image", str(path)
    kind = next((name for name, starts in _SIGNATURES.items() if head.startswith(starts)), None)
    if kind is None:
        return "not an image", f"{path} (a saved error page?)"
    if jpeg_only and kind in ("gif", "png") and path.suffix.lower() in (".jpg", ".jpeg"):
        return "placeholder image", f"{path} is a {kind}, as Flickr sends for a removed photo"
    return None


def blocks(paths: Sequence[Path], problems: Problems, track: Track) -> Iterator[bytes]:
    """The bytes of the files one after the other, unpacked where they are gzip."""
    for path in paths:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            total = -(-path.stat().st_size // BLOCK)
            pieces = track(iter(lambda f=file: f.read(BLOCK), b""), path.name, total)  # type: ignore[misc]
            yield from _unpacked(pieces, path, problems) if zipped else pieces


def _unpacked(pieces: Iterable[bytes], path: Path, problems: Problems) -> Iterator[bytes]:
    unpack, begun = zlib.decompressobj(wbits=31), False
    try:
        for piece in pieces:
            while piece or begun:
                # A little at a time: gzip can blow up a thousandfold, and what an error is found
                # in is lost as a whole.
                block = unpack.decompress(piece, BLOCK >> 4)
                begun = True
                yield block
                piece = unpack.unconsumed_tail
                if unpack.eof:  # `cat a.gz b.gz` is legal gzip, and so is a padding of zeros
                    piece, begun = unpack.unused_data.lstrip(b"\0"), False
                    unpack = zlib.decompressobj(wbits=31)
                elif not piece and len(block) < BLOCK >> 4:
                    break  # all input is used and no output is held back
        if begun:
            problems.add(path, 0, "truncated gzip", "the end is missing; download it again")
    except zlib.error as error:
        problems.add(path, 0, "damaged gzip", f"{error}; what follows is lost, download it again")


class Stream(io.RawIOBase):
    """Blocks as a file, so that csv and json lines can be read from them."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def find_file(root: Path, names: Sequence[str], source: str) -> Path:
    """The first of the names that is a file under root, or an error that says where to get it."""
    for name in names:
        if (root / name).is_file():
            return root / name
    raise DataError(f"{root} has no {names[0]}; {source}")
