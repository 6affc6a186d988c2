"""A bad row or file is skipped and listed with a reason; the others are read."""

import csv
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from transhash.data.collection import AuxiliaryCollection, Collection
from transhash.data.manifest import read_images, read_texts, read_triples
from transhash.errors import DataError


def save_image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), "red").save(path)
    return path


def reasons(items: Collection[Any]) -> dict[str, str]:
    """Return reasons by location; all must be valid UTF-8."""
    for problem in items.problems:
        "".join(problem).encode()
    return {problem.location: problem.reason for problem in items.problems}


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's permission to read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_bad_files_in_a_folder_are_skipped(tmp_path: Path) -> None:
    save_image(tmp_path / "good.png")
    save_image(tmp_path / "deep" / "good.png")
    os.rename(save_image(tmp_path / "x.png"), os.fsencode(tmp_path) + b"/caf\xe9.png")
    (tmp_path / "dangling.png").symlink_to("nowhere.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "round").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    images = read_images(tmp_path)
    assert list(images.ids) == ["deep/good.png", "good.png"]
    problems = reasons(images)
    assert problems["dangling.png"] == "is a broken link"
    assert "symbolic links" in problems["loop.png"]
    assert problems["pipe.png"] == "is not a file"
    assert "not followed" in problems["round"]
    assert "not UTF-8" in problems["caf\\udce9.png"]
    assert len(problems) == 5


def test_an_unreadable_subfolder_is_listed() -> None:
    with tempfile.TemporaryDirectory() as name:  # other users cannot enter pytest's folders
        folder = Path(name)
        save_image(folder / "good.png")
        save_image(folder / "closed" / "hidden.png")
        folder.chmod(0o755)
        (folder / "closed").chmod(0)
        try:
            with as_nobody():
                images = read_images(folder)
        finally:
            (folder / "closed").chmod(0o755)
    assert list(images.ids) == ["good.png"]
    assert reasons(images) == {"closed": "folder cannot be read (Permission denied)"}


BAD_LINES = {
    r'{"text": "half \ud800 a character"}': r"text contains \ud800, half a character",
    '{"text": "x", "labels": 5}': "labels must be a text or a list of texts, not 5",
    '{"text": "x", "labels": ["a", {}]}': "a label must be a text, not {}",
    '{"text": ["x"]}': "text must be a text, not ['x']",
    "[" * 100_000: "not valid JSON (maximum recursion depth exceeded",
    '{"text": "x", "id": ' + "9" * 5000 + "}": "not valid JSON (Exceeds the limit",
    r'{"text": "nul \u0000 byte"}': "text contains a NUL character",
    '{"text": "raw \0 nul"}': "not valid JSON",
    '{"image": "gone.png"}': "image gone.png does not exist",
    '{"image": "' + "x" * 5000 + '.png"}': "File name too long",
    r'{"image": "a\u0000b.png"}': "image contains a NUL character",
    '{"image": "loop.png"}': "image loop.png cannot be read",
    '{"image": "."}': "image . is not a file",
    "{}": "neither image nor text",
    "7": "not a JSON object",
}


def test_bad_json_lines_are_listed_and_the_others_keep_their_ids(tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    lines = ['{"text": "first"}', *BAD_LINES, '{"text": "last", "labels": ["a", "b"]}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    texts = read_texts(tmp_path / "a.jsonl")
    assert list(texts.items) == ["first", "last"]
    assert list(texts.ids) == ["1", str(len(BAD_LINES) + 2)]
    problems = reasons(texts)
    assert list(problems) == [f"line {n}" for n in range(2, len(BAD_LINES) + 2)]
    for reason, expected in zip(problems.values(), BAD_LINES.values(), strict=True):
        assert expected in reason
        assert len(reason) < 300


def test_rows_with_too_many_or_too_few_columns_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,good\n2\n3,a,b\n4,also good\n")
    texts = read_texts(tmp_path / "a.csv")
    assert list(texts.ids) == ["1", "4"]
    assert reasons(texts) == {
        "line 3": "1 fields, the header has 2",
        "line 4": "3 fields, the header has 2",
    }


@pytest.mark.parametrize(
    "tail", ["", '90\t"Bye" he said\n', '90\t"Bye, also open\n', '90\t"two\nlines"\n']
)
def test_an_unclosed_quote_costs_only_its_row(tmp_path: Path, tail: str) -> None:
    """The csv module would read the rest of the file as one text."""
    rows = [f"{n}\ttext {n}\n" for n in range(10)]
    path = tmp_path / "a.tsv"
    path.write_text("id\ttext\n" + "".join([*rows[:5], '80\t"Hello, he said\n', *rows[5:], tail]))
    texts = read_texts(path)
    assert list(texts.items[:10]) == [f"text {n}" for n in range(10)]
    assert "quote is not closed" in reasons(texts)["line 7"]
    if "Bye" in tail and "open" not in tail:
        assert texts.items[10] == "Bye he said"


def test_texts_may_have_several_lines_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,id\n"one\n\ntwo ""three""\n",1\n"say" it,2\na "b" c,3\n')
    assert list(read_texts(path).items) == ['one\n\ntwo "three"', "say it", 'a "b" c']


def test_parsing_unclosed_quotes_takes_linear_time(tmp_path: Path) -> None:
    lines = 3000
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,x\n" + 'a","b\n' * lines)  # each runs on to the end of the file
    texts = read_texts(path)
    assert list(texts.items) == ["x"]
    assert len(texts.problems) < lines / 10
    assert f"lines up to {lines + 2} are skipped" in texts.problems[-1].reason


def test_reading_restores_the_csv_field_limit(tmp_path: Path) -> None:
    long = "word " * 100_000
    (tmp_path / "a.csv").write_text(f"id,text\n1,{long}\n2,short\n")
    before = csv.field_size_limit(1000)
    try:
        texts = read_texts(tmp_path / "a.csv")
        assert csv.field_size_limit() == 1000
    finally:
        csv.field_size_limit(before)
    assert list(texts.items) == [long.strip(), "short"]


def test_a_parquet_text_that_is_not_utf8_costs_only_its_row(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9", b"fine"])
    text = pa.StringArray.from_buffers(3, *raw.buffers()[1:])
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": text}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": raw}), tmp_path / "binary.parquet")
    for name in ("a", "binary"):
        texts = read_texts(tmp_path / f"{name}.parquet")
        assert list(texts.items) == ["good", "fine"]
        assert "not UTF-8" in reasons(texts)["row 1"]


def test_default_ids_do_not_depend_on_bad_rows(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        save_image(tmp_path / f"{n}.png")
    rows = ["image,text", "1.png,one", "2.png,two", "2.png,two again", ",three", ",four"]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(rows))
    ids = dict(zip(*(lambda t: (t.items, t.ids))(read_texts(path)), strict=True))
    assert ids == {
        "one": "1.png", "two": "2.png", "two again": "2.png:4", "three": "5", "four": "6"
    }  # fmt: skip
    for n in range(1, len(rows)):
        path.write_text("\n".join([*rows[:n], rows[n] + "\0", *rows[n + 1 :]]))
        texts = read_texts(path)
        assert len(texts) == len(ids) - 1
        assert dict(zip(texts.items, texts.ids, strict=True)).items() < ids.items()


def test_default_ids_do_not_collide_with_ids_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n,a\n2,b\n,c\n2,d\n")
    texts = read_texts(tmp_path / "a.csv")
    assert list(texts.items) == ["a", "b", "c"]
    assert len(set(texts.ids)) == 3
    assert texts.ids[1] == "2"
    assert reasons(texts) == {"line 5": "id 2 occurs twice (the first is used)"}


def test_collections_have_a_resolved_source(tmp_path: Path) -> None:
    save_image(tmp_path / "real" / "a.png")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "a.txt").write_text("x")
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    real = tmp_path.resolve()
    assert read_images(tmp_path / "link").source == str(real / "real")
    assert read_images(tmp_path / "link").take([0]).source == str(real / "real")
    assert read_texts(tmp_path / "a.txt").source == str(real / "a.txt")
    assert read_texts(tmp_path / "a.npy").source == str(real / "a.npy")


