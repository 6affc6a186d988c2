"""Flip one bit of a saved model; loading must report it, or the codes must be the same.

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
    reported: int
    harmless: int


def flip_model(folder: Path, rounds: int, seed: int = 1) -> Tally:
    """Count reported and harmless flips; an AssertionError is any other."""
    encoder = Encoder.load(new_run(folder))
    model = folder / "model"
    encoder.save(model)
    files = sorted(model.iterdir())
    expected = encoder.encode_texts(TEXTS)
    chance = random.Random(seed)
    reported = harmless = 0
    for number in range(rounds):
        path = files[number % len(files)]
        with one_bit_flipped(path, chance) as position:
            try:
                codes = Encoder.load(model).encode_texts(TEXTS)
            except TranshashError:
                reported += 1
            else:
                assert codes == expected, (path, position)
                harmless += 1
    return Tally(reported, harmless)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(flip_model(Path(folder), options.rounds, options.seed))


if __name__ == "__main__":
    main()
