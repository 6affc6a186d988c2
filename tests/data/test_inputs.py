"""What people hold in Python becomes the collections that files become."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from transhash.data.inputs import to_auxiliary, to_image_source, to_images, to_texts
from transhash.data.relation import GradedRelation, SparseRelation
from transhash.errors import DataError
from transhash.features.decode import open_image

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 9, 3)).astype(np.uint8)


def file_bytes() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "PNG")
    return buffer.getvalue()


class Frame:
    """A polars frame, as far as it is asked."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dicts(self) -> list[dict[str, Any]]:
        return self.rows


class DataSet:
    """A Hugging Face data set, as far as it is asked."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


def shown(picture: Path | bytes) -> np.ndarray:
    image = open_image(picture)
    assert not isinstance(image, str), image
    return np.asarray(image)


@pytest.mark.parametrize(
    "picture",
    [
        PIXELS, Image.fromarray(PIXELS), file_bytes(), bytearray(file_bytes()),
        {"bytes": file_bytes(), "path": None},
    ],
    ids=["array", "PIL", "bytes", "bytearray", "data set"],
)  # fmt: skip
def test_a_picture_in_memory_keeps_its_pixels(picture: Any) -> None:
    assert np.array_equal(shown(to_images([picture]).items[0]), PIXELS)


def test_a_picture_that_lies_on_its_side_is_turned_as_its_file_would_be() -> None:
    image = Image.fromarray(PIXELS)
    image.getexif()[0x0112] = 6  # turn by 90 degrees
    assert np.array_equal(shown(to_image_source(image)), np.rot90(PIXELS, -1))


def test_paths_keep_their_names_and_other_pictures_are_known_by_content(tmp_path: Path) -> None:
    found = to_images([tmp_path / "a.png", str(tmp_path / "b.png"), PIXELS, file_bytes(), PIXELS])
    assert found.ids[:2] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert found.ids[2] != found.ids[3]
    assert found.ids[4] == f"{found.ids[2]}:2"
    assert to_images([file_bytes()]).ids == [found.ids[3]]
    assert to_texts(["a cat", "a dog"]).ids == to_texts(["a cat", "a dog", "a"]).ids[:2]
    assert to_images([PIXELS], ids=["x"]).ids == ["x"]


ROWS = [
    {"id": "p", "image": file_bytes(), "text": "a cat", "labels": "cat|pet"},
    {"id": "q", "image": file_bytes(), "text": "a dog", "labels": "dog|pet"},
]


@pytest.mark.parametrize(
    "table",
    [ROWS, Frame(ROWS), DataSet(ROWS), pa.Table.from_pylist(ROWS)],
    ids=["dictionaries", "polars", "data set", "arrow"],
)
def test_tables_of_every_kind_say_the_same(table: Any) -> None:
    assert to_texts(table).items == ["a cat", "a dog"]
    assert to_images(table).ids == ["p", "q"]
    both = to_auxiliary(table)
    assert isinstance(both.relation, GradedRelation)
    assert both.texts.labels == [{"cat", "pet"}, {"dog", "pet"}]
    assert both.relation.block(np.arange(2), np.arange(2))[0].tolist() == [[1, 1], [1, 1]]
    assert both.relation.pairs.block(np.arange(2), np.arange(2))[0].tolist() == [[1, 0], [0, 1]]


def test_a_pandas_frame_is_read() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS)
    assert to_texts(frame).items == ["a cat", "a dog"]
    frame.loc[0, "text"] = None
    with pytest.raises(DataError, match=r"row 0 is .*, not a text"):
        to_texts(frame)


def test_pairs_of_image_and_text_belong_together() -> None:
    found = to_auxiliary([(PIXELS, "a cat"), (file_bytes(), "a dog")])
    assert isinstance(found.relation, SparseRelation)
    assert found.relation.block(np.arange(2), np.arange(2))[0].tolist() == [[1, 0], [0, 1]]


def test_class_numbers_and_lists_are_labels() -> None:
    rows = [{"text": "a", "label": 3}, {"text": "b", "label": [3, np.int64(4)]}, {"text": "c"}]
    assert to_texts(rows).labels == [{"3"}, {"3", "4"}, set()]


def test_rows_of_numbers_are_features() -> None:
    found = to_images(np.eye(3, 5, dtype=np.float32))
    assert found.features is not None
    assert found.features.shape == (3, 5)
    with pytest.raises(DataError, match="row 1 of the features"):
        to_texts(np.array([[1.0, 2.0], [np.nan, 1.0]]))


@pytest.mark.parametrize(
    ("convert", "given", "words"),
    [
        (to_images, ["https://a.b/c.jpg"], "image 0 is the address https.*download it"),
        (to_images, "https://a.b/c.jpg", "must be a list"),
        (to_images, [PIXELS.astype(float)], "image 0 is an array of float64"),
        (to_images, [PIXELS, 7], "image 1 is a int; give a path"),
        (to_images, [None], r"image 0 is nothing \(None\)"),
        (to_images, file_bytes(), "must be a list, a file"),
        (to_images, [{"picture": PIXELS}], "no column named 'image', only 'picture'"),
        (to_images, 5, "must be a list"),
        (to_texts, "a cat on a mat", "got the one text 'a cat on a mat'"),
        (to_texts, ["a", 5], "text 1 is a int"),
        (to_texts, ["\ud800"], "half a character"),
        (to_texts, [{"text": "a", "id": 1}, {"text": "b", "id": 1}], "id '1' occurs twice"),
        (to_texts, [{"text": "a", "labels": {"x": 1}}], "labels of row 0 are a dict"),
        (to_auxiliary, [("a.png", "a", "b")], "pair 0 is a tuple; pairs are"),
        (to_auxiliary, ["ab"], "pair 0 is a str"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(convert: Any, given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        convert(given)
