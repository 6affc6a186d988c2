"""A small run folder that many tests copy: CVH, 16 bits, word counts, two images and three texts."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image

from transhash.data.manifest import read_images, read_texts
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.search.engine import SearchEngine
from transhash.training.fit import InputPaths, fit_files, read_fit_data

CAPTIONS = {
    "red": "a red boat", "blue": "the blue sea", "green": "a green tree", "gray": "a gray cat",
    "white": "a white house with a roof", "black": "the black car", "orange": "a fish sleeps",
    "purple": "a boat with sails",
}  # fmt: skip


def copy_small_run(folder: Path, *, indexed: bool = True) -> Path:
    """Copy run/, photos/, notes.txt and named.csv to `folder`; return its run folder.

    Sources are stored relative to the folder, as they are when a user names them that way.
    """
    shutil.copytree(_built(), folder, dirs_exist_ok=True)
    run = folder / "run"
    if not indexed:
        shutil.rmtree(run / "index")
        (run / "catalog.sqlite").unlink()
    return run


def _built() -> Path:
    """Build the run once for all processes of a test session."""
    cache = os.environ.get("TRANSHASH_CACHE")
    base = Path(cache or tempfile.mkdtemp()) / "copied-run"
    if base.exists():
        return base
    draft = Path(tempfile.mkdtemp(dir=base.parent))
    _build(draft)
    try:
        draft.rename(base)
    except OSError:  # another process was faster
        shutil.rmtree(draft)
    return base


def _build(folder: Path) -> None:
    (folder / "captioned").mkdir()
    rows = ["image,text"]
    for color, text in CAPTIONS.items():
        Image.new("RGB", (24, 16), color).save(folder / "captioned" / f"{color}.png")
        rows.append(f"captioned/{color}.png,{text}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    (folder / "photos").mkdir()
    for color in ("red", "blue"):
        Image.new("RGB", (24, 16), color).save(folder / "photos" / f"{color}.png")
    (folder / "notes.txt").write_text("a boat with sails\nthe cat sleeps\n")
    (folder / "named.csv").write_text("id,text\nb1,a red boat\n")
    data = read_fit_data(InputPaths(auxiliary=folder / "captions.csv"))
    features = image_features("efficientnet-lite0")
    run = folder / "run"
    fit_files(
        make_hasher("CVH", bits=16), "CVH", data, run, features, texts="bag-of-words", verdict=False
    )
    engine = SearchEngine.open(run, writable=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        engine.add_images(read_images(Path("photos")))
        engine.add_texts(read_texts(Path("notes.txt")))
        engine.add_texts(read_texts(Path("named.csv")))
    finally:
        os.chdir(before)
        engine.close()
