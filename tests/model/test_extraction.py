"""From files to feature arrays, in Python and by `transhash features`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from threadpoolctl import threadpool_info, threadpool_limits

import transhash
from scale.command import Command
from small_run import copy_small_run
from transhash.data.inputs import to_images
from transhash.errors import DataError
from transhash.features.images import EfficientNetLite0
from transhash.model.encoder import Encoder
from transhash.threads import single_blas_thread


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_small_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def test_rows_and_ids_are_in_order_and_an_unreadable_image_is_skipped(run: Path) -> None:
    Path("photos/a.png").write_bytes(b"broken")
    array = transhash.extract_features("photos")
    assert list(array.ids) == ["blue.png", "red.png"]
    (problem,) = array.problems
    assert problem.location.endswith("a.png")
    pixels = [np.asarray(Image.open(f"photos/{n}").resize((224, 224))) for n in array.ids]
    assert array.rows.shape == EfficientNetLite0().extract(np.stack(pixels)).shape
    single = transhash.extract_features([Path("photos/red.png")])
    np.testing.assert_allclose(single.rows[0], array.rows[1], rtol=1e-4, atol=1e-4)
    in_memory = transhash.extract_features([Image.open("photos/red.png")])
    np.testing.assert_allclose(in_memory.rows[0], array.rows[1], rtol=1e-4, atol=1e-4)


def test_features_of_a_run_are_those_that_its_model_takes(run: Path) -> None:
    encoder = Encoder.load(run)
    texts = transhash.extract_features("notes.txt", "texts", run=run)
    assert encoder.text_features is not None
    lines = Path("notes.txt").read_text().splitlines()
    np.testing.assert_array_equal(texts.rows, encoder.text_features.transform(lines))
    images = transhash.extract_features("photos", run=run)
    codes, _, _ = encoder.encode_images(to_images("photos"))
    np.testing.assert_array_equal(encoder.hasher.encode_images(images.rows).packed, codes.packed)


def test_the_command_writes_an_array_with_ids_beside_it_that_fit_accepts(
    run: Path, command: Command
) -> None:
    result = command("features", "images", "photos", "--out", "photos.npy")
    assert "photos.npy: 2 x 1280 features" in result.out
    with Path("photos.ids.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["row", "id"], ["0", "blue.png"], ["1", "red.png"]]
    rows = np.load("photos.npy")
    np.testing.assert_array_equal(rows, transhash.extract_features("photos").rows)
    notes = Path("notes.txt").read_text()
    command("features", "texts", "notes.txt", "--run", "run", "--out", "notes.npy")
    assert np.load("notes.npy").shape[0] == 2
    assert Path("notes.txt").read_text() == notes
    command("index", "run", "--images", "photos")  # unaffected


def test_what_has_no_features_is_refused(run: Path, command: Command) -> None:
    assert "end in .npy" in command.refused("features", "images", "photos", "--out", "a.txt")
    refusal = command.refused(
        "features", "images", "photos", "--features", "nonsense", "--out", "a.npy"
    )
    assert "Unknown image features" in refusal
    refusal = command.refused("features", "notes", "photos", "--out", "a.npy")
    assert "Unknown modality" in refusal
    with pytest.raises(DataError, match="Pass a run"):
        transhash.extract_features(["a"], "texts", features="words")
    with pytest.raises(DataError, match="pixels"):
        transhash.extract_features("photos", features="alexnet")
    with pytest.raises(DataError, match="either features or run"):
        transhash.extract_features("photos", features="efficientnet-lite0", run=run)
    assert not list(Path().glob("a.*"))


def test_encoding_that_overlaps_with_a_search_gives_blas_its_threads_back(run: Path) -> None:
    def blas_threads() -> set[int]:
        return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}

    encoder = Encoder.load(run)
    with threadpool_limits(2, "blas"):
        before = blas_threads()
        assert before == {2}
        batches = encoder.encode_batches(to_images("photos"), "images", 1)
        next(batches)
        with single_blas_thread():  # begins and ends later
            assert len(list(batches)) == 1
            assert blas_threads() == {1}
        assert blas_threads() == before
