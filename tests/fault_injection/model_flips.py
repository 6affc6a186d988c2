"""Flips one bit of one file of a saved model; loading must tell it, or the codes be the same.

python tests/fault_injection/model_flips.py --rounds 500
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

from flipping import one_bit_flipped
from run_history import new_run

from transhash.errors import TranshashError
from transhash.model.encoder import Encoder

TEXTS = ("a boat with sails", "the cat sleeps", "a red car", "a house and a tree")


class Tally(NamedTuple):
    told: int
    harmless: int


def flip_model(folder: Path, rounds: int, seed: int = 1) -> Tally:
    """How many flips were told, and how many changed nothing; an AssertionError tells the rest."""
    encoder = Encoder.load(new_run(folder))
    model = folder / "model"
    encoder.save(model)
    files = sorted(model.iterdir())
    expected = encoder.encode_texts(TEXTS)
    chance = random.Random(seed)
    told = harmless = 0
    for number in range(rounds):
        path = files[number % len(files)]
        with one_bit_flipped(path, chance) as where:
            try:
                codes = Encoder.load(model).encode_texts(TEXTS)
            except TranshashError:
                told += 1
            else:
                assert codes == expected, (path, where)
                harmless += 1
    return Tally(told, harmless)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(flip_model(Path(folder), options.rounds, options.seed))


if __name__ == "__main__":
    main()
