"""A small run folder that many tests copy: CVH, 16 bits, two images and three texts."""

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
from transhash.training.fit import Fit
from transhash.training.fit_data import read_fit_data

COLORS = ("red", "blue", "green", "gray", "white", "black", "orange", "purple")
THINGS = (
    "boat with sails", "cat that sleeps", "car", "house with a roof", "fish", "tree", "sea", "dog",
    "kite", "lamp", "bell", "road",
)  # fmt: skip


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
    base.parent.mkdir(parents=True, exist_ok=True)
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
    for i, thing in enumerate(THINGS):
        for color in [COLORS[(i + shift) % len(COLORS)] for shift in range(4)]:
            image = Image.new("RGB", (24, 16), color)
            image.paste("white", (0, 0, i, 12 - i))
            image.save(folder / "captioned" / f"{color}-{i}.png")
            rows.append(f"captioned/{color}-{i}.png,a {color} {thing}")
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
