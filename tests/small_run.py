"""A small run folder that many tests copy: CVH, 16 bits, bag of words, two images and three texts."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image

from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.search.catalog import Catalog
from transhash.search.engine import SearchEngine
from transhash.training.fit import Fit, read_fit_data

CAPTIONS = {
    "red": "a red boat", "blue": "the blue sea", "green": "a green tree", "gray": "a gray cat",
    "white": "a white house with a roof", "black": "the black car", "orange": "a fish sleeps",
    "purple": "a boat with sails",
}  # fmt: skip


def copy_small_run(folder: Path, *, indexed: bool = True) -> Path:
    """Copy run/, photos/, notes.txt and named.csv to `folder`; return its run folder.

    The items of the copy are indexed from the copied files.
    """
    original = _built()
    shutil.copytree(original, folder, dirs_exist_ok=True)
    run = folder / "run"
    if indexed:
        with Catalog(run / "catalog.sqlite") as catalog:
            built_in = Path(next(catalog.sources.list_items()).source).parent
            catalog.sources.move(str(built_in), str(folder.resolve()))
    else:
        shutil.rmtree(run / "index")
        (run / "catalog.sqlite").unlink()
    return run


def _built() -> Path:
    """Build the run once for all processes of a test session."""
    cache = os.environ.get("TRANSHASH_CACHE")
    base = Path(cache or tempfile.mkdtemp()) / "small-run"
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
    hasher, features = make_hasher("CVH", bits=16), image_features("efficientnet-lite0")
    run = folder / "run"
    fit = Fit(hasher, "CVH", run, features, "bag-of-words", validate=False)
    fit.run_files(read_fit_data(folder / "captions.csv"))
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_images(folder / "photos")
        engine.add_texts(folder / "notes.txt")
        engine.add_texts(folder / "named.csv")
