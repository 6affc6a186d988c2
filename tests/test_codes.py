import numpy as np
import pytest
from scipy.stats import binom

from transhash.codes import Codes, chance_distance
from transhash.errors import DataError


def test_the_sign_of_zero_is_minus_one() -> None:
    codes = Codes.from_projections([[0.0, 1e-9, -1.0, 5.0, 0.0, 0.0, 0.0, 2.0]])
    assert codes.signs().tolist() == [[-1, 1, -1, 1, -1, -1, -1, 1]]


def test_hamming_distance_is_half_of_bits_minus_inner_product() -> None:
    rng = np.random.default_rng(0)
    a = Codes.from_projections(rng.standard_normal((7, 24)))
    b = Codes.from_projections(rng.standard_normal((5, 24)))
    expected = (24 - a.signs().astype(int) @ b.signs().T.astype(int)) // 2
    assert np.array_equal(a.hamming(b), expected)


@pytest.mark.parametrize("bits", [0, 4, 12, 33])
def test_code_lengths_must_fill_bytes(bits: int) -> None:
    with pytest.raises(DataError, match="multiple of 8"):
        Codes.from_projections(np.zeros((2, bits)))


def test_distinct_codes_and_bit_balance() -> None:
    codes = Codes(np.array([[0b10000000], [0b10000000], [0b11000000]], np.uint8), 8)
    assert codes.distinct() == 2
    assert codes.bit_balance()[:3].tolist() == pytest.approx([1.0, 1 / 3, 0.0])


def test_codes_of_different_lengths_cannot_be_compared() -> None:
    with pytest.raises(DataError, match="8 and 16 bits"):
        Codes(np.zeros((1, 1), np.uint8), 8).hamming(Codes(np.zeros((1, 2), np.uint8), 16))


@pytest.mark.parametrize("bits", [8, 32, 128, 1024])
@pytest.mark.parametrize("count", [1, 2, 254, 100_000])
def test_half_the_time_the_nearest_of_random_codes_is_within_the_chance_distance(
    bits: int, count: int
) -> None:
    distance = chance_distance(count, bits)

    def within(distance: int) -> float:
        return 1 - (1 - binom.cdf(distance, bits, 0.5)) ** count

    assert within(distance) >= 0.5 - 1e-9
    assert within(distance - 1) < 0.5
