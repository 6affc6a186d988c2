"""What stands in a folder: pictures, or notes, each a text in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from transhash.data.tables import cause
from transhash.errors import DataError

IMAGE_SUFFIXES = {
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif",
}  # fmt: skip
NOTE_SUFFIXES = {".txt", ".md"}


def files_below(folder: Path, report: Callable[[str, str], None]) -> Iterator[str]:
    """Everything in the folder that is no folder, as a relative path with slashes.

    What cannot be entered is reported, by its place and the reason.
    """

    def told(error: OSError) -> None:
        where = Path(os.fsdecode(error.filename)).relative_to(folder).as_posix()
        if where == ".":
            raise DataError(f"{folder} cannot be read ({cause(error)})") from None
        report(where, f"folder cannot be read ({cause(error)})")

    for place, folders, files in os.walk(folder, onerror=told):
        for name in folders:
            if os.path.islink(os.path.join(place, name)):
                where = (Path(place) / name).relative_to(folder).as_posix()
                report(where, "a link to a folder, not followed; give that folder itself")
        inner = Path(place).relative_to(folder).as_posix()
        yield from files if inner == "." else (f"{inner}/{name}" for name in files)


def not_by_extension(suffix: str, part: str) -> str:
    """Why a file is no image, or no text."""
    if part == "image" and suffix.lower() in (".svg", ".svgz"):
        return "an SVG drawing, which has no pixels; export it as PNG"
    return f"not {'an image' if part == 'image' else 'a text'} by its extension {suffix!r}"


def read_note(path: Path) -> tuple[str, str]:
    """The whole text of a file, or "" and what is wrong with it."""
    try:
        text = path.read_bytes().decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return "", "not UTF-8; save it as UTF-8"
    except OSError as error:
        return "", f"cannot be read ({cause(error)})"
    if "\0" in text:
        return "", "text holds a NUL character"
    return text, "" if text else "holds no text"
