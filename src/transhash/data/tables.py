"""Rows of csv, tsv, jsonl, parquet and txt files.

A row that cannot be read is reported with the reason. Only an unreadable file is a DataError.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transhash.errors import DataError, EmptySourceError
from transhash.storage import check_regular, open_regular, read_regular

COLUMNS = ("id", "image", "text", "labels")
MAYBE_CUT = "the file may be cut off here"  # in the problem of a row
_MAX_FIELD_CHARS = 1 << 24  # csv's default of 128 KiB is too little for long documents
_SAMPLE_BYTES = 1 << 16


class Record(NamedTuple):
    """The values of one row by column, or the problem with it."""

    number: int  # its first line, from 1; in parquet the row, from 0
    values: Mapping[str, Any]
    problem: str = ""


def read_records(source: Path) -> Iterator[Record]:
    """Read the rows of a file for which `is_table` is true."""
    return _READERS[source.suffix.lower()](source)


def is_table(source: Path) -> bool:
    return source.suffix.lower() in _READERS


def is_complete(source: Path) -> bool:
    """Return whether a table ends with a line end; one that was cut off rarely does."""
    if source.suffix.lower() == ".parquet":
        return True  # its footer is written last
    try:
        with open_regular(source) as file:
            if not file.seek(0, os.SEEK_END):
                return True
            file.seek(-1, os.SEEK_END)
            return file.read() in (b"\n", b"\r")
    except OSError as error:
        raise DataError(f"Cannot read {source} ({error.strerror}). Check the file.") from None


def escape_invalid(text: str) -> str:
    """Replace characters that UTF-8 cannot encode by escapes, for messages."""
    return text.encode("utf-8", "backslashreplace").decode()


def os_reason(error: Exception) -> str:
    """Return the operating system's reason for an error on one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return escape_invalid(" ".join(reason.split()))[:200] or type(error).__name__


def shorten(text: str) -> str:
    """Cut long names in the middle, for messages."""
    return escape_invalid(text if len(text) <= 120 else text[:100] + "..." + text[-17:])


_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def escape_formula(cell: str) -> str:
    """Put an apostrophe before a cell that spreadsheets would compute; see `unescape_formula`."""
    return f"'{cell}" if _FORMULA.match(cell) else cell


