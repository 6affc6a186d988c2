"""THN: settings and loop (thn), terms of C (objective), what a step sees (batches), the first layer
(transfer, bridge) and what the towers start from (start)."""

from transhash.hashers.thn.thn import PAPER, THN

__all__ = ["PAPER", "THN"]
