"""Codes are those recorded: bit by bit on the same CPU, almost on others."""

import json

import pytest

from .golden import FILE, SORTS, codes

GOLDEN = json.loads(FILE.read_text())
# Another CPU adds in another order, which flips bits whose projection is close to zero.
OTHER_CPU = 0.02


@pytest.mark.parametrize("method", GOLDEN)
def test_codes_are_the_recorded_ones(method: str) -> None:
    for sort in SORTS:
        for code, recorded in zip(codes(method, sort), GOLDEN[method][sort], strict=True):
            differing = (int(code, 16) ^ int(recorded, 16)).bit_count()
            assert differing <= OTHER_CPU * len(recorded) * 4, (sort, differing)
