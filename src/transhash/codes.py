"""Binary codes: the sign rule, packing and Hamming distance."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError, check_type

DEFAULT_BITS = 128  # THN: best recall of held-out captions among 32, 64 and 128 (docs/search.md)
BENCHMARK_BITS = 32
MAX_BITS = 65_528  # search counts distances in 16 bits


@dataclass(frozen=True, eq=False)
class Codes:
    """n codes of `bits` bits, packed eight to a byte: bit 1 is +1, bit 0 is -1."""

    packed: npt.NDArray[np.uint8]  # (n, bits // 8), most significant bit first
    bits: int

    def __post_init__(self) -> None:
        check_bits(self.bits)
        packed = np.ascontiguousarray(self.packed)
        if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] * 8 != self.bits:
            raise DataError(
                f"Packed codes have type {packed.dtype} and shape {packed.shape}. "
                f"Pass uint8 of shape (n, {self.bits // 8}) for {self.bits} bits."
            )
        object.__setattr__(self, "packed", packed)

    @classmethod
    def from_projections(cls, projections: npt.ArrayLike) -> Codes:
        """Return h = sgn(z) with sgn(0) = -1 as in the paper (numpy's sign(0) is 0)."""
        z = np.asarray(projections)
        if z.ndim != 2:
            raise DataError(f"Projections have shape {z.shape}. Pass a matrix of items x bits.")
        check_bits(z.shape[1])
        return cls(np.packbits(z > 0, axis=1), z.shape[1])

    @classmethod
    def concatenate(cls, parts: Iterable[Codes]) -> Codes:
        """Return the codes of all parts, in order."""
        parts = list(parts)
        return cls(np.concatenate([part.packed for part in parts]), parts[0].bits)

    def signs(self) -> npt.NDArray[np.int8]:
        """Return an (n, bits) matrix of -1 and +1."""
        return np.unpackbits(self.packed, axis=1).astype(np.int8) * 2 - 1

    def hamming(self, other: Codes) -> npt.NDArray[np.uint16]:
        """Return the (n, m) matrix of distances. An `Index` searches without forming it."""
        if self.bits != other.bits:
            raise DataError(
                f"Cannot compare codes of {self.bits} and {other.bits} bits. "
                "Encode both with the same model."
            )
        distances = np.zeros((len(self), len(other)), dtype=np.uint16)
        for byte in range(self.packed.shape[1]):
            distances += np.bitwise_count(self.packed[:, byte, None] ^ other.packed[None, :, byte])
        return distances

    def distinct(self) -> int:
        """Return the number of different codes."""
        return len(np.unique(self.packed.view(f"V{self.packed.shape[1]}"))) if len(self) else 0

    def bit_balance(self) -> npt.NDArray[np.float64]:
        """Return the fraction of +1 in each bit; 0 or 1 means a dead bit."""
        return np.asarray(np.unpackbits(self.packed, axis=1).mean(axis=0))

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Codes:
        return Codes(self.packed[rows], self.bits)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Codes)
            and self.bits == other.bits
            and np.array_equal(self.packed, other.packed)
        )

    __hash__ = None  # type: ignore[assignment]


@lru_cache
def chance_distance(count: int, bits: int) -> int:
    """Return the distance that the nearest of `count` random codes has or exceeds half the time.

    It is the smallest d with 1 - (1 - P(D <= d))^count >= 1/2, where D is binomial(bits, 1/2). A
    query whose results are all as far was not understood. Nothing is fitted.
    """
    if count < 1:
        return 0
    needed = -math.expm1(math.log(0.5) / count)  # of P(D <= d)
    ways, below = 1, 0  # of a code to have d, and at most d, differing bits
    for distance in range(bits + 1):
        below += ways
        if below / 2**bits >= needed:
            return distance
        ways = ways * (bits - distance) // (distance + 1)
    return bits


def default_bits(method: str) -> int:
    """Return the code length `fit` uses for a method unless one is given."""
    return DEFAULT_BITS if method == "THN" else BENCHMARK_BITS


def check_bits(bits: int) -> None:
    check_type(bits, (int, np.integer), "The code length", "a multiple of 8")
    if bits < 8 or bits % 8:
        raise DataError(f"Code length {bits} is not a positive multiple of 8. Use 8, 16, 24, ...")
