"""A run folder for fault injection, and its expected items."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from small_run import copy_small_run
from transhash.search.consistency import compare
from transhash.search.engine import SearchEngine

TEXTS, IMAGES = 3000, 6
WORDS = ("boat", "cat", "car", "tree", "house", "fish", "sails", "red", "blue", "sleeps")


def new_run(folder: Path) -> Path:
    """A fitted run with nothing indexed."""
    return copy_small_run(folder, indexed=False)


def write_sources(folder: Path, version: int) -> dict[str, str]:
    """Write notes.csv and images/; each version changes every third text. Return texts by id."""
    texts = {}
    for i in range(TEXTS):
        change = version if i % 3 == version % 3 else (version - (version - i) % 3) % (version + 1)
        words = [WORDS[(i * 7 + change * 3 + k * (change + 1)) % len(WORDS)] for k in range(4)]
        texts[f"note-{i}"] = f"a {' '.join(words)} {i}"
    rows = [f"{name},{text}" for name, text in texts.items()]
    (folder / "notes.csv").write_text("\n".join(["id,text", *rows]) + "\n")
    (folder / "images").mkdir(exist_ok=True)
    for i in range(IMAGES):
        color = ((i * 40 + version * 20 * (i % 2)) % 256, 90, 200 - i * 20)
        Image.new("RGB", (24, 16), color).save(folder / "images" / f"{i}.png")
    return texts


def findable(run: Path) -> dict[str, str | None]:
    """Return id and text of all texts that a search returns."""
    with SearchEngine.open(run) as engine:
        hits = engine.similar_to_text("a boat", 10**6, "texts", collapse=False)
        return {hit.item.id: hit.item.text for hit in hits}


def is_consistent(run: Path) -> bool:
    """Return whether catalog and index are equal after a writer has opened them."""
    with SearchEngine.open(run, writable=True) as engine:
        return not engine.catalog.pending("") and not any(
            compare(engine.catalog, name, index) for name, index in engine.indexes.items()
        )