def unescape_formula(cell: str) -> str:
    """Return the cell that `escape_formula` escaped; other cells are returned as they are."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def delimiter_of(source: Path) -> str:
    return "\t" if source.suffix.lower() == ".tsv" else ","


def open_text(source: Path) -> io.StringIO:
    """Open a UTF-8 file. Invalid bytes become surrogates, so that they cost only their row."""
    try:
        content = read_regular(source)
    except OSError as error:
        raise DataError(f"Cannot read {source} ({error.strerror}). Check the file.") from None
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{source} is UTF-16. Save it as UTF-8.")
    if _is_binary(content[:_SAMPLE_BYTES]):
        raise DataError(f"{source} is a binary file or not UTF-8. Save it as UTF-8 text.")
    # utf-8-sig drops the byte order mark that Excel writes.
    return io.StringIO(content.decode("utf-8-sig", errors="surrogateescape"), newline="")


def read_fields(
    lines: Iterable[str], delimiter: str, width: int | None = None
) -> Iterator[tuple[int, list[str], str]]:
    """Yield first line number, fields and problem ("" if none) of each row; skip blank lines.

    All rows must have `width` fields, or as many as the first. A quote that is never closed would
    swallow the rows after it, so of a bad row of several lines only the first line is skipped and
    the others are parsed again.
    """
    source = iter(lines)
    pending: deque[str] = deque()
    used: list[str] = []
    at_end = False

    def next_lines() -> Iterator[str]:
        nonlocal at_end
        while (line := pending.popleft() if pending else next(source, None)) is not None:
            used.append(line)
            yield line
        at_end = bool(used)

    number, reparsed = 1, 0
    while True:
        used.clear()
        fields, problem = _next_fields(next_lines(), delimiter)
        if not used:
            return
        start, number = number, number + len(used)
        if at_end:
            problem = f"a quote is not closed (double the quotes inside a field, or {MAYBE_CUT})"
        elif len(used) > 1 and not problem and not _is_well_quoted(used, delimiter):
            problem = "a quote is not closed (double the quotes inside a field)"
        elif not problem and fields:
            width = width or len(fields)
            if len(fields) != width:
                problem = f"{len(fields)} fields, the header has {width}"
        if problem and len(used) > 1:
            # Some nested quotes would make every line be parsed with all others, so set a bound.
            if reparsed < 10 * number + 10_000:
                pending.extendleft(reversed(used[1:]))
                reparsed += len(used) - 1
                number = start + 1
            else:
                problem += f", lines up to {number - 1} are skipped"
        at_end = False
        if problem or fields:
            yield start, fields, problem


def read_json_lines(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield number, object and problem ("" if none) of each line of JSON."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        values: Any = None
        problem = "not a JSON object"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number of 5,000 digits
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            problem = f"not valid JSON ({escape_invalid(reason)[:200]})"
        if isinstance(values, dict):
            yield number, {name.lower(): value for name, value in values.items()}, ""
        else:
            yield number, {}, problem


def _next_fields(
    lines: Iterable[str], delimiter: str, *, strict: bool = False
) -> tuple[list[str], str]:
    # The field limit is global to the process, so it is restored after every row.
    before = csv.field_size_limit(_MAX_FIELD_CHARS)
    try:
        return next(csv.reader(lines, delimiter=delimiter, strict=strict), []), ""
    except csv.Error as error:
        return [], f"not valid csv ({error})"
    finally:
        csv.field_size_limit(before)


def _is_well_quoted(lines: list[str], delimiter: str) -> bool:
    return not _next_fields(lines, delimiter, strict=True)[1]


def _csv(source: Path) -> Iterator[Record]:
    header: list[str] = []
    for number, fields, problem in read_fields(open_text(source), delimiter_of(source)):
        if header:
            yield Record(number, {} if problem else dict(zip(header, fields, strict=True)), problem)
        elif problem:
            raise DataError(
                f"The header of {source} in line {number} is invalid ({problem}). "
                "Name the columns in the first line."
            )
        else:
            header = [name.strip().lower() for name in fields]
            _check_header(source, header)
    if not header:
        raise EmptySourceError(f"{source} is empty. Name the columns in the first line.")


def _check_header(source: Path, header: list[str]) -> None:
    if not set(header) & {"image", "text"}:
        remedy = "Name the columns in the first line."
        if len(header) == 1 and ";" in header[0]:
            remedy = "Save it with commas instead of semicolons."
        names = escape_invalid(", ".join(header)[:200])
        raise DataError(f"{source} has no column image or text (columns: {names}). {remedy}")
    for name in COLUMNS:
        if header.count(name) > 1:
            raise DataError(f"{source} has two columns named {name}. Rename one of them.")


def _jsonl(source: Path) -> Iterator[Record]:
    return (Record(*row) for row in read_json_lines(open_text(source)))


def _parquet(source: Path) -> Iterator[Record]:
    import pyarrow.parquet as pq

    number = 0
    check_regular(source)
    try:
        with pq.ParquetFile(source) as file:
            names = [name for name in file.schema_arrow.names if name.lower() in COLUMNS]
            for batch in file.iter_batches(batch_size=4096, columns=names):
                for row in _python_rows(batch):
                    problem = "" if row is not None else "a text is not UTF-8"
                    values = {name.lower(): value for name, value in (row or {}).items()}
                    yield Record(number, values, problem)
                    number += 1
    except Exception as error:  # pyarrow raises many types for damaged files
        reason = escape_invalid(str(error)).strip().split("\n")[0][:200]
        raise DataError(
            f"{source} is not a readable parquet file ({reason}). Write the file again."
        ) from None


def _python_rows(batch: Any) -> list[dict[str, Any] | None]:
    """Return the rows of a batch, None for each with a text that is not UTF-8."""
    try:
        return list(batch.to_pylist())
    except ValueError:
        if batch.num_rows == 1:
            return [None]
        return [_python_rows(batch.slice(i, 1))[0] for i in range(batch.num_rows)]


def _txt(source: Path) -> Iterator[Record]:
    for number, line in enumerate(open_text(source), 1):
        if line.strip():
            yield Record(number, {"text": line})


_READERS = {".csv": _csv, ".tsv": _csv, ".jsonl": _jsonl, ".parquet": _parquet, ".txt": _txt}


def _is_binary(sample: bytes) -> bool:
    """Return whether half of the lines have NUL bytes or are not UTF-8, and some have NUL bytes."""
    if b"\0" not in sample:
        return False
    lines = [line for line in sample.split(b"\n") if line.strip()]
    return 2 * sum(map(_is_damaged, lines)) >= len(lines)


def _is_damaged(line: bytes) -> bool:
    try:
        return "\0" in line.decode()
    except UnicodeDecodeError:
        return True
