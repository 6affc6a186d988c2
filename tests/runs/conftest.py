"""A run folder that the first published format wrote, with what was indexed into it."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from transhash.features.decode import Reader

LONG_AGO = 1_600_000_000


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CVH of 16 bits, with photos/red.png, photos/blue.png, notes.txt and named.csv indexed."""
    with tarfile.open(Path(__file__).parent / "run-2163542.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)  # sources were given, and kept, relative to here
    return tmp_path / "run"


@pytest.fixture
def run(old_run: Path) -> Path:
    """The same model with nothing indexed."""
    shutil.rmtree(old_run / "index")
    (old_run / "catalog.sqlite").unlink()
    return old_run


def photo(path: Path, colour: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 16), colour).save(path)
    return path


def old_photo(path: Path, colour: str, seconds: int = LONG_AGO) -> Path:
    photo(path, colour)
    os.utime(path, (seconds, seconds))
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read."""
    names: list[str] = []
    inner = Reader.__call__

    def reading(self: Reader, position: int, source: Path | bytes):  # type: ignore[no-untyped-def]
        assert isinstance(source, Path)
        names.append(source.name)
        return inner(self, position, source)

    monkeypatch.setattr(Reader, "__call__", reading)
    return names
