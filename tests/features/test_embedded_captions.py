"""Captions inside image files are auxiliary pairs, on the auxiliary side only."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transhash.data.collection import AuxiliaryCollection, Collection
from transhash.data.manifest import read_images
from transhash.data.relation import SparseRelation
from transhash.errors import DataError
from transhash.features import decode
from transhash.training.fit_data import add_embedded_captions, embedded_captions, read_fit_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images 0 to 3 have captions of their own, 4 to 9 share one, 10 has none, 11 is broken."""
    for i in range(11):
        exif = Image.Exif()
        if i < 10:
            exif[0x010E] = f"A boat {i}" if i < 4 else "Photograph by me"
        Image.new("RGB", (16, 16), (i * 20, 0, 0)).save(tmp_path / f"{i:02}.jpg", exif=exif)
    (tmp_path / "11.jpg").write_bytes(b"broken")
    return tmp_path


def test_images_with_captions_of_their_own_are_pairs(folder: Path) -> None:
    pairs = embedded_captions(read_images(folder))
    assert pairs == [(i, f"A boat {i}") for i in range(4)]


def test_a_file_that_is_too_large_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = read_images(folder)
    with (folder / "00.jpg").open("ab") as file:
        file.write(bytes(5000))
    monkeypatch.setattr(decode, "MAX_FILE_BYTES", 4000)
    assert embedded_captions(images) == [(i, f"A boat {i}") for i in (1, 2, 3)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_the_images_is_not_waited_for(folder: Path) -> None:
    pipe = folder / "pipe.jpg"
    os.mkfifo(pipe)
    writer = threading.Timer(10, pipe.write_bytes, [(folder / "00.jpg").read_bytes()])
    writer.daemon = True
    writer.start()  # a reader that waits is not blocked forever
    images = Collection(["pipe", "boat"], [pipe, folder / "01.jpg"])
    assert embedded_captions(images) == [(1, "A boat 1")]
    writer.cancel()


def test_they_are_further_rows_of_the_auxiliary_set(folder: Path) -> None:
    first = AuxiliaryCollection.from_collections(
        Collection(["a", "b"], [folder / "10.jpg", folder / "10.jpg"]),
        Collection(["a", "b"], ["red", "dark"]),
    )
    united = add_embedded_captions(first, read_images(folder))
    assert list(united.texts.items) == ["red", "dark", *(f"A boat {i}" for i in range(4))]
    assert isinstance(united.relation, SparseRelation)
    assert np.array_equal(united.relation.similar.toarray(), np.eye(6))
    assert united.relation.mask is None


def test_the_target_images_stay_without_captions(folder: Path) -> None:
    data = read_fit_data(images=folder, texts=["a note"], embedded_captions=True)
    assert data.auxiliary is not None
    assert len(data.auxiliary.images) == 4
    assert data.images is not None
    assert len(data.images) == 12
    assert data.texts is not None
    assert list(data.texts.items) == ["a note"]


def test_what_cannot_be_united_is_refused(folder: Path) -> None:
    labels = AuxiliaryCollection.from_collections(
        Collection(["a"], [folder / "10.jpg"], labels=[frozenset("x")]),
        Collection(["b"], ["red"], labels=[frozenset("x")]),
    )
    with pytest.raises(DataError, match="labels or clicks"):
        add_embedded_captions(labels, read_images(folder))
    with pytest.raises(DataError, match="None of 1 images"):
        add_embedded_captions(None, Collection(["x"], [folder / "10.jpg"]))
