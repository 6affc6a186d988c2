"""A run folder that the first published format wrote, with what was indexed into it."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from PIL import Image


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
