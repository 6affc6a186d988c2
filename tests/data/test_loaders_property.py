"""For any file content, a loader returns a collection with its problems or raises DataError."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transhash.data.collection import AuxiliaryCollection, Collection
from transhash.data.manifest import read_images, read_texts, read_triples
from transhash.errors import DataError

T = TypeVar("T")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt", ".npy")
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
# Characters with a meaning in one of the formats, and some that often cause errors.
SPECIAL = st.text('",;\t\r\n\0|[]{}\\ué\u2028\ufeff😀 ab', max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | SPECIAL | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(SPECIAL, inner), max_leaves=4
)


def or_data_error(call: Callable[[], T]) -> T | None:
    """Return the result of the call, or None if it raises a DataError with a valid message."""
    try:
        return call()
    except DataError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    message.encode()
    return None


def check(read: Callable[[Path], Collection[Any]], path: Path) -> None:
    """Check the contract of every loader."""
    items = or_data_error(lambda: read(path))
    if items is None:
        return
    assert len(items) == len(items.ids) == len(items.items) > 0
    assert len(set(items.ids)) == len(items.ids)
    assert all(items.ids)
    for problem in items.problems:
        assert problem.location
        assert problem.reason
        "".join(problem).encode()
    json.dumps([str(item) for item in (*items.ids, *items.items)], ensure_ascii=False).encode()
    if items.features is not None:
        assert np.isfinite(items.features).all()


def check_bytes(content: bytes, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(content)
        check(read_texts, path)
        check(read_images, path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(content=st.binary(max_size=300))
@EXAMPLES
def test_any_bytes(suffix: str, content: bytes) -> None:
    check_bytes(content, suffix)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".jsonl"])
@given(lines=st.lists(SPECIAL | st.text(max_size=20), max_size=8))
@EXAMPLES
def test_any_lines_under_a_good_header(suffix: str, lines: list[str]) -> None:
    mark = "\t" if suffix == ".tsv" else ","
    text = "\n".join([mark.join(("id", "image", "text", "labels")), *lines])
    check_bytes(text.encode("utf-8", "surrogatepass"), suffix)


@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from(["id", "image", "text", "labels"]), VALUES), max_size=4
    )
)
@example(rows=[{"text": "a", "id": "2"}, {"text": "b"}, {"text": "c", "id": "2:default"}])
@EXAMPLES
def test_any_json_values(rows: list[dict[str, Any]]) -> None:
    check_bytes("\n".join(map(json.dumps, rows)).encode(), ".jsonl")


@given(
    ids=st.lists(SCALARS.map(str) | st.none(), min_size=3, max_size=3),
    texts=st.lists(st.binary(max_size=9), min_size=3, max_size=3),
    labels=st.lists(st.lists(st.text(max_size=3)), min_size=3, max_size=3),
    flips=st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 255)), max_size=3),
)
@EXAMPLES
def test_any_parquet_table_intact_or_damaged(
    ids: list[str | None], texts: list[bytes], labels: list[list[str]],
    flips: list[tuple[int, int]],
) -> None:  # fmt: skip
    names = [name and name.encode("utf-8", "replace").decode() for name in ids]
    cells = [[label.encode("utf-8", "replace").decode() for label in row] for row in labels]
    file = io.BytesIO()
    pq.write_table(pa.table({"id": names, "text": texts, "labels": cells}), file)
    content = bytearray(file.getvalue())
    for position, mask in flips:
        content[position % len(content)] ^= mask
    check_bytes(bytes(content), ".parquet")


@given(
    kind=st.sampled_from(["<f4", ">f8", "<f2", "|u1", "<i8", "|b1", "<c8", "|S3", "<M8[s]"]),
    shape=st.lists(st.integers(0, 5), max_size=3),
    data=st.binary(min_size=160, max_size=160),
    flips=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 255)), max_size=2),
    cut=st.integers(0, 400),
)
@EXAMPLES
def test_any_array_intact_or_damaged(
    kind: str, shape: list[int], data: bytes, flips: list[tuple[int, int]], cut: int
) -> None:
    file = io.BytesIO()
    number = int(np.prod(shape))
    itemsize = np.dtype(kind).itemsize
    raw = (data * 8)[: number * itemsize].ljust(number * itemsize, b"\0")
    np.save(file, np.frombuffer(raw, np.dtype(kind)).reshape(shape))
    content = bytearray(file.getvalue())
    for position, mask in flips:
        content[position % len(content)] ^= mask
    check_bytes(bytes(content[: len(content) - cut] if cut < 200 else content), ".npy")


@given(names=st.lists(st.binary(min_size=1, max_size=20), max_size=6))
@EXAMPLES
def test_any_file_names_in_a_folder(names: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        for name in names:
            safe = name.replace(b"/", b"").replace(b"\0", b"")
            if safe.strip(b"."):
                Path(folder, os_name(safe + b".png")).write_bytes(b"x")
        check(read_images, Path(folder))


@given(lines=st.lists(SPECIAL | st.tuples(SPECIAL, SPECIAL, st.sampled_from("012")).map(",".join)))
@EXAMPLES
def test_any_relation(lines: list[str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.csv"
        path.write_text("\n".join(lines), encoding="utf-8", newline="")
        result = or_data_error(lambda: read_triples(path))
        if result is None:
            return
        triples, problems = result
        assert {value for *_, value in triples} <= {0.0, 1.0}
        assert all(problem.reason for problem in problems)
        names = ["0", "1", "a"]
        images, texts = Collection(names, [Path(n) for n in names]), Collection(names, names)
        or_data_error(lambda: AuxiliaryCollection.from_collections(images, texts, triples))


def os_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
