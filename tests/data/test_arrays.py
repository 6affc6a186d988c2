"""Features from .npy files: small ones are copied, large ones are memory-mapped."""

from pathlib import Path

import numpy as np
import pytest

from transhash.data import manifest
from transhash.data.manifest import read_array
from transhash.errors import DataError


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_MAX_COPY_BYTES", 100)
    monkeypatch.setattr(manifest, "_CHUNK_BYTES", 200)  # eight rows


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_file_is_memory_mapped(tmp_path: Path, rows: np.ndarray, order: str) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.array(rows, order=order))  # type: ignore[call-overload]
    array = read_array(file)
    assert isinstance(array, np.memmap)
    assert np.array_equal(array, rows)


def test_small_files_and_other_number_types_are_copied(tmp_path: Path, rows: np.ndarray) -> None:
    for name, saved in (("small", rows[:2]), ("double", rows.astype(np.float64))):
        np.save(tmp_path / f"{name}.npy", saved)
        array = read_array(tmp_path / f"{name}.npy")
        assert not isinstance(array, np.memmap)
        assert array.dtype == np.float32
        assert np.array_equal(array, saved.astype(np.float32))


def test_rows_that_are_not_finite_are_counted_in_all_chunks(
    tmp_path: Path, rows: np.ndarray
) -> None:
    rows[[9, 49], 3] = np.nan
    np.save(tmp_path / "x.npy", rows)
    with pytest.raises(DataError, match=r"Row 9 .*2 of 50 rows"):
        read_array(tmp_path / "x.npy")
