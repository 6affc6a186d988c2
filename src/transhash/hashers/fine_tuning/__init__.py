"""Fine-tuning: trains an image backbone under C, with a hasher of frozen features as teacher."""

from transhash.hashers.fine_tuning.loop import FineTuning, fine_tune, fine_tuning_name

__all__ = ["FineTuning", "fine_tune", "fine_tuning_name"]
