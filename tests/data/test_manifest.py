import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from transhash.data.collection import AuxiliaryCollection
from transhash.data.manifest import (
    manifest_texts,
    read_images,
    read_manifest,
    read_texts,
    read_triples,
)
from transhash.data.relation import GradedRelation
from transhash.errors import DataError


def save_image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), "red").save(path)
    return path


def test_a_folder_is_read_recursively_and_other_files_are_listed(tmp_path: Path) -> None:
    save_image(tmp_path / "b.png")
    save_image(tmp_path / "deep" / "er" / "a.JPG")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "notes.csv").write_text("x")
    (tmp_path / ".DS_Store").touch()
    images = read_images(tmp_path)
    assert list(images.ids) == ["b.png", "deep/er/a.JPG"]
    reasons = {problem.location: problem.reason for problem in images.problems}
    assert reasons["empty.jpg"] == "is an empty file"
    assert "not an image" in reasons["notes.csv"]
    assert len(reasons) == 2


ROWS = [
    {"id": "1", "text": "a dog, barking", "labels": "dog|animal"},
    {"id": "2", "text": "a cat", "labels": "cat"},
]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_table_format_gives_the_same_collection(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"texts.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    elif suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif suffix == "csv":
        path.write_text('id,text,labels\n1,"a dog, barking",dog|animal\n2,a cat,cat\n')
    else:
        path.write_text("ID\tText\tlabels\n1\ta dog, barking\tdog|animal\n2\ta cat\tcat\n")
    texts = read_texts(path)
    assert list(texts.ids) == ["1", "2"]
    assert list(texts.items) == ["a dog, barking", "a cat"]
    assert texts.labels is not None
    assert texts.labels[0] == {"dog", "animal"}


def test_a_text_file_has_one_text_per_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("first\n\nthird\n", encoding="utf-8-sig")
    texts = read_texts(path)
    assert list(texts.items) == ["first", "third"]
    assert list(texts.ids) == ["1", "3"]


def test_a_row_whose_image_is_missing_or_empty_is_skipped(tmp_path: Path) -> None:
    save_image(tmp_path / "here.png")
    (tmp_path / "empty.png").touch()
    path = tmp_path / "list.tsv"
    path.write_text("image\ttext\nhere.png\ta\ngone.png\tb\nempty.png\tc\n")
    images = read_images(path)
    assert list(images.ids) == ["here.png"]
    assert [p.location for p in images.problems] == ["line 3", "line 4"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"foo,bar\n1,2\n", "no column image or text"),
        ("a.csv", "id,text\n1,x\n".encode("utf-16"), "UTF-16"),
        ("a.txt", b"PK\x00\x03binary", "binary file"),
        ("a.docx", b"x", "unknown file type"),
        ("a.parquet", b"not parquet", "not a readable parquet"),
        ("a.npy", b"not numpy", "not a plain .npy"),
        ("a.csv", b"id,text\n1,\n", "no usable text"),
        ("a.csv", "id,text\n1,été\n".encode("latin-1"), "first problem: not UTF-8"),
        ("a.csv", "id,Prénom\n1,x\n".encode("latin-1"), "no column image or text"),
        ("a.csv", "id,text\n1,x\n".encode("utf-16-le"), "binary file or not UTF-8"),
        ("a.csv", b"id,text,text\n1,x,y\n", "two columns named text"),
        ("a.csv", b'id,"text\n1,x\n', "header .* in line 1"),
        ("a.txt", b"", "no usable text"),
        ("a.jsonl", b"", "no usable text"),
    ],
)
def test_an_unusable_file_is_a_data_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_texts(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_a_missing_source_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_images(tmp_path / "nowhere")


def test_texts_are_not_taken_from_a_file_of_images(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png")
    with pytest.raises(DataError, match="no texts"):
        manifest_texts(read_manifest(tmp_path))


def test_precomputed_features_get_row_numbers_as_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 5), np.float16))
    images = read_images(tmp_path / "x.npy")
    assert list(images.ids) == ["0", "1", "2"]
    assert images.features is not None
    assert images.features.shape == (3, 5)


def test_the_relation_comes_from_triples_else_labels_else_pairing(tmp_path: Path) -> None:
    for name in "ab":
        save_image(tmp_path / f"{name}.png")
    rows = "id\timage\ttext\tlabels\n1\ta.png\tone\tk|l\n2\tb.png\ttwo\tl\n"
    (tmp_path / "labeled.tsv").write_text(rows)
    (tmp_path / "paired.tsv").write_text("id\timage\ttext\n1\ta.png\tone\n2\tb.png\ttwo\n")
    (tmp_path / "clicks.csv").write_text("image,text,related\n1,2,1\n2,2,0\n9,9,maybe\n")
    everything = np.arange(2)

    def matrix(name: str, clicks: bool = False) -> list[list[float]]:
        images, texts = read_images(tmp_path / name), read_texts(tmp_path / name)
        triples = read_triples(tmp_path / "clicks.csv")[0] if clicks else None
        relation = AuxiliaryCollection.from_collections(images, texts, triples).relation
        return relation.block(everything, everything)[0].tolist()  # type: ignore[no-any-return]

    assert matrix("labeled.tsv") == [[1, 1], [1, 1]]
    assert matrix("paired.tsv") == [[1, 0], [0, 1]]
    both = AuxiliaryCollection.from_collections(
        read_images(tmp_path / "labeled.tsv"), read_texts(tmp_path / "labeled.tsv")
    )
    assert isinstance(both.relation, GradedRelation)
    pairs, _ = both.relation.pairs.block(everything, everything)
    assert pairs.tolist() == [[1, 0], [0, 1]]
    assert matrix("paired.tsv", clicks=True) == [[0, 1], [0, 0]]
    assert len(read_triples(tmp_path / "clicks.csv")[1]) == 1


def test_images_and_texts_must_share_a_label(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png")
    (tmp_path / "i.tsv").write_text("image\tlabels\na.png\tdog\n")
    (tmp_path / "t.tsv").write_text("text\tlabels\nwoof\tDog\n")
    with pytest.raises(DataError, match="share no label"):
        AuxiliaryCollection.from_collections(
            read_images(tmp_path / "i.tsv"), read_texts(tmp_path / "t.tsv")
        )
