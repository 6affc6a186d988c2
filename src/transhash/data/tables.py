"""The rows of a table as they stand in the file: csv, tsv, jsonl, parquet, txt.

A row that cannot be read costs itself; only a file that cannot be read at all is a DataError.
"""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transhash.errors import DataError

COLUMNS = ("id", "image", "text", "labels")
_LONGEST_FIELD = 1 << 24  # the default of 128 KiB refuses long documents
_SAMPLE = 1 << 16  # bytes looked at to tell a binary file


class Record(NamedTuple):
    """One row by its columns, or what is wrong with it."""

    number: int  # the line it begins in, from 1; in parquet the row, from 0
    values: Mapping[str, Any]
    problem: str = ""


def read_records(source: Path) -> Iterator[Record]:
    """The rows of a file that `is_table` knows, in order."""
    return _READERS[source.suffix.lower()](source)


def is_table(source: Path) -> bool:
    return source.suffix.lower() in _READERS


def escape_invalid(text: str) -> str:
    """The text with what UTF-8 cannot say written as escapes, fit for a report."""
    return text.encode("utf-8", "backslashreplace").decode()


def os_reason(error: Exception) -> str:
    """What the system says, on one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return escape_invalid(" ".join(reason.split()))[:200] or type(error).__name__


def shorten(text: str) -> str:
    """Long names cut in the middle, fit for a report."""
    return escape_invalid(text if len(text) <= 120 else text[:100] + "..." + text[-17:])


def delimiter_of(source: Path) -> str:
    return "\t" if source.suffix.lower() == ".tsv" else ","


def open_text(source: Path) -> io.StringIO:
    """A text file, opened so that one bad byte costs one row."""
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise DataError(f"{source} cannot be read ({error.strerror})") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{source} is UTF-16; save it as UTF-8")
    if _is_binary(raw[:_SAMPLE]):
        raise DataError(
            f"{source} is a binary file, or text that is not UTF-8, whatever its name says; "
            "save it as UTF-8"
        )
    # utf-8-sig drops Excel's mark; surrogateescape keeps bad bytes apart from all characters.
    return io.StringIO(raw.decode("utf-8-sig", errors="surrogateescape"), newline="")


def read_fields(
    lines: Iterable[str], delimiter: str, width: int | None = None
) -> Iterator[tuple[int, list[str], str]]:
    """The first line, the fields and the flaw ("" if none) of each row; blank lines are left out.

    All rows have `width` fields, or as many as the first. A quote that is never closed would
    swallow the rows after it: where a row of several lines is flawed, it is its first line that is
    given up, and the others are read again.
    """
    source = iter(lines)
    again: deque[str] = deque()
    taken: list[str] = []
    cut_off = False

    def feed() -> Iterator[str]:
        nonlocal cut_off
        while (line := again.popleft() if again else next(source, None)) is not None:
            taken.append(line)
            yield line
        cut_off = bool(taken)

    number, read_again = 1, 0
    while True:
        taken.clear()
        fields, problem = _next_fields(feed(), delimiter)
        if not taken:
            return
        start, number = number, number + len(taken)
        if cut_off or (len(taken) > 1 and not problem and not _well_quoted(taken, delimiter)):
            problem = "a quote is opened and not closed; double the quotes inside a field"
        elif not problem and fields:
            width = width or len(fields)
            if len(fields) != width:
                problem = f"{len(fields)} fields, the header has {width}"
        if problem and len(taken) > 1:
            # The bound: some nests of quotes would have every line read with all others.
            if read_again < 10 * number + 10_000:
                again.extendleft(reversed(taken[1:]))
                read_again += len(taken) - 1
                number = start + 1
            else:
                problem += f"; the lines up to {number - 1} are skipped with it"
        cut_off = False
        if problem or fields:
            yield start, fields, problem


def read_json_lines(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """The number, the object and the flaw ("" if none) of each line of JSON."""
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


def _next_fields(lines: Iterator[str], delimiter: str) -> tuple[list[str], str]:
    # The limit belongs to the whole process, so it is put back after every row.
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        return next(csv.reader(lines, delimiter=delimiter), []), ""
    except csv.Error as error:
        return [], f"not valid csv ({error})"
    finally:
        csv.field_size_limit(before)


def _well_quoted(lines: list[str], delimiter: str) -> bool:
    try:
        before = csv.field_size_limit(_LONGEST_FIELD)
        next(csv.reader(lines, delimiter=delimiter, strict=True), [])
    except csv.Error:
        return False
    finally:
        csv.field_size_limit(before)
    return True


def _csv(source: Path) -> Iterator[Record]:
    header: list[str] = []
    for number, fields, problem in read_fields(open_text(source), delimiter_of(source)):
        if header:
            yield Record(number, {} if problem else dict(zip(header, fields, strict=True)), problem)
        elif problem:
            raise DataError(f"{source}, line {number}, should name the columns: {problem}")
        else:
            header = [name.strip().lower() for name in fields]
            _check(source, header)
    if not header:
        raise DataError(f"{source} is empty; its first line must name the columns")


def _check(source: Path, header: list[str]) -> None:
    if not set(header) & {"image", "text"}:
        hint = "its first line must name the columns"
        if len(header) == 1 and ";" in header[0]:
            hint = "its columns are separated by semicolons; save it with commas"
        found = escape_invalid(", ".join(header)[:200])
        raise DataError(f"{source} has no column named image or text (found: {found}); {hint}")
    for name in COLUMNS:
        if header.count(name) > 1:
            raise DataError(f"{source} has two columns named {name}; rename one of them")


def _jsonl(source: Path) -> Iterator[Record]:
    return (Record(*found) for found in read_json_lines(open_text(source)))


def _parquet(source: Path) -> Iterator[Record]:
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(source) as file:
            names = [name for name in file.schema_arrow.names if name.lower() in COLUMNS]
            for batch in file.iter_batches(batch_size=4096, columns=names):
                for row in _python_rows(batch):
                    problem = "" if row is not None else "a text in it is not UTF-8"
                    values = {name.lower(): value for name, value in (row or {}).items()}
                    yield Record(number, values, problem)
                    number += 1
    except Exception as error:  # in a damaged file pyarrow meets anything, even names of bad bytes
        reason = escape_invalid(str(error)).strip().split("\n")[0][:200]
        raise DataError(f"{source} is not a readable parquet file ({reason})") from None


def _python_rows(batch: Any) -> Iterable[dict[str, Any] | None]:
    """The rows of a batch; None for one that is no Python value."""
    try:
        rows: list[dict[str, Any] | None] = batch.to_pylist()
        return rows
    except ValueError:  # one text of bytes that are no UTF-8 fails the whole batch
        return [_python_row(batch.slice(i, 1)) for i in range(batch.num_rows)]


def _python_row(batch: Any) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
        return row
    except ValueError:
        return None


def _txt(source: Path) -> Iterator[Record]:
    for number, line in enumerate(open_text(source), 1):
        if line.strip():
            yield Record(number, {"text": line})


_READERS = {".csv": _csv, ".tsv": _csv, ".jsonl": _jsonl, ".parquet": _parquet, ".txt": _txt}


def _is_binary(sample: bytes) -> bool:
    """Whether there are NUL bytes, and half of the lines have one or are no UTF-8."""
    if b"\0" not in sample:
        return False
    lines = [line for line in sample.split(b"\n") if line.strip()]
    return 2 * sum(map(_is_damaged, lines)) >= len(lines)


def _is_damaged(line: bytes) -> bool:
    try:
        return "\0" in line.decode()
    except UnicodeDecodeError:
        return True
