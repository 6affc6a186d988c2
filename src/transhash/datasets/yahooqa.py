"""Yahoo Answers: the Webscope L6 XML (12 GB, two gzip parts), or plain csv, tsv or json lines.

Questions carry no category; the paper labels them by the class word they hold, and so do we.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from transhash.data.tables import read_fields, read_json_lines
from transhash.datasets.raw import Problems, Stream, blocks
from transhash.errors import DataError
from transhash.progress import Track, no_progress

_FORMATS = (
    "FullOct2007.xml (or its .part1.gz and .part2.gz), .csv, .tsv or .jsonl, each also as .gz"
)
_SOURCE = (
    "L6, 'Yahoo! Answers Comprehensive Questions and Answers', is in the Yahoo Webscope program"
)
_WORD = re.compile(r"[^\W\d_]+")
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")  # answers hold escaped <br /> and the like
_PART = re.compile(r"\.part\d+$")
_OPEN, _CLOSE = b"<document", b"</document>"
_LONGEST = 1 << 24  # no real question is near 16 MB; beyond it the closing tag must be lost
# Columns by what they hold, under the names met in published copies.
_IDS = ("id", "uri", "qid", "question_id")
_TEXTS = (
    ("text",),
    ("question", "subject", "question_title", "title"),
    ("content", "question_content"),
    ("answer", "bestanswer", "best_answer"),
)
# The topic-classification copy of L6 (Zhang et al., 2015) is a csv without a header.
_HEADERLESS = ("topic", "question_title", "question_content", "best_answer")


class LabeledQuestion(NamedTuple):
    """A question with its best answer, and the one category whose word it holds."""

    id: str
    text: str
    label: str


class ClassWords:
    """category -> its words, turned round."""

    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self._category: dict[str, str] = {}
        for category, forms in words.items():
            for form in forms:
                different_color = self._category.setdefault(form.lower(), category)
                if different_color != category or not _WORD.fullmatch(form):
                    raise DataError(
                        f"class word {form!r} of {category!r} must be one word of letters that no "
                        "other category has"
                    )

    def found(self, text: str) -> set[str]:
        """The categories whose words are tokens of the text."""
        lookup = self._category
        return {lookup[word] for word in _WORD.findall(text.lower()) if word in lookup}


def find_yahooqa(source: Path) -> list[Path]:
    """The file, or the files of a folder that together are one: the parts of the XML, or one."""
    if source.is_file():
        _format(source)
        return [source]
    inside = sorted(path for path in source.glob("*") if path.is_file())
    parts = [path for path in inside if _PART.search(path.name.removesuffix(".gz"))]
    if parts:
        # part10 after part9, and one copy of each where .gz and unpacked lie side by side.
        ids_are_row_numbers = {
            int(path.name.removesuffix(".gz").rpartition("part")[2]): path for path in parts
        }
        return [ids_are_row_numbers[number] for number in sorted(ids_are_row_numbers)]
    known = [path for path in inside if _suffix(path) in (".xml", ".csv", ".tsv", ".jsonl")]
    if len(known) == 1:
        return known
    if known:
        names = ", ".join(path.name for path in known[:4])
        raise DataError(f"{source} holds several text files ({names}); leave one of them there")
    raise DataError(f"{source} holds no Yahoo Answers text: {_FORMATS}; {_SOURCE}")


def read_yahooqa(
    source: Path,
    words: Mapping[str, Sequence[str]],
    problems: Problems,
    track: Track = no_progress,
) -> Iterator[LabeledQuestion]:
    """The questions that hold the words of exactly one category, in file order."""
    paths = find_yahooqa(source)
    reader = {".csv": _table, ".tsv": _table, ".jsonl": _objects}.get(_suffix(paths[0]), _xml)
    classes = ClassWords(words)
    for name, text in reader(paths, problems, track):
        plain = " ".join(_MARKUP.sub(" ", text).split())
        found = classes.found(plain)
        if len(found) == 1:
            yield LabeledQuestion(" ".join(name.split()), plain, found.pop())
        else:
            problems.skip(f"questions with {'several class words' if found else 'no class word'}")


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return ".xml" if _PART.search(name) else Path(name).suffix


def _format(path: Path) -> None:
    if _suffix(path) not in (".xml", ".csv", ".tsv", ".jsonl"):
        raise DataError(f"{path} is no Yahoo Answers file; give {_FORMATS}; {_SOURCE}")


def _xml(paths: list[Path], problems: Problems, track: Track) -> Iterator[tuple[str, str]]:
    """Id and text of each <document>, parsed one at a time.

    One at a time, because one bad character must not cost the other four million, and because the
    two parts of L6 are cut in the middle of an element.
    """
    seen = False
    for line, document in _documents(blocks(paths, problems, track), paths[0], problems):
        seen = True
        try:
            tree = ElementTree.fromstring(document)
        except ElementTree.ParseError as error:
            problems.add(paths[0], line, "malformed XML", str(error))
            continue
        language = tree.findtext("qlang") or tree.findtext("language") or "en"
        if not language.lower().startswith("en"):
            problems.skip("questions not in English")  # "car" is French for "because"
            continue
        name, subject = (tree.findtext(tag, "").strip() for tag in ("uri", "subject"))
        if not name or not subject:
            problems.add(paths[0], line, "incomplete question", "no <uri> or no <subject>")
            continue
        rest = (tree.findtext(tag, "") for tag in ("content", "bestanswer"))
        yield name, " ".join((subject, *rest))
    if not seen:
        raise DataError(f"{paths[0]} has no <document> element; is it the XML of L6? {_SOURCE}")


def _documents(
    pieces: Iterator[bytes], path: Path, problems: Problems
) -> Iterator[tuple[int, bytes]]:
    """Line number and bytes of each <document>...</document>."""
    buffer, line = b"", 1
    for piece in pieces:
        buffer += piece
        start = 0
        while True:
            begin = buffer.find(_OPEN, start)
            end = buffer.find(_CLOSE, begin) if begin >= 0 else -1
            if end < 0:
                break
            # An element that was never closed ends where the next one opens.
            last = buffer.rfind(_OPEN, begin, end)
            line += buffer.count(b"\n", start, begin)
            if last > begin:
                problems.add(path, line, "malformed XML", "<document> is not closed")
                line += buffer.count(b"\n", begin, last)
            end += len(_CLOSE)
            yield line, buffer[last:end]
            line += buffer.count(b"\n", last, end)
            start = end
        # Without an opening tag in sight its first bytes may still be the last ones here.
        keep = begin if begin >= 0 else max(start, len(buffer) - len(_OPEN))
        line += buffer.count(b"\n", start, keep)
        buffer = buffer[keep:]
        if len(buffer) > _LONGEST:
            problems.add(path, line, "malformed XML", "<document> is not closed within 16 MB")
            line += buffer.count(b"\n")
            buffer = b""
    if _OPEN in buffer:
        problems.add(path, line, "truncated XML", "the last <document> is cut off")


def _text(paths: list[Path], problems: Problems, track: Track) -> io.TextIOWrapper:
    raw = io.BufferedReader(Stream(blocks(paths, problems, track)))
    # surrogateescape: one bad byte costs one row, not the file.
    return io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _table(paths: list[Path], problems: Problems, track: Track) -> Iterator[tuple[str, str]]:
    delimiter = "\t" if _suffix(paths[0]) == ".tsv" else ","
    header: Sequence[str] | None = None
    for number, fields, flaw in read_fields(_text(paths, problems, track), delimiter):
        if flaw:
            problems.add(paths[0], number, "bad row", flaw)
            continue
        if header is None and len(fields) == len(_HEADERLESS) and fields[0].isdigit():
            header = _HEADERLESS
        elif header is None:
            header = [name.strip().lower() for name in fields]
            _check_columns(paths[0], header)
            continue
        if header is _HEADERLESS:  # that copy writes a line break as a backslash and an n
            fields = [field.replace("\\n", " ") for field in fields]
        row = _row(dict(zip(header, fields)), paths[0], number, problems)
        if row is not None:
            yield row
    if header is None:
        raise DataError(f"{paths[0]} is empty; its first line must name the columns")


def _objects(paths: list[Path], problems: Problems, track: Track) -> Iterator[tuple[str, str]]:
    for number, values, flaw in read_json_lines(_text(paths, problems, track)):
        if flaw:
            problems.add(paths[0], number, "bad row", flaw)
            continue
        named = {name: "" if value is None else str(value) for name, value in values.items()}
        row = _row(named, paths[0], number, problems)
        if row is not None:
            yield row


def _check_columns(path: Path, header: Sequence[str]) -> None:
    if not any(name in header for group in _TEXTS for name in group):
        raise DataError(
            f"{path} has no column named text, question or answer (found: "
            f"{', '.join(header)[:200]}); its first line must name the columns"
        )


def _row(
    values: Mapping[str, str], path: Path, line: int, problems: Problems
) -> tuple[str, str] | None:
    parts = [next((values[n] for n in group if values.get(n)), "") for group in _TEXTS]
    text = " ".join(part for part in parts if part)
    if any("\ud800" <= character <= "\udfff" for character in text):
        problems.add(path, line, "not UTF-8", "text")
        return None
    if not text.strip():
        problems.add(path, line, "empty text")
        return None
    return next((values[n] for n in _IDS if values.get(n)), f"line-{line}"), text
