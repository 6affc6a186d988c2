"""Reads the images of ImageNet and the texts of Yahoo Answers, the target sets of one benchmark.

ImageNet (ILSVRC-2012) has one folder per synset, named by its wnid. Yahoo Answers is the Webscope
L6 XML (12 GB, two gzip parts), or csv, tsv or json lines. Its questions have no category: as in the
paper, the class word in a question is its label.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from transhash.data.tables import read_fields, read_json_lines
from transhash.datasets.raw import ChunkReader, Problems, image_problem, read_chunks
from transhash.errors import DataError
from transhash.progress import Track, no_progress

_FORMATS = (
    "FullOct2007.xml (or its .part1.gz and .part2.gz), .csv, .tsv or .jsonl, each also as .gz"
)
_DOWNLOAD = "(L6, 'Yahoo! Answers Comprehensive Questions and Answers', Yahoo Webscope program)"
_SUFFIXES = (".xml", ".csv", ".tsv", ".jsonl")
_WORD = re.compile(r"[^\W\d_]+")
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")  # answers contain escaped tags such as <br />
_PART = re.compile(r"\.part\d+$")
_OPEN, _CLOSE = b"<document", b"</document>"
_MAX_DOCUMENT_BYTES = 1 << 24  # a longer document has lost its closing tag
# Column names in published copies.
_IDS = ("id", "uri", "qid", "question_id")
_TEXTS = (
    ("text",),
    ("question", "subject", "question_title", "title"),
    ("content", "question_content"),
    ("answer", "bestanswer", "best_answer"),
)
# The topic-classification copy of L6 (Zhang et al., 2015) is a csv without a header.
_HEADERLESS = ("topic", "question_title", "question_content", "best_answer")
_WNID = re.compile(r"n\d{8}")
_SUBFOLDERS = (
    "",
    "train",
    "ILSVRC2012_img_train",
    "CLS-LOC/train",
    "Data/CLS-LOC/train",
    "ILSVRC/Data/CLS-LOC/train",
)
_IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")


class LabeledQuestion(NamedTuple):
    """A question with its best answer, and the one category whose word it contains."""

    id: str
    text: str
    label: str


class ClassWords:
    """Finds the categories whose words occur in a text."""

    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self._category: dict[str, str] = {}
        for category, forms in words.items():
            for form in forms:
                owner = self._category.setdefault(form.lower(), category)
                if owner != category or not _WORD.fullmatch(form):
                    raise DataError(
                        f"Class word {form!r} of {category!r} is ambiguous or has other characters "
                        "than letters. Use a word of this category only."
                    )

    def match(self, text: str) -> set[str]:
        lookup = self._category
        return {lookup[word] for word in _WORD.findall(text.lower()) if word in lookup}


def find_yahooqa(source: Path) -> list[Path]:
    """Return the data file of a folder, or all parts of the XML file in order."""
    if source.is_file():
        if _suffix(source) not in _SUFFIXES:
            raise DataError(f"{source} is not a Yahoo Answers file. Pass {_FORMATS} {_DOWNLOAD}.")
        return [source]
    entries = sorted(path for path in source.glob("*") if path.is_file())
    parts = [path for path in entries if _PART.search(path.name.removesuffix(".gz"))]
    if parts:
        # By number, part10 after part9, and only one of a part and its .gz.
        by_number = {
            int(path.name.removesuffix(".gz").rpartition("part")[2]): path for path in parts
        }
        return [by_number[number] for number in sorted(by_number)]
    candidates = [path for path in entries if _suffix(path) in _SUFFIXES]
    if len(candidates) == 1:
        return candidates
    if candidates:
        names = ", ".join(path.name for path in candidates[:4])
        raise DataError(f"{source} contains several text files ({names}). Keep one of them.")
    raise DataError(f"{source} contains no Yahoo Answers file. Add {_FORMATS} {_DOWNLOAD}.")


def read_yahooqa(
    source: Path,
    words: Mapping[str, Sequence[str]],
    problems: Problems,
    track: Track = no_progress,
) -> Iterator[LabeledQuestion]:
    """Yield the questions that contain words of exactly one category, in file order."""
    paths = find_yahooqa(source)
    reader = {".csv": _read_table, ".tsv": _read_table, ".jsonl": _read_jsonl}.get(
        _suffix(paths[0]), _read_xml
    )
    classes = ClassWords(words)
    for name, text in reader(paths, problems, track):
        plain = " ".join(_MARKUP.sub(" ", text).split())
        categories = classes.match(plain)
        if len(categories) == 1:
            yield LabeledQuestion(" ".join(name.split()), plain, categories.pop())
        else:
            problem = "words of several classes" if categories else "no class word"
            problems.skip(f"questions with {problem}")


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return ".xml" if _PART.search(name) else Path(name).suffix


def _read_xml(paths: list[Path], problems: Problems, track: Track) -> Iterator[tuple[str, str]]:
    """Yield id and text of each <document>.

    Each one is parsed alone, so that a bad character costs one of four million. The two parts of
    L6 are cut in the middle of an element.
    """
    is_empty = True
    for line, document in _documents(read_chunks(paths, problems, track), paths[0], problems):
        is_empty = False
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
    if is_empty:
        raise DataError(f"{paths[0]} has no <document> element. Pass {_FORMATS} {_DOWNLOAD}.")


def _documents(
    chunks: Iterator[bytes], path: Path, problems: Problems
) -> Iterator[tuple[int, bytes]]:
    """Yield line number and bytes of each <document>...</document>."""
    buffer, line = b"", 1
    for chunk in chunks:
        buffer += chunk
        start = 0
        while True:
            begin = buffer.find(_OPEN, start)
            end = buffer.find(_CLOSE, begin) if begin >= 0 else -1
            if end < 0:
                break
            # An unclosed element ends where the next one opens.
            last = buffer.rfind(_OPEN, begin, end)
            line += buffer.count(b"\n", start, begin)
            if last > begin:
                problems.add(path, line, "malformed XML", "<document> is not closed")
                line += buffer.count(b"\n", begin, last)
            end += len(_CLOSE)
            yield line, buffer[last:end]
            line += buffer.count(b"\n", last, end)
            start = end
        # An opening tag may be split between this chunk and the next.
        rest = begin if begin >= 0 else max(start, len(buffer) - len(_OPEN))
        line += buffer.count(b"\n", start, rest)
        buffer = buffer[rest:]
        if len(buffer) > _MAX_DOCUMENT_BYTES:
            problems.add(path, line, "malformed XML", "<document> is not closed within 16 MB")
            line += buffer.count(b"\n")
            buffer = b""
    if _OPEN in buffer:
        problems.add(path, line, "truncated XML", "the last <document> is cut off")


def _open_text(paths: list[Path], problems: Problems, track: Track) -> io.TextIOWrapper:
    raw = io.BufferedReader(ChunkReader(read_chunks(paths, problems, track)))
    # surrogateescape: an invalid byte costs one row, not the file.
    return io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _read_table(paths: list[Path], problems: Problems, track: Track) -> Iterator[tuple[str, str]]:
    delimiter = "\t" if _suffix(paths[0]) == ".tsv" else ","
    header: Sequence[str] | None = None
    for number, fields, problem in read_fields(_open_text(paths, problems, track), delimiter):
        if problem:
            problems.add(paths[0], number, "bad row", problem)
            continue
        if header is None and len(fields) == len(_HEADERLESS) and fields[0].isdigit():
            header = _HEADERLESS
        elif header is None:
            header = [name.strip().lower() for name in fields]
            _check_columns(paths[0], header)
            continue
        if header is _HEADERLESS:  # it has line breaks as backslash and n
            fields = [field.replace("\\n", " ") for field in fields]
        row = _parse_row(dict(zip(header, fields)), paths[0], number, problems)
        if row is not None:
            yield row
    if header is None:
        raise DataError(f"{paths[0]} is empty. Name the columns in the first line.")


def _read_jsonl(paths: list[Path], problems: Problems, track: Track) -> Iterator[tuple[str, str]]:
    for number, values, problem in read_json_lines(_open_text(paths, problems, track)):
        if problem:
            problems.add(paths[0], number, "bad row", problem)
            continue
        cells = {name: "" if value is None else str(value) for name, value in values.items()}
        row = _parse_row(cells, paths[0], number, problems)
        if row is not None:
            yield row


def _check_columns(path: Path, header: Sequence[str]) -> None:
    if not any(name in header for group in _TEXTS for name in group):
        raise DataError(
            f"{path} has no column text, question or answer (columns: {', '.join(header)[:200]}). "
            "Name the columns in the first line."
        )


def _parse_row(
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


class LabeledImage(NamedTuple):
    """An image of one category."""

    id: str
    image: Path
    label: str


def find_imagenet(root: Path) -> Path:
    """Return the folder with the synset folders: `root`, or where the archives put it."""
    for name in _SUBFOLDERS:
        folder = root / name
        if folder.is_dir() and any(
            _WNID.fullmatch(entry.name) and entry.is_dir() for entry in os.scandir(folder)
        ):
            return folder
    packed = any(any((root / name).glob("n????????.tar")) for name in _SUBFOLDERS)
    remedy = (
        "Unpack each nXXXXXXXX.tar into a folder of that name."
        if packed
        else "Pass the unpacked training images of ILSVRC-2012 from image-net.org."
    )
    raise DataError(f"{root} contains no synset folders such as n02129604/. {remedy}")


def read_imagenet(
    root: Path,
    synsets: Mapping[str, Sequence[str]],
    problems: Problems,
    *,
    per_category: int | None = None,
    seed: int = 0,
    track: Track = no_progress,
) -> Iterator[LabeledImage]:
    """Yield the images of each category's synsets, or a seeded sample of `per_category`.

    A bad image is reported and replaced by the next of the sample. Other images are not opened.
    """
    folder = find_imagenet(root)
    for category in track(list(synsets), "ImageNet", len(synsets)):
        names = _names(folder, category, synsets[category], problems)
        # Independent random streams: changing one category does not change the others' samples.
        rng = np.random.default_rng([seed, zlib.crc32(category.encode())])
        order = rng.permutation(len(names)) if per_category is not None else range(len(names))
        sample: list[str] = []
        for position in order:
            if len(sample) == per_category:
                problems.skip("ImageNet images above the limit per category")
                continue
            name = names[int(position)]
            problem = image_problem(folder / name)
            if problem is not None:
                problems.add(folder / name, 0, *problem)
                continue
            sample.append(name)
        for name in sorted(sample):
            yield LabeledImage(name.rpartition(".")[0], folder / name, category)


def _names(folder: Path, category: str, wnids: Sequence[str], problems: Problems) -> list[str]:
    """Return sorted names such as `n02129604/n02129604_10034.JPEG`."""
    names: list[str] = []
    missing = []
    for wnid in wnids:
        if not (folder / wnid).is_dir():
            missing.append(wnid)
            continue
        entries = sorted(entry.name for entry in os.scandir(folder / wnid))
        names.extend(f"{wnid}/{name}" for name in entries if name.lower().endswith(_IMAGE_SUFFIXES))
    if len(missing) == len(wnids):
        raise DataError(
            f"{folder} has no folder for category {category!r} (any of {', '.join(wnids[:5])}). "
            "Unpack these synsets of ILSVRC-2012."
        )
    for wnid in missing:
        problems.add(folder / wnid, 0, "missing synset", f"of category {category}")
    return names
