"""Flip one bit of a run folder; `verify` must report it, or search results must be the same.

python tests/fault_injection/run_flips.py --rounds 500
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

from flipping import one_bit_flipped
from run_history import new_run

from transhash.data.collection import Collection
from transhash.errors import TranshashError
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run

TEXTS = {"boat": "a boat with sails", "cat": "the cat sleeps", "car": "a red car"}


class Tally(NamedTuple):
    reported: int
    harmless: int


def results(run: Path) -> list[tuple[str, str | None, int]]:
    """Return the results of two queries."""
    with SearchEngine.open(run) as engine:
        return [
            (hit.item.id, hit.item.text, hit.distance)
            for query in ("a boat", "the red cat")
            for hit in engine.similar_to_text(query, 10, "texts")
        ]


def flip(folder: Path, rounds: int, seed: int = 1) -> Tally:
    run = new_run(folder)
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(Collection([*TEXTS], [*TEXTS.values()]))
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != "writer.lock")
    files = [path for path in files if path.stat().st_size]
    expected = results(run)
    chance = random.Random(seed)
    reported = harmless = 0
    for number in range(rounds):
        path = files[number % len(files)]
        with one_bit_flipped(path, chance) as position:
            if verify_run(run):
                reported += 1
                with contextlib.suppress(TranshashError):  # it may fail or succeed, but not crash
                    results(run)
            else:  # an unused byte
                harmless += 1
                assert results(run) == expected, (path, position)
        for log in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
            (run / log).unlink(missing_ok=True)
    assert verify_run(run) == []
    return Tally(reported, harmless)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(flip(Path(folder), options.rounds, options.seed))


if __name__ == "__main__":
    main()
