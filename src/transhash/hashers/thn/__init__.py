"""THN, the Transitive Hashing Network, and the paper's settings of it."""

from transhash.hashers.thn.thn import PAPER, THN

__all__ = ["PAPER", "THN"]
