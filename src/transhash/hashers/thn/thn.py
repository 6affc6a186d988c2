"""THN, the Transitive Hashing Network: C = L + λQ + νI + µ(D_q + D_d)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.codes import Codes
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, FitOptions, Setting
from transhash.hashers.deep import (
    DeepHasher,
    Device,
    Tower,
    initialize,
    learning_rates,
    parameter_groups,
)
from transhash.hashers.losses import WIDTHS, alignment_loss, inner_product_loss, relation_loss
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
    Quantization,
    default_logit_scale,
    make_objective,
)
from transhash.hashers.thn.transfer import TransferStep
from transhash.hashers.training_loop import (
    Checkpoint,
    LrSchedule,
    Optimizer,
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

# Of the paper's network with balanced pairs and Adam: logit scale, λ and steps with the best
# held-out auxiliary MAP of benchmarks/paper_network.py. µ is 1 because held-out auxiliary items
# cannot tell what alignment is worth.
PAPER_NETWORK: dict[str, Any] = {
    "logit_scale": 0.3,
    "quantization_weight": 1e-4,
    "alignment_weight": 1.0,
    "steps": 1000,
}
# The recipe as printed, completed from the authors' Caffe files. The paper leaves open learning
# rate, λ and steps; these have the best held-out auxiliary MAP of benchmarks/paper_network.py.
# There λ = 1e-4 is level with 0 (THN-Q), and 16,000 steps still gain. Settings of the canonical
# input layer, which the paper does not have, have no effect here.
PAPER: dict[str, Any] = {
    "image_hidden": (512,),
    "text_hidden": (1000, 500),
    "dropout": 0.0,
    "loss": "cross-entropy",
    "quantization_weight": 1e-4,
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
    "steps": 16_000,
    "batch_size": 128,
    "target_batch_size": 128,
    "optimizer": "sgd",
    "learning_rate": 10**-2.5,
    "lr_schedule": "inv",
    "head_lr_multiplier": 10.0,
    "weight_decay": 5e-4,
    "ema_decay": 0.0,
    "recover_from_collapse": False,
}

_log = logging.getLogger("transhash")
_CHECKS = 10  # of codes and checkpoints in a training
_MAX_STEPS_BETWEEN_CHECKS = 1000
_STEPS_BETWEEN_FINITE_CHECKS = 50  # at most: a training that diverged ends soon


@dataclass
class THN(DeepHasher):
    """The paper's method. docs/differences.md gives the evidence for each default marked "ours"."""

    image_hidden: Widths = (128,)  # ours: in parallel with a linear path
    text_hidden: Widths = (128,)  # ours; (1000, 500) in the paper
    dropout: ProportionBelowOne = 0.2
    loss: Literal["cross-entropy", "inner-product"] = "cross-entropy"  # inner-product: THN-ip
    quantization_weight: NonNegative = 1e-3  # λ; 0: THN-Q
    quantization_start: Proportion = 0.5  # ours: fraction of the steps before Q is added
    quantize_target: bool = True  # ours: Q also on target items; paper: auxiliary only
    use_target: bool = True  # unlabeled target items; False with µ = 0: THN-D
    alignment_weight: NonNegative = 0.3  # µ
    alignment_ramp: Proportion = 0.5  # ours: fraction of the steps over which µ grows
    # ours; (1.0,) is the single Gaussian of the paper
    kernel_widths: Annotated[tuple[Positive, ...], MinLength(1)] = WIDTHS
    balanced: bool = True  # ours: related and unrelated pairs have equal weight in sum
    logit_scale: Positive | None = None  # ours: 3 / bits, at most 0.15; 1 in the paper
    soft_label_fraction: Proportion = 0.5  # ours: of s_ij that is a calibrated probability
    pseudo_label_weight: NonNegative = 1.0  # ν, ours: L on pairs with target items; paper: 0
    input_layer: Literal["canonical", "features"] = "canonical"  # ours; paper: features
    ridge: NonNegative = 0.05  # ours: of the canonical layer, relative to the largest variance
    rank: PositiveInt | None = None  # ours: None: as many components as hold up in validation
    matching_rounds: NonNegativeInt = 4  # ours: of matching target items with auxiliary ones
    matching_temperature: Positive = 0.05  # τ, ours
    target_centering: Proportion = 0.5  # κ, ours: 0: one mean for both domains; 1: matched
    rotation_trials: NonNegativeInt = 4  # ours: rotations tried to initialize the linear path
    steps: NonNegativeInt = 300  # 0: initialization only
    batch_size: PositiveInt = 256  # auxiliary images, and as many texts, per step
    target_batch_size: PositiveInt = 128  # unlabeled target images, and as many texts, per step
    optimizer: Optimizer = "adam"  # ours; paper: sgd
    learning_rate: Positive = 1e-3
    lr_schedule: LrSchedule = "cosine"  # ours; paper: inv or step
    head_lr_multiplier: Positive = 1.0  # 10 in the paper, where the layers below are pre-trained
    weight_decay: NonNegative = 1e-4
    ema_decay: ProportionBelowOne = 0.98  # ours: of the moving average of weights; 0: no average
    recover_from_collapse: bool = True  # ours: continue without Q and D after a collapse

    name: ClassVar[str] = "THN"
    trained_with_tanh: ClassVar[bool] = True

    @property
    def uses_target(self) -> bool:
        return self.use_target or self.alignment_weight > 0

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        """Minimize C; with a folder, write metrics and checkpoints there and resume from them."""
        folder, world = options.folder, options.world or SINGLE_PROCESS
        self.input_layer_, inputs = world.compute_once(lambda: self._build_input_layer(training))
        batches = Batches(
            inputs, training.relation, Device(self.device),
            size=self.batch_size, target_size=self.target_batch_size, seed=self.seed,
        )  # fmt: skip
        objective = self.objective()
        towers = self.build_towers(inputs.images.shape[1:], inputs.texts.shape[1:])
        if self.rotation_trials and inputs.calibration is not None:
            rotation = world.compute_once(
                lambda: best_rotation(inputs, self.relation_bits, self.rotation_trials, self.seed)
            )
            for tower in towers.values():
                assert isinstance(tower, Tower)  # only canonical inputs are calibrated
                tower.initialize_from(rotation, correction=0.1 if self.steps else 0.0)
        parameters = list(towers.parameters())
        optimizer = make_optimizer(self.optimizer, self._parameter_groups(towers))
        average = WeightAverage(parameters, self.ema_decay) if self.ema_decay else None
        checkpoint, start = None, 0
        self.warnings_: list[str] = []
        if folder is not None:
            checkpoint = Checkpoint(folder, fingerprint(self._resumable(), training))
            start = checkpoint.load(towers, optimizer, average)
            world.check_start(start, folder)
            self.warnings_ = checkpoint.warnings
            if self.warnings_ and self.recover_from_collapse:
                objective = objective.without_regularizers()
        metrics = TrainingLog(folder if world.rank == 0 else None, start)
        check_every = max(1, min(self.steps // _CHECKS, _MAX_STEPS_BETWEEN_CHECKS))
        towers.train()
        with torch.random.fork_rng():  # dropout is seeded by step
            for step in options.track(
                range(start, self.steps), f"training {self.bits} bits", self.steps, start
            ):
                set_rate(optimizer, lr_factor(self.lr_schedule, step, self.steps))
                torch.manual_seed(step_seed(self.seed, step, world.rank))
                with self.autocast():
                    terms = objective(batches.batch_at(step, towers, world), step)
                total = torch.stack(list(terms.values())).sum()  # C
                optimizer.zero_grad()
                total.backward()  # type: ignore[no-untyped-call]
                world.sum_gradients(parameters)
                # Q's gradient is large near 0; one bad batch must not ruin the weights.
                nn.utils.clip_grad_norm_(parameters, 5.0)
                optimizer.step()
                if average:
                    average.update(parameters, step)
                metrics.write(step, {**terms, "objective": total})
                is_check = step + 1 == self.steps or (step + 1) % check_every == 0
                if is_check or (step + 1) % _STEPS_BETWEEN_FINITE_CHECKS == 0:
                    try:
                        when = f"at step {step + 1}"
                        check_finite_weights((total, *parameters), when, self.learning_rate)
                    except DataError:
                        metrics.discard()
                        raise
                if not is_check:
                    continue
                if self._check_collapse(towers, batches, step, objective, quiet=world.rank > 0):
                    objective = objective.without_regularizers()
                metrics.flush()  # before the checkpoint that a resumed run starts from
                if checkpoint and world.rank == 0 and checkpoint.is_due():
                    checkpoint.save(step + 1, towers, optimizer, average, self.warnings_)
        metrics.close()
        if average:
            average.copy_to(parameters)
        self.towers_ = towers.eval()
        self.alignment_ = self._alignment(training, batches)
        if checkpoint and world.rank == 0:
            checkpoint.remove()
        world.barrier()

    def objective(self) -> Objective:
        """Return C with the terms of nonzero weight."""
        pair_loss: PairLoss = inner_product_loss
        if self.loss == "cross-entropy":
            scale = self.logit_scale or default_logit_scale(self.bits)
            pair_loss = partial(relation_loss, scale=scale)
        start, ramp = self.quantization_start * self.steps, self.alignment_ramp * self.steps
        return make_objective(
            pair_loss,
            balanced=self.balanced,
            soft_label_fraction=self.soft_label_fraction,
            quantization=Quantization(self.quantization_weight, start, self.quantize_target),
            pseudo_label_weight=self.pseudo_label_weight,
            alignment=Alignment(self.alignment_weight, ramp, self.kernel_widths),
        )

    @property
    def relation_bits(self) -> int:
        return self.bits - (self.input_layer_.residual_bits if hasattr(self, "input_layer_") else 0)

    def feature_tower(
        self, inputs: int, hidden: tuple[int, ...], generator: torch.Generator
    ) -> nn.Module:
        if self.input_layer == "features":
            return super().feature_tower(inputs, hidden, generator)
        tower = Tower(inputs, hidden, self.relation_bits, self.dropout, linear=True)
        initialize(tower, None, generator)
        return tower

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        return self._project("image", images, target=True)

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        return self._project("text", texts, target=True)

    def project_auxiliary(self, images: Features, texts: Features) -> tuple[Array, Array]:
        return self._project("image", images, False), self._project("text", texts, False)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        image, text, layer = self.tower("image"), self.tower("text"), self.input_layer_
        return image if layer.image is None else layer.image.module(image), layer.text.module(text)

    def state(self) -> dict[str, Array]:
        return {**self.tower_state(), **self.input_layer_.state()}

    def restore(self, state: Mapping[str, Array]) -> Self:
        self.input_layer_ = InputLayer.restore(state)
        return self.restore_towers(state)

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        yield from learning_rates()

    def check_world(self, world: World) -> None:
        world.check_batch_size(self.batch_size)
        world.check_batch_size(self.target_batch_size)

    def _build_input_layer(self, training: TrainingSet) -> tuple[InputLayer, TowerInputs]:
        if self.input_layer == "features" or training.images.ndim > 2:
            return centered_input_layer(training, self.use_target)
        transfer = TransferStep(
            self.bits, self.ridge, self.rank, self.matching_rounds, self.matching_temperature,
            self.target_centering, self.seed,
        )  # fmt: skip
        layer, inputs = transfer.build(training, self.use_target)
        calibration = calibrate_relation(inputs.images, inputs.texts, training.relation, self.seed)
        return layer, replace(inputs, calibration=calibration)

    def _parameter_groups(self, towers: nn.ModuleDict) -> Iterable[dict[str, Any]]:
        for tower in towers.values():
            yield from parameter_groups(
                tower, self.learning_rate, self.head_lr_multiplier, self.weight_decay
            )

    def _resumable(self) -> Setting:
        """Return the settings that a checkpoint must share, all but the device."""
        return {name: value for name, value in self.settings().items() if name != "device"}

    def _check_collapse(
        self, towers: nn.ModuleDict, batches: Batches, step: int, objective: Objective, quiet: bool
    ) -> bool:
        """Warn once if codes have collapsed; return whether to continue without Q and D."""
        towers.eval()
        message = None
        # Each modality separately: two constant codes, one per modality, are distinct together.
        for name, inputs in (("image", batches.images), ("text", batches.texts)):
            with torch.inference_mode(), self.autocast():
                z = towers[name](inputs[:256]).float().cpu().numpy()
            bits = self.relation_bits // 8 * 8  # Codes need full bytes
            warning = collapse_warning(Codes.from_projections(z[:, :bits]))
            message = message or (warning and f"{name} {warning}")
        towers.train()
        if not message or self.warnings_:
            return False
        advice = "Try balanced=True, a smaller quantization_weight or another learning_rate."
        recover = self.recover_from_collapse and objective.is_regularized
        if recover:
            advice = "Training continues without quantization and alignment. " + advice
        self.warnings_.append(f"At step {step + 1}, {message}. {advice}")
        if not quiet:
            _log.warning(self.warnings_[-1])
        return recover

    def _alignment(self, training: TrainingSet, batches: Batches) -> dict[str, dict[str, float]]:
        """Return MMD² of auxiliary and target items, of features (before) and codes (after)."""
        parts = (
            ("image", training.images, training.target_images, batches.target_images),
            ("text", training.texts, training.target_texts, batches.target_texts),
        )
        mmd = {}
        for name, features, target_features, target in parts:
            if target_features is None or target is None:
                continue
            tower, inputs = self.towers_[name], getattr(batches, f"{name}s")
            with torch.inference_mode(), self.autocast():
                z, z_target = torch.tanh(tower(inputs[:1000])), torch.tanh(tower(target[:1000]))
            before = alignment_loss(_flatten(features), _flatten(target_features))
            after = alignment_loss(z, z_target)
            mmd[f"{name}s"] = {"before": float(before), "after": float(after)}
        return mmd

    def _project(self, name: str, rows: Features, target: bool) -> npt.NDArray[np.float32]:
        if not hasattr(self, "input_layer_"):
            raise self.not_fitted_error()
        layer = self.input_layer_.image if name == "image" else self.input_layer_.text
        if layer is None:
            return self.run_tower(name, rows)
        z = self.run_tower(name, layer.apply(rows, target))
        return layer.append_residual_bits(z, rows, target)


def _flatten(rows: Features) -> Tensor:
    first = rows[:1000]
    return torch.from_numpy(first.reshape(len(first), -1).astype(np.float32))
