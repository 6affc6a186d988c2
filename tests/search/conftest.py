"""A small run folder, with items indexed and without."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from small_run import copy_small_run
from transhash.features.decode import ImageReader

LONG_AGO = 1_600_000_000


@pytest.fixture
def indexed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with photos/red.png, photos/blue.png, notes.txt and named.csv indexed."""
    copy_small_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.fixture
def run(indexed_run: Path) -> Path:
    """The same model with nothing indexed."""
    shutil.rmtree(indexed_run / "index")
    (indexed_run / "catalog.sqlite").unlink()
    return indexed_run


def photo(path: Path, color: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 16), color).save(path)
    return path


def old_photo(path: Path, color: str, seconds: int = LONG_AGO) -> Path:
    photo(path, color)
    os.utime(path, (seconds, seconds))
    return path


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read."""
    names: list[str] = []
    inner = ImageReader.__call__

    def record(self: ImageReader, position: int, source: Path | bytes):  # type: ignore[no-untyped-def]
        assert isinstance(source, Path)
        names.append(source.name)
        return inner(self, position, source)

    monkeypatch.setattr(ImageReader, "__call__", record)
    return names
