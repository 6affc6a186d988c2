"""Features from a .npy: small ones are read, large ones stay on the disk."""

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
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_WHOLE", 100)
    monkeypatch.setattr(manifest, "_PART", 200)  # eight rows and a bit


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_file_stays_where_it_is(tmp_path: Path, rows: np.ndarray, order: str) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.array(rows, order=order))  # type: ignore[call-overload]
    found = read_array(file)
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, rows)


def test_a_small_file_and_one_of_other_numbers_are_read(tmp_path: Path, rows: np.ndarray) -> None:
    for name, array in (("small", rows[:2]), ("double", rows.astype(np.float64))):
        np.save(tmp_path / f"{name}.npy", array)
        found = read_array(tmp_path / f"{name}.npy")
        assert not isinstance(found, np.memmap)
        assert found.dtype == np.float32
        assert np.array_equal(found, array.astype(np.float32))


def test_rows_that_are_not_finite_are_found_in_every_part(tmp_path: Path, rows: np.ndarray) -> None:
    rows[[9, 49], 3] = np.nan
    np.save(tmp_path / "x.npy", rows)
    with pytest.raises(DataError, match=r"row 9: .* as in 2 of 50 rows"):
        read_array(tmp_path / "x.npy")
