"""A run folder to be tortured, and what it must hold."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from small_run import copy_small_run
from transhash.search.consistency import compare
from transhash.search.engine import SearchEngine

TEXTS, PICTURES = 3000, 6
WORDS = ("boat", "cat", "car", "tree", "house", "fish", "sails", "red", "blue", "sleeps")


def new_run(folder: Path) -> Path:
    """A fitted run with nothing indexed."""
    return copy_small_run(folder, indexed=False)


def write_sources(folder: Path, version: int) -> dict[str, str]:
    """notes.csv and pictures/ of that version: every third text is another one; texts by id."""
    texts = {}
    for i in range(TEXTS):
        change = version if i % 3 == version % 3 else (version - (version - i) % 3) % (version + 1)
        words = [WORDS[(i * 7 + change * 3 + k * (change + 1)) % len(WORDS)] for k in range(4)]
        texts[f"note-{i}"] = f"a {' '.join(words)} {i}"
    rows = [f"{name},{text}" for name, text in texts.items()]
    (folder / "notes.csv").write_text("\n".join(["id,text", *rows]) + "\n")
    (folder / "pictures").mkdir(exist_ok=True)
    for i in range(PICTURES):
        colour = ((i * 40 + version * 20 * (i % 2)) % 256, 90, 200 - i * 20)
        Image.new("RGB", (24, 16), colour).save(folder / "pictures" / f"{i}.png")
    return texts


def findable(run: Path) -> dict[str, str | None]:
    """Id and text of every text that a reader's search finds."""
    engine = SearchEngine.open(run)
    try:
        hits = engine.similar_to_text("a boat", 10**6, "texts")
        return {hit.item.id: hit.item.text for hit in hits}
    finally:
        engine.close()


def agrees(run: Path) -> bool:
    """Catalog and index, once a writer has opened them."""
    engine = SearchEngine.open(run, writable=True)
    try:
        return not engine.catalog.pending("") and not any(
            compare(engine.catalog, name, index) for name, index in engine.indexes.items()
        )
    finally:
        engine.close()
