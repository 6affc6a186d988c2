"""Python values are converted to the same collections as files."""

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
    """Stands in for a polars frame."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dicts(self) -> list[dict[str, Any]]:
        return self.rows


class DataSet:
    """Stands in for a Hugging Face data set."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


def pixels_of(source: Path | bytes) -> np.ndarray:
    image = open_image(source)
    assert not isinstance(image, str), image
    return np.asarray(image)


@pytest.mark.parametrize(
    "image",
    [
        PIXELS, Image.fromarray(PIXELS), file_bytes(), bytearray(file_bytes()),
        {"bytes": file_bytes(), "path": None},
    ],
    ids=["array", "PIL", "bytes", "bytearray", "data set"],
)  # fmt: skip
def test_an_image_in_memory_keeps_its_pixels(image: Any) -> None:
    assert np.array_equal(pixels_of(to_images([image]).items[0]), PIXELS)


def test_exif_rotation_is_applied() -> None:
    image = Image.fromarray(PIXELS)
    image.getexif()[0x0112] = 6  # turn by 90 degrees
    assert np.array_equal(pixels_of(to_image_source(image)), np.rot90(PIXELS, -1))


def test_ids_are_paths_or_digests_of_the_content(tmp_path: Path) -> None:
    images = to_images([tmp_path / "a.png", str(tmp_path / "b.png"), PIXELS, file_bytes(), PIXELS])
    assert images.ids[:2] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert images.ids[2] != images.ids[3]
    assert images.ids[4] == f"{images.ids[2]}:2"
    assert to_images([file_bytes()]).ids == [images.ids[3]]
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
def test_all_kinds_of_tables_give_the_same_collections(table: Any) -> None:
    assert to_texts(table).items == ["a cat", "a dog"]
    assert to_images(table).ids == ["p", "q"]
    both = to_auxiliary(table)
    assert isinstance(both.relation, GradedRelation)
    assert list(both.texts.labels or ()) == [{"cat", "pet"}, {"dog", "pet"}]
    assert both.relation.block(np.arange(2), np.arange(2))[0].tolist() == [[1, 1], [1, 1]]
    assert both.relation.pairs.block(np.arange(2), np.arange(2))[0].tolist() == [[1, 0], [0, 1]]


def test_a_pandas_frame_is_read() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS)
    assert to_texts(frame).items == ["a cat", "a dog"]
    frame.loc[0, "text"] = None
    texts = to_texts(frame)  # an empty cell
    assert texts.items == ["a dog"]
    assert [problem.location for problem in texts.problems] == ["row 0"]
    frame["text"] = None
    with pytest.raises(DataError, match="No row has a text"):
        to_texts(frame)
    frame["text"] = 5
    with pytest.raises(DataError, match=r"Row 0 is .* not a text"):
        to_texts(frame)


def test_tuples_of_image_and_text_are_pairs() -> None:
    auxiliary = to_auxiliary([(PIXELS, "a cat"), (file_bytes(), "a dog")])
    assert isinstance(auxiliary.relation, SparseRelation)
    assert auxiliary.relation.block(np.arange(2), np.arange(2))[0].tolist() == [[1, 0], [0, 1]]


def test_class_numbers_and_lists_are_labels() -> None:
    rows = [{"text": "a", "label": 3}, {"text": "b", "label": [3, np.int64(4)]}, {"text": "c"}]
    assert list(to_texts(rows).labels or ()) == [{"3"}, {"3", "4"}, set()]


def test_a_float_matrix_holds_features() -> None:
    images = to_images(np.eye(3, 5, dtype=np.float32))
    assert images.features is not None
    assert images.features.shape == (3, 5)
    with pytest.raises(DataError, match="Row 1 of the features"):
        to_texts(np.array([[1.0, 2.0], [np.nan, 1.0]]))


@pytest.mark.parametrize(
    ("convert", "value", "message"),
    [
        (to_images, ["https://a.b/c.jpg"], "URL.*Download"),
        (to_images, "https://a.b/c.jpg", "Images cannot be read from a str"),
        (to_images, [PIXELS.astype(float)], "Image 0 is an array of type float64"),
        (to_images, [PIXELS, 7], "Image 1 is an int"),
        (to_images, [None], "Image 0 is None"),
        (to_images, file_bytes(), "Images cannot be read from a bytes"),
        (to_images, [{"picture": PIXELS}], "column 'image' is missing"),
        (to_images, 5, "Images cannot be read from an int"),
        (to_texts, "a cat on a mat", "is one text"),
        (to_texts, ["a", 5], "Text 1 is an int"),
        (to_texts, ["\ud800"], "half a character"),
        (to_texts, [{"text": "a", "id": 1}, {"text": "b", "id": 1}], "id '1' occurs twice"),
        (to_texts, [{"text": "a", "labels": {"x": 1}}], "labels of row 0"),
        (to_auxiliary, [("a.png", "a", "b")], "Row 0 is a tuple"),
        (to_auxiliary, ["ab"], "Row 0 is a str"),
    ],
)
def test_other_values_are_data_errors(convert: Any, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        convert(value)
