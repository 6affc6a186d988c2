"""THN: settings and loop (thn), terms of C (objective), what a step sees (batches), the first layer
(transfer, bridge), what the towers start from (start), and the recipe as printed (paper)."""

from transhash.hashers.thn.thn import PAPER, THN

__all__ = ["PAPER", "THN"]
