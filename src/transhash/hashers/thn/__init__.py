"""THN, the Transitive Hashing Network, and the paper's settings of it."""

from transhash.hashers.thn.thn import PAPER, PAPER_NETWORK, THN

__all__ = ["PAPER", "PAPER_NETWORK", "THN"]
