"""A few hundred bits of every method, to check that refactoring changes none of them.

    cd tests && python -m hashers.golden      rewrites golden.json after arithmetic changed

Commit a new recording separately, with the change in MAP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transhash.hashers import PAPER_METHODS, make_hasher

from .worlds import World

FILE = Path(__file__).with_name("golden.json")
SORTS = ("labels", "pairs", "triples")
ITEMS = 24  # of each modality: 24 x 2 x 16 bits per method and type of relation
QUICK: dict[str, dict[str, Any]] = {"DCMH": {"epochs": 10}}


def codes(method: str, sort: str) -> list[str]:
    """Return codes of images and of texts as hexadecimal numbers."""
    world = World(seed=11, classes=20)  # more classes than bits: no arbitrary direction
    training, fresh = world.training(200, sort), world.draw(ITEMS)
    steps: dict[str, Any] = {}
    if method.startswith("THN"):
        steps = {"steps": 60, "batch_size": 64, "target_batch_size": 32}
    if method == "THN-paper":  # it collapses, so that rounding matters after a few steps
        steps |= {"steps": 5, "learning_rate": 1e-4}
    hasher = make_hasher(method, bits=16, seed=0, **steps, **QUICK.get(method, {})).fit(training)
    parts = (hasher.encode_images(fresh.images), hasher.encode_texts(fresh.texts))
    return [part.packed.tobytes().hex() for part in parts]


def record() -> dict[str, dict[str, list[str]]]:
    return {
        method: {sort: codes(method, sort) for sort in SORTS}
        for method in (*PAPER_METHODS, "THN-paper")
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), indent=1) + "\n")