def npy(path: Path, shape: object, descr: str = "<f4", data: bytes = b"") -> Path:
    """Write a .npy file with any header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    path.write_bytes(
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data
    )
    return path


@pytest.mark.parametrize(
    ("shape", "descr", "data"),
    [
        ((10**9, 10**9), "<f4", b"few"),  # 10^18 elements
        ((2**40, 2**40), "<f4", b"few"),  # more than any address
        ((-1, 4), "<f4", bytes(64)),
        ((4, 4), "<f4", bytes(60)),  # cut off
        ((4, 4), "|O", bytes(128)),
        ((4, 4), "<U3", bytes(192)),
        ((4, 4), "<c8", bytes(128)),
        ((16,), "<f4", bytes(64)),
        ((2, 2, 4), "<f4", bytes(64)),
        ((0, 4), "<f4", b""),
        ((4, 0), "<f4", b""),
        ("'x'", "<f4", bytes(64)),
        ("(((((", "<f4", bytes(64)),
    ],
)
def test_an_array_with_a_wrong_header_or_shape_is_a_data_error(
    tmp_path: Path, shape: object, descr: str, data: bytes
) -> None:
    path = npy(tmp_path / "a.npy", shape, descr, data)
    for read in (read_images, read_texts):
        with pytest.raises(DataError, match=r"a\.npy (is not a plain|has type)") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_archives_empty_files_and_folders_are_not_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    os.rename(tmp_path / "a.npz", tmp_path / "a.npy")
    with pytest.raises(DataError, match="archive of arrays"):
        read_images(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(DataError, match="not a plain"):
        read_images(tmp_path / "a.npy")
    (tmp_path / "b.npy").mkdir()
    with pytest.raises(DataError, match="not a plain"):
        read_images(tmp_path / "b.npy")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_the_first_row_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    features = np.ones((5, 3))
    features[3, 1] = value
    np.save(tmp_path / "a.npy", features)
    with pytest.raises(DataError, match=r"Row 3 .*not a finite"):
        read_texts(tmp_path / "a.npy")


def test_a_damaged_parquet_file_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(2000)]}), path)
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"PAR1" + bytes(100) + b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not a readable parquet file") as caught:
            read_texts(path)
        assert "\n" not in str(caught.value)


def test_sources_with_impossible_names_are_data_errors(tmp_path: Path) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.txt")
    Path(strange).write_text("x")
    for name in ("x" * 5000, "a\0b.csv", "loop.csv", strange):
        with pytest.raises(DataError, match=r"does not exist|Cannot read|not UTF-8") as caught:
            read_texts(tmp_path / name)
        str(caught.value).encode()


def test_two_files_without_ids_are_paired_by_row_or_refused(tmp_path: Path) -> None:
    """Row 0 of an array and line 1 of a text file are the same row."""
    np.save(tmp_path / "x.npy", np.eye(3))
    np.save(tmp_path / "y.npy", np.eye(4))
    (tmp_path / "a.txt").write_text("a\nb\nc\n")
    (tmp_path / "gap.txt").write_bytes(b"a\nb\nc\n\xe9\n")
    images, everything = read_images(tmp_path / "x.npy"), np.arange(3)
    paired = AuxiliaryCollection.from_collections(images, read_texts(tmp_path / "a.txt")).relation
    assert paired.block(everything, everything)[0].tolist() == np.eye(3).tolist()
    with pytest.raises(DataError, match=r"x\.npy has 3 rows but .*y\.npy has 4"):
        AuxiliaryCollection.from_collections(images, read_texts(tmp_path / "y.npy"))
    with pytest.raises(DataError, match=r"Rows of .*gap\.txt were skipped \(line 4"):
        AuxiliaryCollection.from_collections(images, read_texts(tmp_path / "gap.txt"))


def test_bad_lines_of_a_relation_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_bytes(b'image,text,related\n1,2,1\n1,2\n"open,2,1\n3,4,0\n5,6,2\n')
    triples, problems = read_triples(path)
    assert triples == [("1", "2", 1.0), ("3", "4", 0.0)]
    assert [problem.location for problem in problems] == ["line 3", "line 4", "line 6"]


def test_json_numbers_and_nulls_are_accepted(tmp_path: Path) -> None:
    rows = [{"text": 5, "id": 1.5}, {"text": "b", "id": None}, {"text": "c", "labels": None}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = read_texts(tmp_path / "a.jsonl")
    assert list(texts.items) == ["5", "b", "c"]
    assert list(texts.ids) == ["1.5", "2", "3"]
