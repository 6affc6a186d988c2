"""Any content of public data files is read, reported, or refused by a DataError."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transhash.datasets.imagenet_yahooqa import read_yahooqa
from transhash.datasets.nuswide import find_nuswide, read_nuswide
from transhash.datasets.raw import Problems
from transhash.errors import DataError

from .raw_layouts import CATEGORIES, document, write_nuswide, xml

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
WORDS = {"dog": ["dog"], "cat": ["cat"]}
TAGS = (
    b"<document>",
    b"</document>",
    b"<uri>1</uri>",
    b"<subject>a dog</subject>",
    b"&amp;",
    b"&x;",
)
MARKS = (b'"', b",", b"\t", b"\n", b"\r", b"\0", b"\xff", b"{", b'{"text": "dog"}', b"text")
PIECES = st.sampled_from((*TAGS, *MARKS))
CONTENT = st.lists(PIECES | st.binary(max_size=6), max_size=25).map(b"".join)


def check(read: Callable[[Problems], Iterable[Any]]) -> None:
    with TemporaryDirectory() as folder:
        report = Path(folder) / "problems.tsv"
        message = "none"
        with Problems(report) as problems:
            try:
                list(read(problems))
            except DataError as error:
                message = str(error)
        assert message
        assert "\n" not in message
        reported = report.read_text("utf-8").count("\n") - 1
        assert reported >= sum(problems.counts.values())


@pytest.mark.parametrize("name", ["a.xml", "a.csv", "a.tsv", "a.jsonl", "a.xml.gz", "a.csv.gz"])
@given(content=CONTENT, packed=st.booleans())
@EXAMPLES
def test_any_questions(name: str, content: bytes, packed: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name.endswith(".xml"):
            content = xml([document("1", "a dog")]).encode() + content
        path.write_bytes(gzip.compress(content)[:-4] if packed else content)
        check(lambda problems: read_yahooqa(path, WORDS, problems))


FILES = (
    "ImageList/Imagelist.txt",
    "Groundtruth/AllLabels/Labels_dog.txt",
    "NUS_WID_Tags/All_Tags.txt",
    "NUS_WID_Tags/Final_Tag_List.txt",
    "NUS_WID_Tags/AllTags1k.txt",
)
LINES = st.sampled_from([b"x" * 5000 + b".jpg", b"a\0b.jpg", b"..\\..\\a.jpg", b"1", b"111 dog"])


@pytest.mark.parametrize("words", [True, False])
@given(
    file=st.sampled_from(FILES),
    line=st.integers(0, 4),
    content=LINES | st.binary(max_size=20),
)
@EXAMPLES
def test_any_line_of_nus_wide(words: bool, file: str, line: int, content: bytes) -> None:
    with TemporaryDirectory() as folder:
        root = write_nuswide(Path(folder) / "NUS-WIDE", words=words)
        path = root / file
        rows = path.read_bytes().split(b"\n") if path.exists() else [b""] * 5
        rows[line] = content
        path.write_bytes(b"\n".join(rows))
        check(lambda problems: read_nuswide(find_nuswide(root, CATEGORIES), problems))
