"""Flips one bit of one file of a run folder; `verify` must tell it, or nothing may have changed.

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
    told: int
    harmless: int


def answers(run: Path) -> list[tuple[str, str | None, int]]:
    """What a search shows, of both questions."""
    engine = SearchEngine.open(run)
    try:
        return [
            (hit.item.id, hit.item.text, hit.distance)
            for question in ("a boat", "the red cat")
            for hit in engine.similar_to_text(question, 10, "texts")
        ]
    finally:
        engine.close()


def flip(folder: Path, rounds: int, seed: int = 1) -> Tally:
    run = new_run(folder)
    engine = SearchEngine.open(run, writable=True)
    engine.add_texts(Collection([*TEXTS], [*TEXTS.values()]))
    engine.close()
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != "writer.lock")
    files = [path for path in files if path.stat().st_size]
    expected = answers(run)
    chance = random.Random(seed)
    told = harmless = 0
    for number in range(rounds):
        path = files[number % len(files)]
        with one_bit_flipped(path, chance) as where:
            if verify_run(run):
                told += 1
                with contextlib.suppress(TranshashError):  # it may refuse or answer, nothing else
                    answers(run)
            else:  # a byte that nothing is read from
                harmless += 1
                assert answers(run) == expected, (path, where)
        for beside in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
            (run / beside).unlink(missing_ok=True)
    assert verify_run(run) == []
    return Tally(told, harmless)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(flip(Path(folder), options.rounds, options.seed))


if __name__ == "__main__":
    main()
