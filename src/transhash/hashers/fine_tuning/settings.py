"""What can be set in a fine-tuning."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from transhash.errors import DataError
from transhash.hashers.base import Setting
from transhash.hashers.losses import WIDTHS, relation_loss
from transhash.hashers.settings import (
    FromOne,
    FromZero,
    NotNegative,
    Positive,
    Seed,
    Share,
    ShareBelowOne,
    check_settings,
)
from transhash.hashers.thn.objective import (
    Alignment,
    Inherited,
    Objective,
    PairLoss,
    Quantization,
    RelationTerm,
    Term,
)

_VIEWS = 4  # kept of each image on a CPU: lower blocks are passed four times, not every step


@dataclass
class FineTuning:
    """All of it is ours: the paper fine-tunes AlexNet without target images, teacher or average."""

    blocks: FromOne | None = None  # the last so many are trained; None: all
    steps: FromOne = 300
    minutes: Positive | None = None  # at most so long: steps by the speed measured at the start
    batch: FromOne = 96  # auxiliary images a step
    target_batch: FromOne = 96  # unlabelled target images a step
    text_batch: FromOne = 256  # auxiliary texts, and as many target texts, a step
    learning_rate: Positive = 4e-4
    weight_decay: NotNegative = 1e-4
    averaging: ShareBelowOne = 0.99  # decay of the weights' moving average, 0: none
    moved: Share = 0.7  # the weights end so far on the way from their start to what was learned
    augment: bool = True  # random crops, mirror images and colours
    views: FromZero | None = None  # kept of each image at the lowest trained block; 0: none
    norms: Literal["frozen", "target"] = "frozen"  # target: statistics of the target images
    use_target: bool = True  # target images take part
    soft_share: Share = 0.5  # how much of s_ij is its calibrated probability
    inherited_weight: NotNegative = 1.5  # ν: each kind of pairs with a target item counts half
    quantization_weight: NotNegative = 1e-3  # λ, as in THN
    alignment_weight: NotNegative = 0.3  # µ, as in THN
    logit_scale: Positive | None = None  # 3 / bits, at most 0.15, as in THN
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def settings(self) -> Setting:
        return asdict(self)

    def first_stage(self, name: str, stages: int) -> int:
        """The lowest stage that is trained."""
        if self.blocks is not None and self.blocks > stages:
            raise DataError(f"{name} has {stages} blocks, so its last {self.blocks} cannot learn")
        return 0 if self.blocks is None else stages - self.blocks

    def kept_views(self, first: int, device: str) -> int:
        """How many views of an image are computed once, up to the lowest trained stage.

        Beside a GPU none: there, every step's own crops cost little.
        """
        if first == 0:
            if self.views:
                raise DataError("views are kept below the trained blocks; give blocks, too")
            return 0
        if self.views is None:
            views = 0 if device.startswith("cuda") else _VIEWS
        else:
            views = self.views
        return min(views, 1) if not self.augment else views

    def objective(self, bits: int, steps: int) -> Objective:
        """C over image activations; texts keep the teacher's, so D_d and Q of texts stand still."""
        scale = min(0.15, 3.0 / bits) if self.logit_scale is None else self.logit_scale
        pair_loss: PairLoss = partial(relation_loss, scale=scale)
        terms: list[Term] = [RelationTerm(pair_loss, True, self.soft_share)]
        if self.quantization_weight:
            terms.append(Quantization(self.quantization_weight, 0.5 * steps, target=True))
        if self.inherited_weight:
            terms.append(Inherited(pair_loss, True, self.inherited_weight))
        if self.alignment_weight:
            terms.append(Alignment(self.alignment_weight, 0.5 * steps, WIDTHS))
        return Objective(*terms)
