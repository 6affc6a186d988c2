"""End to end: a backbone trained further under C, taught by a hasher that its frozen features fit.

Settings (settings), what the teacher says (lessons), pictures as a step sees them (views), what the
rows become while they are trained (head), and the loop (loop)."""

from transhash.hashers.fine_tuning.loop import FineTuning, fine_tune, fine_tuning_name

__all__ = ["FineTuning", "fine_tune", "fine_tuning_name"]
