"""THN, the Transitive Hashing Network: C = L + λQ + νI + µ(D_q + D_d)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.codes import Codes
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, Setting
from transhash.hashers.deep import (
    DeepHasher,
    Device,
    Head,
    initialise,
    learning_rates,
    parameter_groups,
)
from transhash.hashers.losses import (
    WIDTHS,
    alignment_loss,
    inner_product_loss,
    relation_loss,
)
from transhash.hashers.settings import (
    MinLength,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Proportion,
    ProportionBelowOne,
    Widths,
)
from transhash.hashers.thn.batches import Batches
from transhash.hashers.thn.initialization import best_rotation, calibrate_relation
from transhash.hashers.thn.input_layer import InputLayer, TowerInputs, centered_input_layer
from transhash.hashers.thn.objective import (
    Alignment,
    Objective,
    PairLoss,
    PseudoLabelTerm,
    Quantization,
    RelationTerm,
    Term,
)
from transhash.hashers.thn.transfer import TransferStep
from transhash.hashers.training_loop import (
    Checkpoint,
    Optimizer,
    Policy,
    TrainingLog,
    WeightAverage,
    check_finite_weights,
    collapse_warning,
    fingerprint,
    lr_factor,
    make_optimizer,
    set_rate,
    step_seed,
)
from transhash.hashers.world import SINGLE_PROCESS, World
from transhash.progress import Track, no_progress

# The recipe as printed: the paper's words, and where it is silent its authors' Caffe files.
#
# Of a canonical layer, which the paper has not, the values are ours and have no effect.

PAPER: dict[str, Any] = {
    "image_hidden": (512,),
    "text_hidden": (1000, 500),
    "dropout": 0.0,
    "loss": "cross-entropy",
    "quantization_weight": 1e-2,
    "quantization_start": 0.0,
    "quantize_target": False,
    "use_target": True,
    "alignment_weight": 1.0,
    "alignment_ramp": 0.0,
    "kernel_widths": (1.0,),
    "balanced": False,
    "logit_scale": 1.0,
    "soft_label_fraction": 0.0,
    "pseudo_label_weight": 0.0,
    "input_layer": "features",
    "ridge": 0.05,
    "rank": None,
    "matching_rounds": 0,
    "matching_temperature": 0.05,
    "target_centering": 0.0,
    "rotation_trials": 0,
    "steps": 1000,
    "batch_size": 128,
    "target_batch_size": 128,
    "optimizer": "sgd",
    "learning_rate": 1e-2,
    "lr_schedule": "inv",
    "head_lr_multiplier": 10.0,
    "weight_decay": 5e-4,
    "ema_decay": 0.0,
    "recover_from_collapse": False,
}

_log = logging.getLogger("transhash")
_LOOKS = 10  # how often in a training the codes are looked at and a checkpoint is kept
_SELDOM = 1000  # steps after which that is done anyway: what a long training may lose


@dataclass
class THN(DeepHasher):
    """The paper's method. docs/method.md gives the evidence for each default marked "ours"."""

    image_hidden: Widths = (128,)  # ours: beside the linear path of a Head
    text_hidden: Widths = (128,)  # ours; (1000, 500) in the paper
    dropout: ProportionBelowOne = 0.2
    loss: Literal["cross-entropy", "inner-product"] = "cross-entropy"  # inner-product: THN-ip
    quantization_weight: NonNegative = 1e-3  # λ; 0: THN-Q
    quantization_start: Proportion = 0.5  # ours: share of the steps before Q sets in
    quantize_target: bool = True  # ours: Q on target items too; paper: auxiliary only
    use_target: bool = True  # unlabelled target items; False with µ = 0: THN-D
    alignment_weight: NonNegative = 0.3  # µ
    alignment_ramp: Proportion = 0.5  # ours: share of the steps over which µ grows to its value
    # ours; (1.0,) is the single Gaussian of the paper
    kernel_widths: Annotated[tuple[Positive, ...], MinLength(1)] = WIDTHS
    balanced: bool = True  # ours: related and unrelated pairs weigh alike; paper: not
    logit_scale: Positive | None = None  # ours: 3 / bits, at most 0.15; 1 in the paper
    soft_label_fraction: Proportion = (
        0.5  # ours: how much of s_ij is its calibrated probability; paper: 0
    )
    pseudo_label_weight: NonNegative = 1.0  # ν, ours: L on pairs with target items; paper: 0
    input_layer: Literal["canonical", "features"] = "canonical"  # ours; paper: features
    ridge: NonNegative = 0.05  # ours: of the canonical layer, relative to the largest variance
    rank: PositiveInt | None = None  # ours: None: as many directions as hold up, of pairs by worth
    matching_rounds: NonNegativeInt = (
        4  # ours: how often target items are matched with auxiliary ones
    )
    matching_temperature: Positive = 0.05  # τ, ours: of that matching
    target_centering: Proportion = (
        0.5  # κ, ours: 0 gives both domains one mean, 1 only what is matched
    )
    rotation_trials: NonNegativeInt = (
        4  # ours: rotations tried for the linear path, the best is trained
    )
    steps: NonNegativeInt = 300  # 0: the start alone
    batch_size: PositiveInt = 256  # auxiliary images, and as many texts, a step
    target_batch_size: PositiveInt = 128  # unlabelled target images, and as many texts, a step
    optimizer: Optimizer = "adam"  # ours; paper: sgd
    learning_rate: Positive = 1e-3
    lr_schedule: Policy = "cosine"  # ours; paper: inv or step
    head_lr_multiplier: Positive = 1.0  # 10 in the paper, where the layers below are pre-trained
    weight_decay: NonNegative = 1e-4
    ema_decay: ProportionBelowOne = 0.98  # ours: decay of the weights' moving average, 0: none
    recover_from_collapse: bool = True  # on collapse, go on without Q and D, and say so

    name: ClassVar[str] = "THN"

    @classmethod
    def paper(cls, **settings: Any) -> THN:
        """The recipe as printed: unweighted pairs, λ and µ from the start, SGD 0.9, features."""
        return cls(**{**PAPER, **settings})

    @property
    def uses_target(self) -> bool:
        return self.use_target or self.alignment_weight > 0

    def fit(
        self,
        training: TrainingSet,
        *,
        folder: Path | None = None,
        track: Track = no_progress,
        world: World = SINGLE_PROCESS,
    ) -> Self:
        """Minimise C; with `folder`, metrics and checkpoints are kept there and resumed from."""
        self.check(world)
        self.input_layer_, inputs = world.first(lambda: self._build_input_layer(training))
        batches = Batches(
            inputs, training.relation, Device(self.device),
            size=self.batch_size, target_size=self.target_batch_size, seed=self.seed,
        )  # fmt: skip
        objective = self.objective()
        towers = self.build_towers(inputs.images.shape[1:], inputs.texts.shape[1:])
        if self.rotation_trials and inputs.calibration is not None:
            frame = world.first(
                lambda: best_rotation(inputs, self.tower_bits, self.rotation_trials, self.seed)
            )
            for tower in towers.values():
                assert isinstance(tower, Head)  # only canonical inputs are calibrated
                tower.start_from(frame, correction=0.1 if self.steps else 0.0)
        parameters = list(towers.parameters())
        optimizer = make_optimizer(self.optimizer, self._parameter_groups(towers))
        average = WeightAverage(parameters, self.ema_decay) if self.ema_decay else None
        checkpoint, start = None, 0
        if folder is not None:
            checkpoint = Checkpoint(folder, fingerprint(self._resumable(), training))
            start = checkpoint.load(towers, optimizer, average)
            world.check_start(start, folder)
        metrics = TrainingLog(folder if world.rank == 0 else None, start)
        look_every = max(1, min(self.steps // _LOOKS, _SELDOM))
        self.warnings_: list[str] = []
        towers.train()
        with torch.random.fork_rng():  # dropout is seeded by step; the user's generators stay
            for step in track(
                range(start, self.steps), f"training {self.bits} bits", self.steps, start
            ):
                set_rate(optimizer, lr_factor(self.lr_schedule, step, self.steps))
                torch.manual_seed(step_seed(self.seed, step, world.rank))
                with self.autocast():
                    terms = objective(batches.at(step, towers, world), step)
                total = torch.stack(list(terms.values())).sum()  # C
                optimizer.zero_grad()
                total.backward()  # type: ignore[no-untyped-call]
                world.sum_gradients(parameters)
                # Q's gradient is unbounded near 0; one bad batch must not throw the weights away.
                nn.utils.clip_grad_norm_(parameters, 5.0)
                optimizer.step()
                if average:
                    average.update(parameters, step)
                metrics.write(step, {**terms, "objective": total})
                if (step + 1) % look_every and step + 1 < self.steps:
                    continue
                try:
                    when = f"at step {step + 1}"
                    check_finite_weights((total, *parameters), when, self.learning_rate)
                except DataError:
                    metrics.discard()
                    raise
                if self._check_collapse(towers, batches, step, objective, quiet=world.rank > 0):
                    objective = objective.without_regularizers()
                metrics.flush()  # before the checkpoint, which a resumed run goes on from
                if checkpoint and world.rank == 0 and checkpoint.is_due():
                    checkpoint.save(step + 1, towers, optimizer, average)
        metrics.close()
        if average:
            average.copy_to(parameters)
        self.towers_ = towers.eval()
        self.alignment_ = self._alignment(training, batches)
        if checkpoint and world.rank == 0:
            checkpoint.remove()
        world.barrier()
        return self

    def objective(self) -> Objective:
        """C as the settings have it: what weighs nothing is not there."""
        pair_loss: PairLoss = partial(relation_loss, scale=self.scale())
        if self.loss == "inner-product":
            pair_loss = inner_product_loss
        terms: list[Term] = [RelationTerm(pair_loss, self.balanced, self.soft_label_fraction)]
        if self.quantization_weight:
            start = self.quantization_start * self.steps
            terms.append(Quantization(self.quantization_weight, start, self.quantize_target))
        if self.pseudo_label_weight:
            terms.append(PseudoLabelTerm(pair_loss, self.balanced, self.pseudo_label_weight))
        if self.alignment_weight:
            ramp = self.alignment_ramp * self.steps
            terms.append(Alignment(self.alignment_weight, ramp, self.kernel_widths))
        return Objective(*terms)

    @property
    def tower_bits(self) -> int:
        return self.bits - (self.input_layer_.residual_bit_axes if hasattr(self, "input_layer_") else 0)

    def scale(self) -> float:
        """What multiplies <z_x, z_y> in L: codes reach ±b, log odds of relations about ±3."""
        return min(0.15, 3.0 / self.bits) if self.logit_scale is None else self.logit_scale

    def feature_tower(
        self, inputs: int, hidden: tuple[int, ...], generator: torch.Generator
    ) -> nn.Module:
        if self.input_layer == "features":
            return super().feature_tower(inputs, hidden, generator)
        tower = Head(inputs, hidden, self.tower_bits, self.dropout)
        initialise(tower, None, generator)
        return tower

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        return self._project("image", images, target=True)

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        return self._project("text", texts, target=True)

    def project_auxiliary(self, images: Features, texts: Features) -> tuple[Array, Array]:
        """Auxiliary items, which have a centre of their own."""
        return self._project("image", images, False), self._project("text", texts, False)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        image, text = self.tower("image"), self.tower("text")
        first = self.input_layer_.image
        return image if first is None else first.module(image), self.input_layer_.text.module(text)

    def state(self) -> dict[str, Array]:
        return {**self.tower_state(), **self.input_layer_.state()}

    def restore(self, state: Mapping[str, Array]) -> Self:
        self.input_layer_ = InputLayer.restore(state)
        return self.restore_towers(state)

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        yield from learning_rates()

    def check(self, world: World) -> None:
        """Refuse what cannot be trained by these processes."""
        world.check_batch(self.batch_size)
        world.check_batch(self.target_batch_size)

    def _build_input_layer(self, training: TrainingSet) -> tuple[InputLayer, TowerInputs]:
        if self.input_layer == "features" or training.images.ndim > 2:
            return centered_input_layer(training, self.use_target)
        transfer = TransferStep(
            self.bits, self.ridge, self.rank, self.matching_rounds, self.matching_temperature, self.target_centering,
            self.seed,
        )  # fmt: skip
        bridge, inputs = transfer.bridge(training, self.use_target)
        found = calibrate_relation(inputs.images, inputs.texts, training.relation, self.seed)
        return bridge, replace(inputs, calibration=found)

    def _parameter_groups(self, towers: nn.ModuleDict) -> Iterable[dict[str, Any]]:
        for tower in towers.values():
            yield from parameter_groups(
                tower, self.learning_rate, self.head_lr_multiplier, self.weight_decay
            )

    def _resumable(self) -> Setting:
        """The settings that a checkpoint must share; it may go on on another device."""
        return {name: value for name, value in self.settings().items() if name != "device"}

    def _check_collapse(
        self, towers: nn.ModuleDict, batches: Batches, step: int, objective: Objective, quiet: bool
    ) -> bool:
        """Raise the alarm if codes have collapsed; True if Q and D are to be left out for it."""
        towers.eval()
        found = None
        # Each modality by itself: two constant codes, one a modality, look alive together.
        for name, inputs in (("image", batches.images), ("text", batches.texts)):
            with torch.inference_mode(), self.autocast():
                z = towers[name](inputs[:256]).float().cpu().numpy()
            whole = self.tower_bits // 8 * 8  # codes are bytes; the bits beyond tell no more
            sentence = collapse_warning(Codes.from_projections(z[:, :whole]))
            found = found or (sentence and f"{name} {sentence}")
        towers.train()
        if not found or self.warnings_:  # said once; what is done about it is done once
            return False
        advice = "try balanced=True, a smaller quantization_weight or another learning_rate"
        rescued = self.recover_from_collapse and objective.regularised
        if rescued:
            advice = "quantization and alignment are switched off for the rest; " + advice
        self.warnings_.append(f"at step {step + 1} {found}; {advice}")
        if not quiet:
            _log.warning(self.warnings_[-1])
        return rescued

    def _alignment(self, training: TrainingSet, batches: Batches) -> dict[str, dict[str, float]]:
        """MMD² of auxiliary and target items, before in the features and after in the codes."""
        parts = (
            ("image", training.images, training.target_images, batches.target_images),
            ("text", training.texts, training.target_texts, batches.target_texts),
        )
        found = {}
        for name, features, target_features, target in parts:
            if target_features is None or target is None:
                continue
            tower, own = self.towers_[name], getattr(batches, f"{name}s")
            with torch.inference_mode(), self.autocast():
                z, z_target = torch.tanh(tower(own[:1000])), torch.tanh(tower(target[:1000]))
            before = alignment_loss(_flat(features), _flat(target_features))
            after = alignment_loss(z, z_target)
            found[f"{name}s"] = {"before": float(before), "after": float(after)}
        return found

    def _project(self, name: str, rows: Features, target: bool) -> npt.NDArray[np.float32]:
        if not hasattr(self, "input_layer_"):
            raise self.not_fitted_error()
        view = self.input_layer_.image if name == "image" else self.input_layer_.text
        if view is None:
            return self.run_tower(name, rows)
        return view.with_finer(self.run_tower(name, view.apply(rows, target)), rows, target)


def _flat(rows: Features) -> Tensor:
    some = rows[:1000]
    return torch.from_numpy(some.reshape(len(some), -1).astype(np.float32))
